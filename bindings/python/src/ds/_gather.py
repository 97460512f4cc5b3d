"""ZeRO stage 3 for a torch.nn.Module: parameters are whole only while a submodule computes with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import torch

from ._scope import Scope

if TYPE_CHECKING:
    from ._engine import Engine


class _Saved(NamedTuple):
    """What autograd keeps in place of a gathered parameter, or of a view of one."""

    parameter: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Unit:
    """The parameters that a submodule has itself: gathered together."""

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices
        self.scope: Optional[Scope] = None
        self.users = 0
        self.waiting: set[int] = set()
        """In a backward pass: parameters whose gradients are still to come."""


class Gatherer:
    """Opens a scope of the engine around each submodule's forward, and again when autograd asks for what
    that forward has saved; hands each gradient over as soon as it is complete."""

    def __init__(
        self,
        engine: Engine,
        module: torch.nn.Module,
        parameters: Sequence[torch.nn.Parameter],
        trains: Sequence[bool],
    ) -> None:
        self._engine = engine
        self._trains = list(trains)
        self._parameters = list(parameters)
        self._index = {id(parameter): index for index, parameter in enumerate(parameters)}
        self._whole: dict[int, torch.Tensor] = {}
        self._owner: dict[int, int] = {}  # address of gathered memory: parameter
        self._units_of: dict[int, list[_Unit]] = {index: [] for index in range(len(parameters))}
        self._units: list[_Unit] = []
        self._hooks: list[Any] = []
        # One element in the shape of the parameter: NaN, so that a use of it is seen.
        self._nothing = {
            dtype: torch.full((1,), float("nan"), dtype=dtype)
            for dtype in {parameter.dtype for parameter in parameters}
        }
        for submodule in module.modules():
            self._add_unit(submodule)
        for index, parameter in enumerate(parameters):
            self._release(index)
            if parameter.requires_grad:
                self._hooks.append(
                    parameter.register_post_accumulate_grad_hook(self._on_gradient)
                )

    def _add_unit(self, submodule: torch.nn.Module) -> None:
        own = [p for p in submodule._parameters.values() if p is not None]
        if not own:
            return
        unit = _Unit(sorted({self._index[id(parameter)] for parameter in own}))
        self._units.append(unit)
        for index in unit.indices:
            self._units_of[index].append(unit)

        def before(_module: torch.nn.Module, _inputs: Any) -> None:
            self._open(unit)

        def after(_module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
            self._close(unit)

        self._hooks.append(submodule.register_forward_pre_hook(before))
        self._hooks.append(submodule.register_forward_hook(after, always_call=True))

    # ---- Scopes --------------------------------------------------------------------------------

    def _open(self, unit: _Unit) -> None:
        unit.users += 1
        if unit.users > 1:
            return
        unit.scope = self._engine.scope(unit.indices)
        for index, tensor in zip(unit.indices, unit.scope.tensors()):
            if index not in self._whole:
                whole = torch.from_dlpack(tensor)
                self._whole[index] = whole
                self._owner[whole.untyped_storage().data_ptr()] = index
                self._parameters[index].data = whole

    def _close(self, unit: _Unit) -> None:
        unit.users -= 1
        if unit.users > 0 or unit.scope is None:
            return
        for index in unit.indices:
            if not any(other.users > 0 for other in self._units_of[index]):
                self._release(index)
        unit.scope.end()
        unit.scope.close()
        unit.scope = None

    def _release(self, index: int) -> None:
        whole = self._whole.pop(index, None)
        if whole is not None:
            del self._owner[whole.untyped_storage().data_ptr()]
        parameter = self._parameters[index]
        parameter.data = self._nothing[parameter.dtype].expand(parameter.shape)

    # ---- What autograd saves -------------------------------------------------------------------

    def _pack(self, tensor: torch.Tensor) -> Any:
        address = tensor.untyped_storage().data_ptr()
        index = self._owner.get(address)
        if index is not None:
            return _Saved(index, tensor.size(), tensor.stride(), tensor.storage_offset())
        if any(address == nothing.data_ptr() for nothing in self._nothing.values()):
            raise RuntimeError(
                "a parameter was used outside the forward of the submodule that owns it, where ZeRO "
                "stage 3 has not gathered it: compute with it inside that forward, or give the "
                "submodule that uses it the parameter as an attribute"
            )
        return tensor

    def _unpack(self, saved: Any) -> torch.Tensor:
        if not isinstance(saved, _Saved):
            result: torch.Tensor = saved
            return result
        if saved.parameter not in self._whole:
            unit = self._units_of[saved.parameter][0]
            self._open(unit)
            unit.waiting = {i for i in unit.indices if self._parameters[i].requires_grad}
        return torch.as_strided(
            self._whole[saved.parameter], saved.size, saved.stride, saved.offset
        )

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        index = self._index[id(parameter)]
        gradient, parameter.grad = parameter.grad, None
        if self._trains[index]:
            self._engine.add_gradients({index: gradient})
        for unit in self._units_of[index]:
            if index in unit.waiting:
                unit.waiting.discard(index)
                if not unit.waiting:
                    self._close(unit)

    # ---- Passes --------------------------------------------------------------------------------

    @contextmanager
    def forward(self) -> Iterator[None]:
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield

    @contextmanager
    def backward(self) -> Iterator[None]:
        try:
            yield
        finally:
            for unit in self._units:  # those without gradients, and all after an error
                unit.waiting = set()
                if unit.users > 0:
                    unit.users = 1
                    self._close(unit)

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
