"""Scopes: parameters of an engine made whole for a while."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from . import _native
from ._core import Handle
from ._tensor import Tensor

MODES = {
    "compute": _native.DS_SCOPE_COMPUTE,
    "modify": _native.DS_SCOPE_MODIFY,
    "no_sync": _native.DS_SCOPE_NO_SYNC,
}


class Scope(Handle):
    """What holds until the scope ends: parameters that are whole in this process, at every ZeRO
    stage, or gradients that are not averaged over processes.

    From `Engine.scope` and `Engine.no_sync`. As a block:

        with engine.scope(["wte.weight"]) as (weight,):            # to compute with, read-only
            ...
        with engine.scope(["wte.weight"], "modify", root=0) as (weight,):  # rank 0 may change it
            ...

    The end of a block of mode "modify" commits what rank `root` has; an exception drops it.
    """

    _destroy = _native.ds_scope_destroy

    def __init__(self, handle: Any, parameters: Sequence[int], mode: str, root: int) -> None:
        super().__init__(handle)
        self.parameters = tuple(parameters)
        """Indices in the model."""
        self.mode = mode
        self._root = root

    def tensor(self, position: int) -> Tensor:
        """The whole values of the parameter at a position of the list that opened the scope."""
        return Tensor._of(_native.ds_scope_tensor(self._handle, position))

    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in order."""
        return tuple(self.tensor(position) for position in range(len(self.parameters)))

    def __iter__(self) -> Any:
        return iter(self.tensors())

    def __len__(self) -> int:
        return len(self.parameters)

    def commit(self, root: Optional[int] = None) -> None:
        """Ends a scope of mode "modify": what process `root` has becomes the value everywhere."""
        _native.ds_scope_commit(self._handle, self._root if root is None else root)

    def end(self) -> None:
        """Ends the scope, with changes dropped; every process calls it in mode "modify"."""
        _native.ds_scope_close(self._handle)

    def __exit__(self, *raised: object) -> None:
        if self.closed:
            return
        kind = raised[0]
        try:
            if kind is None and self.mode == "modify":
                self.commit()
            elif kind is None:
                self.end()
        finally:
            self.close()

    def __repr__(self) -> str:
        if self.closed:
            return "ds.Scope(closed)"
        return f"ds.Scope(mode={self.mode!r}, parameters={list(self.parameters)})"
