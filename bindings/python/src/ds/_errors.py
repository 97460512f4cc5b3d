"""Exceptions: one class for each status of the library, under one base."""

from __future__ import annotations

from typing import ClassVar

from . import _native


class Error(Exception):
    """Any failure of the library. The text says what, where and what to do."""

    status: ClassVar[int] = _native.DS_ERR_INTERNAL
    """The number of the C interface, such as -2 for DS_ERR_CONFIG."""

    @property
    def name(self) -> str:
        """The status by name, such as "DS_ERR_CONFIG"."""
        return str(_native.ds_status_name(self.status))


class InvalidArgumentError(Error, ValueError):
    """The call is wrong: fix the caller."""

    status = _native.DS_ERR_INVALID_ARGUMENT


class ConfigError(Error, ValueError):
    """The configuration document is wrong: fix the document."""

    status = _native.DS_ERR_CONFIG


class OutOfMemoryError(Error, MemoryError):
    """Memory ran out; the text holds the memory report."""

    status = _native.DS_ERR_OUT_OF_MEMORY


class DeviceError(Error, RuntimeError):
    """A device failed."""

    status = _native.DS_ERR_DEVICE


class CommError(Error, ConnectionError):
    """Another process failed or disagreed; the text names it."""

    status = _native.DS_ERR_COMM


class FileError(Error, OSError):
    """A file could not be read or written."""

    status = _native.DS_ERR_IO


class UnsupportedError(Error, NotImplementedError):
    """This build or version does not do that."""

    status = _native.DS_ERR_UNSUPPORTED


class AbortedError(Error, RuntimeError):
    """The operation was aborted from elsewhere."""

    status = _native.DS_ERR_ABORTED


class CallbackError(Error, RuntimeError):
    """A callback asked to stop. One that raises is seen as its own exception instead."""

    status = _native.DS_ERR_CALLBACK


class InternalError(Error, RuntimeError):
    """A defect of the library: please report the text."""

    status = _native.DS_ERR_INTERNAL


class StateError(Error, RuntimeError):
    """The right call at the wrong moment: order of calls, or the object is in use elsewhere."""

    status = _native.DS_ERR_STATE


class CorruptError(Error, ValueError):
    """A file's content is damaged or hostile."""

    status = _native.DS_ERR_CORRUPT


class NotFoundError(Error, LookupError):
    """A file, tag, tensor or token does not exist."""

    status = _native.DS_ERR_NOT_FOUND


_native.set_errors({kind.status: kind for kind in Error.__subclasses__()})
