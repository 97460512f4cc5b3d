"""Groups of processes and their collectives."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Callable, Optional

from . import _native
from ._core import Document, Handle, dtype_code, to_json
from ._signals import interruptible
from ._structs import CommInfo
from ._tensor import Tensor, asarray

REDUCE = {
    "sum": _native.DS_REDUCE_SUM,
    "average": _native.DS_REDUCE_AVERAGE,
    "mean": _native.DS_REDUCE_AVERAGE,
    "min": _native.DS_REDUCE_MIN,
    "max": _native.DS_REDUCE_MAX,
}
KINDS = {
    name[len("DS_COLLECTIVE_") :].lower(): getattr(_native, name)
    for name in dir(_native)
    if name.startswith("DS_COLLECTIVE_") and name != "DS_COLLECTIVE_UNKNOWN"
}


def reduce_code(op: str) -> int:
    if op not in REDUCE:
        raise ValueError(f"no reduction {op!r}: known are {', '.join(REDUCE)}")
    return int(REDUCE[op])


class Store:
    """Where processes find each other, for `Comm(store=...)`: two functions of the caller.

    `put(key: str, value: bytes)` stores; `get(key: str) -> bytes` waits until the key exists, or raises
    KeyError when its own deadline passes."""

    def __init__(
        self, put: Callable[[str, bytes], object], get: Callable[[str], bytes]
    ) -> None:
        self._functions = (put, get)
        self._struct = _native.ds_store(self._functions)


class Work(Handle):
    """A collective under way. The memory of its tensors must not be touched until it is over."""

    _destroy = _native.ds_work_destroy

    def __init__(self, handle: Any, comm: Comm, tensors: tuple[Optional[Tensor], ...]) -> None:
        super().__init__(handle)
        self._comm = comm
        self._tensors = tensors

    def test(self) -> bool:
        """Whether it is over, well or not."""
        return bool(_native.ds_work_test(self._handle))

    def wait(self) -> int:
        """Waits until the result is in place; the number of processes that took part."""
        with interruptible(self._comm.abort):
            return int(_native.ds_work_wait(self._handle))

    def __repr__(self) -> str:
        if self.closed:
            return "ds.Work(closed)"
        return f"ds.Work({'over' if self.test() else 'under way'})"


class Comm(Handle):
    """A group of processes.

    `Comm()` takes rank and size from the launcher's environment (ds launch, torchrun, mpirun, srun), else it
    is rank 0 of 1. Collectives are made by every process of the group in the same order, with tensors of
    the same type: arrays of any library, changed in place. Ctrl-C on the main thread aborts the group.
    """

    _destroy = _native.ds_comm_destroy

    def __init__(
        self,
        rank: int = -1,
        size: int = -1,
        options: Optional[Document] = None,
        *,
        store: Optional[Store] = None,
    ) -> None:
        self._store = store
        native_store = None if store is None else store._struct
        super().__init__(_native.ds_comm_create(rank, size, to_json(options), native_store))
        self._told: Optional[CommInfo] = None

    @classmethod
    def _of(cls, handle: Any, parent: Comm) -> Comm:
        comm = cls.__new__(cls)
        Handle.__init__(comm, handle)
        comm._store = parent._store
        comm._told = None
        return comm

    @property
    def info(self) -> CommInfo:
        if self._told is None:
            self._told = CommInfo._make(_native.ds_comm_describe(self._handle))
        return self._told

    @property
    def rank(self) -> int:
        """This process, in [0, size)."""
        return self.info.rank

    @property
    def size(self) -> int:
        """Processes of the group."""
        return self.info.size

    @property
    def local_rank(self) -> int:
        """This process among those of its host."""
        return self.info.local_rank

    def _call(self, function: Any, *arguments: Any) -> Any:
        with interruptible(self.abort):
            return function(self._handle, *arguments)

    def all_reduce(self, tensor: Any, op: str = "sum") -> Tensor:
        """Combines a tensor of all processes in place: "sum", "average", "min" or "max"."""
        target = asarray(tensor)
        self._call(_native.ds_comm_all_reduce, target._handle, reduce_code(op))
        return target

    def reduce_scatter(self, output: Any, source: Any, op: str = "sum") -> Tensor:
        """`source` is one piece per process; the combined piece of this one lands in `output`."""
        target = asarray(output)
        self._call(
            _native.ds_comm_reduce_scatter,
            target._handle,
            asarray(source)._handle,
            reduce_code(op),
        )
        return target

    def all_gather(self, output: Any, source: Any) -> Tensor:
        """The `source` of every process, in rank order, lands in `output`."""
        target = asarray(output)
        self._call(_native.ds_comm_all_gather, target._handle, asarray(source)._handle)
        return target

    def all_to_all(self, output: Any, source: Any) -> Tensor:
        """Piece j of the `source` of process i lands in piece i of the `output` of process j."""
        target = asarray(output)
        self._call(_native.ds_comm_all_to_all, target._handle, asarray(source)._handle)
        return target

    def broadcast(self, tensor: Any, root: int = 0) -> Tensor:
        """The tensor of process `root` lands in that of every process."""
        target = asarray(tensor)
        self._call(_native.ds_comm_broadcast, target._handle, root)
        return target

    def all_reduce_coalesced(self, tensors: Sequence[Any], op: str = "sum") -> list[Tensor]:
        """`all_reduce` of many tensors of one type with one collective."""
        held = [asarray(tensor) for tensor in tensors]
        self._call(
            _native.ds_comm_all_reduce_coalesced,
            [t._handle for t in held],
            len(held),
            reduce_code(op),
        )
        return held

    def reduce_scatter_coalesced(
        self, outputs: Sequence[Any], sources: Sequence[Any], op: str = "sum"
    ) -> list[Tensor]:
        """`reduce_scatter` of many tensors of one type with one collective."""
        targets, held = _pairs(outputs, sources)
        self._call(
            _native.ds_comm_reduce_scatter_coalesced,
            [t._handle for t in targets],
            [t._handle for t in held],
            len(held),
            reduce_code(op),
        )
        return targets

    def all_gather_coalesced(
        self, outputs: Sequence[Any], sources: Sequence[Any]
    ) -> list[Tensor]:
        """`all_gather` of many tensors of one type with one collective."""
        targets, held = _pairs(outputs, sources)
        self._call(
            _native.ds_comm_all_gather_coalesced,
            [t._handle for t in targets],
            [t._handle for t in held],
            len(held),
        )
        return targets

    def start(
        self,
        kind: str,
        output: Any = None,
        source: Any = None,
        *,
        op: str = "sum",
        root: int = 0,
        tag: int = 0,
        output_counts: Optional[Sequence[int]] = None,
        input_counts: Optional[Sequence[int]] = None,
        label: Optional[str] = None,
        timeout: float = 0.0,
        average_over_participants: bool = False,
    ) -> Work:
        """Starts a collective and returns; `wait` of the result tells its end.

        `kind`: "all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all",
        "gather", "scatter", "send", "recv" or "barrier", as ds_collective_code describes them;
        `timeout` in seconds, 0: the group's."""
        import array

        if kind not in KINDS:
            raise ValueError(f"no collective {kind!r}: known are {', '.join(KINDS)}")
        target = None if output is None else asarray(output)
        held = None if source is None else asarray(source)
        spec = _native.ds_collective()
        spec.kind = KINDS[kind]
        spec.op = reduce_code(op)
        spec.output = None if target is None else target._handle
        spec.input = None if held is None else held._handle
        spec.root, spec.tag = root, tag
        # The struct points into these arrays, which live until the call is over.
        counts = [None if c is None else array.array("q", c) for c in (output_counts, input_counts)]
        spec.output_counts, spec.input_counts = counts
        spec.label = label
        spec.timeout_ms = int(timeout * 1000)
        spec.average_over_participants = int(average_over_participants)
        return Work(_native.ds_comm_start(self._handle, spec), self, (target, held))

    def shared_tensor(self, shape: Sequence[int], dtype: Any = "float32") -> Tensor:
        """Zeros in memory that the processes of a host share, for collectives without a copy."""
        sizes = tuple(shape)
        return Tensor._of(
            self._call(_native.ds_comm_shared_tensor, dtype_code(dtype), sizes, len(sizes))
        )

    def split(self, color: int, key: int = 0) -> Optional[Comm]:
        """Processes of the same color form a new group, ordered by key; None for a negative color."""
        handle = self._call(_native.ds_comm_split, color, key)
        return None if handle is None else Comm._of(handle, self)

    def join(self) -> None:
        """For a process that runs out of work: answers what others still call until all have called it."""
        self._call(_native.ds_comm_join)

    def barrier(self) -> None:
        """Waits until every process has called it."""
        self._call(_native.ds_comm_barrier)

    def finalize(self) -> None:
        """Ends the group together; afterwards only `close` is allowed."""
        self._call(_native.ds_comm_finalize)

    def abort(self) -> None:
        """Makes every pending and later operation of the group fail, here and elsewhere, from any thread."""
        _native.ds_comm_abort(self._handle)

    def report(self) -> dict[str, Any]:
        """Rank, size, transport, topology and traffic."""
        result: dict[str, Any] = json.loads(_native.ds_comm_report(self._handle))
        return result

    def __repr__(self) -> str:
        return "ds.Comm(closed)" if self.closed else f"ds.Comm(rank={self.rank}, size={self.size})"


def _pairs(outputs: Sequence[Any], sources: Sequence[Any]) -> tuple[list[Tensor], list[Tensor]]:
    if len(outputs) != len(sources):
        raise ValueError(f"{len(outputs)} outputs for {len(sources)} sources")
    return [asarray(o) for o in outputs], [asarray(s) for s in sources]


def comm_from_environment() -> Optional[Comm]:
    """The group of the launcher (ds launch, torchrun, mpirun, srun); None where this process is alone."""
    sizes = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
    if all(os.environ.get(name, "1") in ("", "1") for name in sizes):
        return None
    comm = Comm()
    if comm.size > 1:
        return comm
    comm.close()
    return None
