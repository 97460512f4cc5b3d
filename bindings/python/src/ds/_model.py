"""Models: architecture and weights."""

from __future__ import annotations

import array
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

from . import _native
from ._core import (
    Document,
    Handle,
    PathLike,
    device_name,
    document_or_file,
    dtype_code,
    options,
    path_text,
)
from ._structs import ModelInfo, ParameterInfo
from ._tensor import Tensor, asarray, in_order, stream_address

ParameterKey = Union[int, str]
"""A parameter: its index in the model, or its name."""


@dataclass
class Parameter:
    """One parameter of a program that computes its own gradients (ds_parameter)."""

    name: str
    """Unlike all others."""
    value: Any = None
    """First value, an array of float32, bfloat16 or float16; None: zeros of `shape`."""
    shape: Optional[Sequence[int]] = None
    """The whole tensor's; None: that of `value`."""
    dtype: Any = None
    """Type in which the program holds it; None: that of `value`, else float32."""
    lend: bool = False
    """`value` receives every new value, in its own memory and type."""
    group: Optional[str] = None
    """Of the optimizer's param_groups; None: the default one."""
    alias: Optional[str] = None
    """Another name of the same tensor (tied weights)."""
    frozen: bool = False
    """Never updated, takes no gradient."""
    no_decay: bool = False
    """Weight decay does not apply."""
    expert: Optional[int] = None
    """Index of the expert that it belongs to."""


def _native_parameter(parameter: Parameter, kept: list[Any]) -> Any:
    """The C struct; what it points to is put into `kept`."""
    spec = _native.ds_parameter()
    spec.name = parameter.name
    shape = parameter.shape
    if parameter.value is not None:
        value = asarray(parameter.value)
        spec.value = value._handle
        shape = value.shape if shape is None else shape
        kept.append(value)
    if shape is None:
        raise ValueError(f"parameter {parameter.name!r} has neither a value nor a shape")
    sizes = array.array("q", shape)
    spec.shape = sizes
    spec.ndim = len(sizes)
    if parameter.dtype is not None:
        spec.dtype = dtype_code(parameter.dtype)
    spec.group, spec.alias = parameter.group, parameter.alias
    spec.lend, spec.frozen = int(parameter.lend), int(parameter.frozen)
    spec.no_decay = int(parameter.no_decay)
    if parameter.expert is not None:
        spec.has_expert, spec.expert = 1, parameter.expert
    kept.extend((sizes, parameter))
    return spec


