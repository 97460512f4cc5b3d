"""What every part of the package stands on: handles, JSON documents, names of types."""

from __future__ import annotations

import json
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, ClassVar, Optional, TypeVar, Union

from . import _native

Document = Union[Mapping[str, Any], str]
"""A JSON document: a dict, or its text."""
PathLike = Union[str, "os.PathLike[str]"]

_Self = TypeVar("_Self", bound="Handle")

_native.set_main_thread(threading.main_thread().ident)

_HEADER = (_native.DS_VERSION_MAJOR, _native.DS_VERSION_MINOR)
_LOADED = divmod(_native.ds_abi_version() // 1000, 1000)
if _LOADED != _HEADER:
    raise ImportError(
        f"ds: the package was built for libds {_HEADER[0]}.{_HEADER[1]}, and the one that was loaded "
        f"is {_LOADED[0]}.{_LOADED[1]}: install the package again"
    )

DTYPES = {
    "float32": _native.DS_FLOAT32,
    "float64": _native.DS_FLOAT64,
    "float16": _native.DS_FLOAT16,
    "bfloat16": _native.DS_BFLOAT16,
    "int8": _native.DS_INT8,
    "int16": _native.DS_INT16,
    "int32": _native.DS_INT32,
    "int64": _native.DS_INT64,
    "uint8": _native.DS_UINT8,
    "uint16": _native.DS_UINT16,
    "uint32": _native.DS_UINT32,
    "uint64": _native.DS_UINT64,
    "bool": _native.DS_BOOL,
}
"""Element types by the names that NumPy and PyTorch use."""
DTYPE_NAMES = {code: name for name, code in DTYPES.items()}
_SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "half": "float16"}
DEVICE_NAMES = {_native.DS_DEVICE_CPU: "cpu", _native.DS_DEVICE_CUDA: "cuda"}


def dtype_code(dtype: Any) -> int:
    """The number of an element type given by name, by a NumPy dtype or by a PyTorch dtype."""
    name = str(dtype if isinstance(dtype, str) else getattr(dtype, "name", dtype))
    if isinstance(dtype, type):
        name = dtype.__name__
    name = name.rsplit(".", 1)[-1]
    name = _SHORT.get(name, name)
    if name not in DTYPES:
        raise ValueError(f"no element type {dtype!r}: known are {', '.join(DTYPES)}")
    return int(DTYPES[name])


def device_name(kind: int, index: int) -> str:
    name = DEVICE_NAMES.get(kind, "unknown")
    return name if name == "cpu" else f"{name}:{index}"


def to_json(document: Optional[Document]) -> Optional[str]:
    """The text of a document; text goes on as it is, None stays None."""
    if document is None or isinstance(document, str):
        return document
    return json.dumps(document, default=_plain)


def _plain(value: Any) -> Any:
    """Numbers of other libraries and paths inside documents."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} does not belong into a JSON document")


def document_or_file(document: Union[Document, PathLike]) -> str:
    """The text of a document given as a dict, as text, or as the path of a file that holds it."""
    if isinstance(document, str) and document.lstrip()[:1] in ("{", ""):
        return document
    if isinstance(document, (str, os.PathLike)):
        return Path(document).read_text(encoding="utf-8")
    return str(to_json(document))


def options(**given: Any) -> Optional[str]:
    """A document of the options that were given, None when there are none."""
    kept = {name: value for name, value in given.items() if value is not None}
    return to_json(kept) if kept else None


def path_text(path: PathLike) -> str:
    return os.fspath(path)


class Handle:
    """An object of the library. It ends with `close`, with a `with` block, with the last reference
    to it, or with the interpreter, whichever comes first, in any order with others and on any thread.
    In a forked child nothing of the parent's is touched."""

    _destroy: ClassVar[Callable[[Any], None]]

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._end = weakref.finalize(self, type(self)._destroy, handle)

    def close(self) -> None:
        """Ends the object. A second call does nothing; any other one raises InvalidArgumentError."""
        self._end()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        end = getattr(self, "_end", None)  # not there when its making failed
        return end is None or not end.alive

    def last_error(self) -> str:
        """Text of the last call that failed on this object, whatever thread made it."""
        return str(_native.ds_handle_error_message(self._handle))

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def optional(handle: Optional[Handle]) -> Any:
    """The handle for a call that takes None, too."""
    return None if handle is None else handle._handle


def warn_missing(package: str, purpose: str) -> None:
    print(f"ds: {package} is not installed: {purpose}", file=sys.stderr)
