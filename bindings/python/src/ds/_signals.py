"""Ctrl-C while the main thread waits for other processes.

Calls that consist of parts look for signals between them. A call that waits for another process has no
parts: while the main thread is in one, a watching thread hears of signals and aborts the group, so that the
call returns and Python raises KeyboardInterrupt."""

from __future__ import annotations

import os
import signal
import threading
from types import TracebackType
from typing import Callable, Optional

_lock = threading.Lock()
_watcher_of: Optional[int] = None  # the process whose watcher runs: a forked child has none
_pipe: tuple[int, int] = (-1, -1)
_abort: Optional[Callable[[], object]] = None
_previous = -1


def _watch(reader: int) -> None:
    while True:
        for number in os.read(reader, 64):
            abort, previous = _abort, _previous
            if previous >= 0:
                try:
                    os.write(previous, bytes([number]))
                except OSError:
                    pass  # the loop that it belonged to has ended
            if number == signal.SIGINT and abort is not None and _handles_interrupts():
                abort()


def _handles_interrupts() -> bool:
    return callable(signal.getsignal(signal.SIGINT))


def _start() -> None:
    global _watcher_of, _pipe
    with _lock:
        if _watcher_of == os.getpid():
            return
        _pipe = os.pipe()
        os.set_blocking(_pipe[1], False)
        threading.Thread(target=_watch, args=(_pipe[0],), name="ds-signals", daemon=True).start()
        _watcher_of = os.getpid()


class interruptible:
    """While the block runs on the main thread, Ctrl-C calls `abort`; None: nothing special."""

    def __init__(self, abort: Optional[Callable[[], object]]) -> None:
        main = abort is not None and threading.current_thread() is threading.main_thread()
        self.abort = abort if main else None

    def __enter__(self) -> None:
        global _abort, _previous
        if self.abort is not None:
            _start()
            _previous = signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)
            _abort = self.abort

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        global _abort
        if self.abort is not None:
            _abort = None
            signal.set_wakeup_fd(_previous)
