"""Trains a torch.nn.Module: PyTorch computes losses and gradients, the engine does the rest."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

import torch

from . import config as _config
from ._comm import Comm
from ._core import Document, PathLike, document_or_file
from ._engine import Engine
from ._gather import Gatherer
from ._model import Model, Parameter
from ._structs import StepReport
from ._tensor import from_dlpack

_BUFFERS = "torch.buffers"


class ModuleEngine(Engine):
    """A `torch.nn.Module` under an engine, from `ds.initialize(model=module, config=...)`.

        engine, *_ = ds.initialize(model=module, config=config)
        for x, y in batches:
            loss = loss_function(engine(x), y)
            engine.backward(loss)
            engine.step()

    The module's parameters are cast to the type of the configuration's precision, receive every update in
    their own memory, and start everywhere from rank 0's values. At ZeRO stage 3 with several processes
    a submodule's parameters are gathered while its forward or backward runs and are placeholders
    otherwise: `engine.scope([...])` shows whole values, `engine.get_values` copies.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        config: Document | PathLike,
        *,
        comm: Optional[Comm] = None,
        model_parameters: Optional[Iterable[Any]] = None,
        **given: Any,
    ) -> None:
        text = document_or_file(config)
        world = 1 if comm is None else comm.size
        resolved = _config.check(text, world=world, **given)["config"] or {}
        self.torch_module = module
        _cast(module, resolved)
        groups = _groups(model_parameters)
        self._named = _named(module)
        if world > 1 and comm is not None:
            _same_everywhere(module, comm)
        stage = (resolved.get("zero_optimization") or {}).get("stage", 0)
        gathers = stage == 3 and world > 1
        model = Model.from_parameters(
            _describe(parameter, name, aliases, groups, lend=not gathers)
            for name, (parameter, aliases) in self._named.items()
        )
        super().__init__(model, _with_groups(text, groups), comm=comm, **given)
        self._parameters = [parameter for parameter, _ in self._named.values()]
        self._trains = [bool(entry["trainable"]) for entry in model.parameters()]
        self._gatherer = None
        if gathers:
            self._gatherer = Gatherer(self, module, self._parameters, self._trains)
        self._views = [] if gathers else self._view_gradients(world)

    def _view_gradients(self, world: int) -> list[Optional[torch.Tensor]]:
        """Gradients that PyTorch adds to where the engine keeps them, where the types are the same."""
        if world > 1:
            return [None] * len(self._parameters)
        views: list[Optional[torch.Tensor]] = []
        for index, parameter in enumerate(self._parameters):
            view = None
            if self._trains[index]:
                tensor = self.view_gradient(index)
                if f"torch.{tensor.dtype}" == str(parameter.dtype) and tensor.device == "cpu":
                    view = torch.from_dlpack(tensor)
            views.append(view)
            parameter.grad = view
        return views

    @property
    def module(self) -> torch.nn.Module:
        return self.torch_module

    # ---- Steps ---------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **named: Any) -> Any:  # type: ignore[override]
        """The module's own forward."""
        if self._gatherer is None:
            return self.torch_module(*inputs, **named)
        with self._gatherer.forward():
            return self.torch_module(*inputs, **named)

    __call__ = forward  # type: ignore[assignment]

    def backward(self, loss: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """Gradients of a loss (one number, the mean over a micro batch), which join those of the open
        step: multiplied by the loss scale, divided by gradient_accumulation_steps."""
        info = self.info
        self.set_loss(loss.item())
        scale = info.loss_scale / info.accumulation_steps
        scaled = loss if scale == 1.0 else loss * scale
        if self._gatherer is not None:
            with self._gatherer.backward():
                scaled.backward()  # type: ignore[no-untyped-call]
            return loss
        scaled.backward()  # type: ignore[no-untyped-call]
        self._collect()
        return loss

    def _collect(self) -> None:
        """Hands over the gradients that do not lie in the engine's memory."""
        given = {}
        for index, (parameter, view) in enumerate(zip(self._parameters, self._views)):
            gradient = parameter.grad  # once: PyTorch looks it up each time
            if gradient is not view and gradient is not None:
                if self._trains[index]:
                    given[index] = gradient
                parameter.grad = view
        if given:
            self.add_gradients(given)

    def train(self, mode: bool = True) -> ModuleEngine:  # type: ignore[override]
        """Sets the module's mode, as torch.nn.Module.train does."""
        self.torch_module.train(mode)
        return self

    def eval(self) -> ModuleEngine:
        """The module's mode for evaluation."""
        return self.train(False)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """The module's parameters."""
        return self.torch_module.parameters()

    def zero_grad(self) -> None:
        """Gives up the open step's gradients. `step` clears them by itself."""
        self.discard_gradients()

    # ---- Checkpoints ---------------------------------------------------------------------------

    def save(self, folder: PathLike, tag: Optional[str] = None) -> None:
        """Saves everything a bitwise resume needs, the module's buffers included."""
        buffers = {name: buffer for name, buffer in self.torch_module.named_buffers()}
        content = io.BytesIO()
        torch.save(buffers, content)
        self.set_blob(_BUFFERS, content.getvalue() if buffers else None)
        super().save(folder, tag)

    def load(self, folder: PathLike, tag: Optional[str] = None, **given: Any) -> None:
        """Loads a checkpoint; the module's parameters and buffers have its values."""
        super().load(folder, tag, **given)
        if self._gatherer is None:
            self._views = self._view_gradients(self.world_size)
        if _BUFFERS in self.blobs():
            saved = torch.load(io.BytesIO(self.blob(_BUFFERS)), weights_only=True)
            present = dict(self.torch_module.named_buffers())
            for name, value in saved.items():
                if name in present:
                    present[name].copy_(value)

    def close(self) -> None:
        """Ends the engine; the module keeps its values, at stage 3 placeholders."""
        for parameter, view in zip(self._parameters, self._views):
            if parameter.grad is view:
                parameter.grad = None
        self._views = []
        if self._gatherer is not None:
            self._gatherer.close()
        super().close()

    def step(self) -> StepReport:
        """Ends a micro batch; at an accumulation boundary updates the module's parameters."""
        return super().step()


def _cast(module: torch.nn.Module, resolved: Mapping[str, Any]) -> None:
    """DeepSpeed's rule: the module computes in the precision of the configuration."""
    for section, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if (resolved.get(section) or {}).get("enabled") is True:
            module.to(dtype)
            return
    for name, parameter in module.named_parameters():
        if parameter.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise TypeError(f"parameter {name} is {parameter.dtype}: cast it to float32")


def _named(module: torch.nn.Module) -> dict[str, tuple[torch.nn.Parameter, list[str]]]:
    """Parameters by their first name, with their other names."""
    first: dict[int, str] = {}
    named: dict[str, tuple[torch.nn.Parameter, list[str]]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            named[first[id(parameter)]][1].append(name)
        else:
            first[id(parameter)] = name
            named[name] = (parameter, [])
    return named


def _same_everywhere(module: torch.nn.Module, comm: Comm) -> None:
    with torch.no_grad():
        for values in (*module.parameters(), *module.buffers()):
            packed = values.detach().contiguous()
            comm.broadcast(from_dlpack(packed), root=0)
            if packed.data_ptr() != values.data_ptr():
                values.copy_(packed)


class _Groups:
    """What `model_parameters` says: which parameters train, and DeepSpeed's groups of them."""

    def __init__(self) -> None:
        self.of: dict[int, Optional[str]] = {}
        self.settings: list[dict[str, Any]] = []


def _groups(model_parameters: Optional[Iterable[Any]]) -> Optional[_Groups]:
    if model_parameters is None:
        return None
    groups = _Groups()
    for number, item in enumerate(model_parameters):
        if not isinstance(item, Mapping):
            groups.of[id(item)] = None
            continue
        name = str(item.get("name", f"group{number}"))
        groups.settings.append(
            {"name": name, **{k: v for k, v in item.items() if k not in ("params", "name")}}
        )
        members = item["params"]
        for parameter in [members] if isinstance(members, torch.Tensor) else members:
            groups.of[id(parameter)] = name
    return groups


def _with_groups(text: str, groups: Optional[_Groups]) -> str:
    """The configuration with the groups of `model_parameters` in its optimizer's param_groups."""
    if groups is None or not groups.settings:
        return text
    import json

    document = json.loads(text)
    optimizer = document.setdefault("optimizer", {})
    optimizer["param_groups"] = [*optimizer.get("param_groups", []), *groups.settings]
    return json.dumps(document)


def _describe(
    parameter: torch.nn.Parameter,
    name: str,
    aliases: list[str],
    groups: Optional[_Groups],
    *,
    lend: bool,
) -> Parameter:
    trains = parameter.requires_grad and (groups is None or id(parameter) in groups.of)
    return Parameter(
        name,
        value=parameter.data,
        lend=lend,
        alias=aliases[0] if aliases else None,
        group=None if groups is None else groups.of.get(id(parameter)),
        frozen=not trains,
    )