class Model(Handle):
    """Architecture and weights.

    `Model(config, seed)` makes a model with fresh weights from a Hugging Face config.json (a dict, its
    text or its path); `Model.open` reads a Hugging Face folder or a checkpoint;
    `Model.from_parameters` takes parameters of your own. Parameters are addressed by index or name.
    """

    _destroy = _native.ds_model_destroy
    _stream: Optional[int] = None  # of set_stream

    def __init__(self, config: Union[Document, PathLike], seed: int = 0) -> None:
        super().__init__(_native.ds_model_create(document_or_file(config), seed))

    @classmethod
    def _of(cls, handle: Any) -> Model:
        model = cls.__new__(cls)
        Handle.__init__(model, handle)
        return model

    @classmethod
    def open(
        cls,
        folder: PathLike,
        *,
        config: Optional[Mapping[str, Any]] = None,
        head_seed: Optional[int] = None,
    ) -> Model:
        """Weights of a folder: Hugging Face, or a checkpoint of `Engine.save`.

        `config` replaces members of config.json; with `head_seed` parameters of the head that the files
        lack start fresh."""
        given = options(config=None if config is None else dict(config), head_seed=head_seed)
        return cls._of(_native.ds_model_open(path_text(folder), given))

    @classmethod
    def from_parameters(
        cls, parameters: Union[Mapping[str, Any], Iterable[Parameter]]
    ) -> Model:
        """A model of your own parameters, without a forward pass: a mapping of names to first values, or
        `Parameter` objects. Arrays that are lent (`Parameter.lend`) are kept and written to."""
        if isinstance(parameters, Mapping):
            parameters = [Parameter(name, value) for name, value in parameters.items()]
        kept: list[Any] = []
        specs = [_native_parameter(parameter, kept) for parameter in parameters]
        return cls._of(_native.ds_model_create_from_parameters(specs, len(specs)))

    def copy(self) -> Model:
        """A second model of the same weights, which shares nothing with this one: to generate, evaluate or
        export while an engine trains this one on."""
        return Model._of(_native.ds_model_copy(self._handle))

    # ---- What it is ----------------------------------------------------------------------------

    @property
    def info(self) -> ModelInfo:
        return ModelInfo._make(_native.ds_model_describe(self._handle))

    @property
    def config(self) -> Any:
        """The architecture as a config.json; None for parameters of one's own."""
        return json.loads(_native.ds_model_config(self._handle))

    @property
    def device(self) -> str:
        return device_name(self.info.device_kind, self.info.device_index)

    def to(self, device: str) -> Model:
        """Moves the weights to "cpu" or to a GPU such as "cuda:0"; the model itself."""
        _native.ds_model_set_device(self._handle, device)
        return self

    def set_stream(self, stream: Any) -> None:
        """Orders the work on the model's GPU with a CUDA stream, both ways, in place of waits of the host: a
        `torch.cuda.Stream`, anything with `cuda_stream` or `ptr`, or an address; 0 is CUDA's default stream. None
        ends it. The stream must outlive the model and its engine. Arrays of a GPU that are given to `set` or, by
        its engine, to `add_gradients` and `set_values` are taken in its order, too."""
        address = stream_address(stream)
        _native.ds_model_set_stream(self._handle, address)
        self._stream = address

    # ---- Parameters ----------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of parameters (tensors), tied ones once."""
        return self.info.parameters

    def index(self, parameter: ParameterKey) -> int:
        """Index of a parameter by its name, that of a tied tensor, or the one in Hugging Face files."""
        if isinstance(parameter, int):
            return parameter
        return int(_native.ds_model_parameter_index(self._handle, parameter))

    def name(self, parameter: int) -> str:
        """Name of a parameter."""
        return str(_native.ds_model_parameter_name(self._handle, parameter))

    def names(self) -> list[str]:
        """Names of all parameters, in their order."""
        return [str(parameter["name"]) for parameter in self.parameters()]

    def describe(self, parameter: ParameterKey) -> ParameterInfo:
        """Shape and properties of a parameter."""
        return ParameterInfo._make(
            _native.ds_model_parameter_describe(self._handle, self.index(parameter))
        )

    def parameters(self) -> list[dict[str, Any]]:
        """All parameters in their order: "name", "shape", "dtype", "trainable", "decays", "group",
        "aliases"."""
        result: list[dict[str, Any]] = json.loads(_native.ds_model_parameters(self._handle))
        return result

    def get(self, parameter: ParameterKey) -> Tensor:
        """A copy of a parameter in float32: the master where an engine keeps one."""
        return Tensor._of(_native.ds_model_get_parameter(self._handle, self.index(parameter)))

    def set(self, parameter: ParameterKey, value: Any) -> None:
        """Sets a parameter, and its master, from float32 numbers of its shape."""
        source = asarray(in_order(value, self._stream), dtype="float32")
        _native.ds_model_set_parameter(self._handle, self.index(parameter), source._handle)

    def view(self, parameter: ParameterKey) -> Tensor:
        """A parameter's memory as the model computes with it, without a copy. Views of float32 masters are
        writable, others read-only; take them again after an engine was made, has loaded or has ended."""
        return Tensor._of(_native.ds_model_view_parameter(self._handle, self.index(parameter)))

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of all parameters in float32, by name."""
        return {name: self.get(index) for index, name in enumerate(self.names())}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Sets parameters by name; all of them must be the model's."""
        for name, value in values.items():
            self.set(name, value)

    def freeze(self, pattern: str = "*") -> None:
        """Freezes parameters by name: `*` is any text, `?` one character."""
        _native.ds_model_set_trainable(self._handle, pattern, 0)

    def unfreeze(self, pattern: str = "*") -> None:
        """Lets frozen parameters train again."""
        _native.ds_model_set_trainable(self._handle, pattern, 1)

    # ---- Low-rank adapters ---------------------------------------------------------------------

    def add_lora(self, target_modules: Union[str, Sequence[str]], **given: Any) -> None:
        """Adds low-rank adapters to the modules named so (ends of names, or "all-linear") and freezes
        everything else. Keywords with defaults: r=8, lora_alpha=8, lora_dropout=0.0, use_rslora=False,
        seed=0."""
        targets = target_modules if isinstance(target_modules, str) else list(target_modules)
        _native.ds_model_add_lora(self._handle, options(target_modules=targets, **given))

    def merge_lora(self) -> None:
        """Adds the adapters' products to the weights and removes the adapters."""
        _native.ds_model_merge_lora(self._handle)

    def save_adapter(self, folder: PathLike, dtype: Any = "float32") -> None:
        """Writes the adapters alone in PEFT's layout."""
        _native.ds_model_save_adapter(self._handle, path_text(folder), dtype_code(dtype))

    def load_adapter(self, folder: PathLike) -> None:
        """Reads adapters in PEFT's layout onto the model they were made for, and freezes the rest."""
        _native.ds_model_load_adapter(self._handle, path_text(folder))

    # ---- Writing -------------------------------------------------------------------------------

    def save(self, folder: PathLike, tag: Optional[str] = None) -> None:
        """Writes a checkpoint of the weights alone, which `Model.open` reads."""
        _native.ds_model_save(self._handle, path_text(folder), tag)

    def export(
        self, folder: PathLike, dtype: Any = "float32", *, max_shard_bytes: int = 0
    ) -> None:
        """Writes config.json and model.safetensors so that Transformers loads them."""
        _native.ds_model_export(
            self._handle, path_text(folder), dtype_code(dtype), max_shard_bytes
        )

    def __repr__(self) -> str:
        if self.closed:
            return "ds.Model(closed)"
        info = self.info
        config = self.config
        kind = config.get("model_type", "?") if isinstance(config, dict) else "own parameters"
        return (
            f"ds.Model({kind}: {info.elements:,} numbers in {info.parameters} parameters, "
            f"{info.trainable_elements:,} trainable, {self.device})"
        )
