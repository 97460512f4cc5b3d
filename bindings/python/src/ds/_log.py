"""The log of the library, process-wide."""

from __future__ import annotations

import atexit
import logging
from typing import Callable, Optional

from . import _native

_LEVELS = {
    _native.DS_LOG_DEBUG: logging.DEBUG,
    _native.DS_LOG_INFO: logging.INFO,
    _native.DS_LOG_WARNING: logging.WARNING,
    _native.DS_LOG_ERROR: logging.ERROR,
}
_NAMES = {
    "debug": _native.DS_LOG_DEBUG,
    "info": _native.DS_LOG_INFO,
    "warning": _native.DS_LOG_WARNING,
    "error": _native.DS_LOG_ERROR,
    "off": _native.DS_LOG_OFF,
}

LogFunction = Callable[[int, str, str], object]
"""Receives the level of module `logging`, the component and the text, on whatever thread logs. It must not
call the library. What it raises is printed, not raised."""


def set_log(function: Optional[LogFunction]) -> None:
    """Sends log messages to a function instead of standard error; None sends them there again."""
    if function is None:
        _native.ds_log_set(None)
        return
    receiver = function
    _native.ds_log_set(
        lambda level, component, text: receiver(_LEVELS.get(level, logging.INFO), component, text)
    )


def log_to(logger: logging.Logger) -> None:
    """Sends log messages to a logger of module `logging`: `ds.log_to(logging.getLogger("ds"))`."""
    set_log(lambda level, component, text: logger.log(level, "%s: %s", component, text))


def set_log_level(level: str) -> None:
    """The lowest level that is logged: "debug", "info", "warning" (default), "error" or "off"."""
    if level not in _NAMES:
        raise ValueError(f"no log level {level!r}: known are {', '.join(_NAMES)}")
    _native.ds_log_set_level(_NAMES[level])


# A message of a worker thread must not come to an interpreter that ends.
atexit.register(_native.ds_log_set, None)
