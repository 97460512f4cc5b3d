"""ds: train language models. The library libds for Python.

    import ds

    model = ds.Model({"model_type": "gpt2", "vocab_size": 256, "n_positions": 64,
                      "n_embd": 64, "n_layer": 2, "n_head": 4}, seed=1)
    engine = ds.Engine(model, {"train_micro_batch_size_per_gpu": 8,
                               "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}})
    engine.set_dataset(ds.Dataset(path="book.txt", sequence_length=64))
    for report in engine.train(100, progress=True):
        pass
    engine.save("out")

Users of DeepSpeed begin with `ds.initialize(model=..., config=...)`. docs/python.md has the rest.
"""

from __future__ import annotations

import json as _json
from typing import Any as _Any

from . import _native, checkpoint, config, experts
from ._comm import Comm, Store, Work
from ._dataset import Dataset, build_dataset, merge_datasets
from ._engine import Engine
from ._errors import (
    AbortedError,
    CallbackError,
    CommError,
    ConfigError,
    CorruptError,
    DeviceError,
    Error,
    FileError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfMemoryError,
    StateError,
    UnsupportedError,
)
from ._generator import Generator
from ._initialize import (
    InferenceEngine,
    LrScheduler,
    add_config_arguments,
    init_distributed,
    init_inference,
    initialize,
)
from ._io import FileIO
from ._log import log_to, set_log, set_log_level
from ._model import Model, Parameter
from ._optimizer import Optimizer
from ._plot import plot, read_metrics
from ._scope import Scope
from ._structs import (
    CommInfo,
    DatasetInfo,
    EngineInfo,
    GeneratorInfo,
    IoInfo,
    ModelInfo,
    OptimizerInfo,
    ParameterInfo,
    StepReport,
    TensorInfo,
    TokenizerInfo,
)
from ._tensor import (
    Tensor,
    asarray,
    dequantize,
    dequantize_groups,
    fake_quantize,
    flatten,
    from_dlpack,
    merge_heads,
    pinned,
    quantize,
    quantize_groups,
    softmax,
    softmax_backward,
    split_heads,
    unflatten,
    zeros,
)
from ._tokenizer import Tokenizer
from .config import plan

__version__: str = _native.ds_version()


def report() -> dict[str, _Any]:
    """The build and the machine: version, compiler, options, CPU features and kernels chosen, devices."""
    document: dict[str, _Any] = _json.loads(_native.ds_report())
    return document


def memory_report() -> dict[str, _Any]:
    """What this process holds: bytes of the library's memory by tag and by device, the process's, the
    system's."""
    document: dict[str, _Any] = _json.loads(_native.ds_memory_report())
    return document


__all__ = [
    "AbortedError",
    "CallbackError",
    "Comm",
    "CommError",
    "CommInfo",
    "ConfigError",
    "CorruptError",
    "Dataset",
    "DatasetInfo",
    "DeviceError",
    "Engine",
    "EngineInfo",
    "Error",
    "FileError",
    "FileIO",
    "Generator",
    "GeneratorInfo",
    "InferenceEngine",
    "InternalError",
    "InvalidArgumentError",
    "IoInfo",
    "LrScheduler",
    "Model",
    "ModelInfo",
    "NotFoundError",
    "Optimizer",
    "OptimizerInfo",
    "OutOfMemoryError",
    "Parameter",
    "ParameterInfo",
    "Scope",
    "StateError",
    "StepReport",
    "Store",
    "Tensor",
    "TensorInfo",
    "Tokenizer",
    "TokenizerInfo",
    "UnsupportedError",
    "Work",
    "add_config_arguments",
    "asarray",
    "build_dataset",
    "checkpoint",
    "config",
    "dequantize",
    "dequantize_groups",
    "experts",
    "fake_quantize",
    "flatten",
    "from_dlpack",
    "init_distributed",
    "init_inference",
    "initialize",
    "log_to",
    "memory_report",
    "merge_datasets",
    "merge_heads",
    "pinned",
    "plan",
    "plot",
    "quantize",
    "quantize_groups",
    "read_metrics",
    "report",
    "set_log",
    "set_log_level",
    "softmax",
    "softmax_backward",
    "split_heads",
    "unflatten",
    "zeros",
]
