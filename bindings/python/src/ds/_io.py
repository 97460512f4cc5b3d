"""Files read and written beside the program, and memory that suits that."""

from __future__ import annotations

import os
from typing import Any, Optional, Union

from . import _native
from ._core import Handle, PathLike, options, path_text
from ._structs import IoInfo
from ._tensor import Tensor, asarray

BACKENDS = {
    _native.DS_IO_URING: "io_uring",
    _native.DS_IO_LIBAIO: "libaio",
    _native.DS_IO_THREADS: "threads",
}
Place = Union[PathLike, int]
"""A path, or the descriptor of an open file, which stays the caller's."""


def _fill(place: Place, tensor: Tensor, offset: int, write: bool, whole: bool) -> Any:
    """The C struct of a transfer, which keeps no Python object: `tensor` and the path must live on."""
    transfer = _native.ds_io_transfer()
    if isinstance(place, int):
        transfer.descriptor = place
    else:
        transfer.path = place
    transfer.tensor = tensor._handle
    transfer.offset = offset
    transfer.write = int(write)
    transfer.whole_file = int(whole)
    return transfer


class FileIO(Handle):
    """Reads and writes of files that go on beside the program, past the page cache where the file system
    allows that. Reads and writes have threads and queues of their own.

    The keys are those of the configuration's `aio`; `backend` is "auto", "io_uring", "libaio" or
    "threads". `validate` compares what was moved with what the file holds; `checksum` remembers checksums of
    what was written, by which what is read is checked. Any thread may use one, and none holds the
    interpreter while it waits.
    """

    _destroy = _native.ds_io_destroy

    def __init__(
        self,
        *,
        block_size: Optional[int] = None,
        queue_depth: Optional[int] = None,
        intra_op_parallelism: Optional[int] = None,
        single_submit: Optional[bool] = None,
        overlap_events: Optional[bool] = None,
        use_gds: Optional[bool] = None,
        backend: Optional[str] = None,
        validate: Optional[bool] = None,
        checksum: Optional[bool] = None,
    ) -> None:
        given = options(
            block_size=block_size,
            queue_depth=queue_depth,
            intra_op_parallelism=intra_op_parallelism,
            single_submit=single_submit,
            overlap_events=overlap_events,
            use_gds=use_gds,
            backend=backend,
            validate=validate,
            checksum=checksum,
        )
        super().__init__(_native.ds_io_create(given))

    @property
    def info(self) -> IoInfo:
        return IoInfo._make(_native.ds_io_describe(self._handle))

    @property
    def backend(self) -> str:
        """What was chosen: "io_uring", "libaio" or "threads"."""
        return BACKENDS.get(self.info.backend, "unknown")

    def _transfer(
        self, function: Any, place: Place, values: Any, offset: int, write: bool, whole: bool
    ) -> Any:
        tensor = asarray(values)
        named = place if isinstance(place, int) else path_text(os.fspath(place))
        return function(self._handle, _fill(named, tensor, offset, write, whole))

    def read(self, place: Place, into: Any, offset: int = 0) -> None:
        """Fills an array or tensor from `offset` of a file on."""
        self._transfer(_native.ds_io_run, place, into, offset, False, False)

    def write(self, place: Place, values: Any, offset: int = 0) -> None:
        """Writes an array or tensor at `offset` of a file, which is made where there is none."""
        self._transfer(_native.ds_io_run, place, values, offset, True, False)

    def read_file(self, place: Place, into: Any) -> None:
        """Fills an array or tensor that has the size of a whole file."""
        self._transfer(_native.ds_io_run, place, into, 0, False, True)

    def write_file(self, place: Place, values: Any) -> None:
        """Makes a file of an array or tensor, and of nothing else."""
        self._transfer(_native.ds_io_run, place, values, 0, True, True)

    def start_read(self, place: Place, into: Any, offset: int = 0) -> int:
        """Starts `read` and returns a number to wait for. The memory is kept, and must not be touched
        until then."""
        return int(self._transfer(_native.ds_io_start, place, into, offset, False, False))

    def start_write(self, place: Place, values: Any, offset: int = 0) -> int:
        """Starts `write`, as `start_read` does."""
        return int(self._transfer(_native.ds_io_start, place, values, offset, True, False))

    def test(self, ticket: int) -> bool:
        """Whether what was started has ended, well or not."""
        return bool(_native.ds_io_test(self._handle, ticket))

    def wait(self, ticket: int = 0) -> int:
        """Waits for one number, or for all that nobody has waited for; how many have ended. Raises the
        first failure."""
        return int(_native.ds_io_wait(self._handle, ticket))

    def cancel(self) -> int:
        """Gives up what was started and has not ended; how many those were."""
        return int(_native.ds_io_cancel(self._handle))

    def __repr__(self) -> str:
        return "ds.FileIO(closed)" if self.closed else f"ds.FileIO({self.backend})"
