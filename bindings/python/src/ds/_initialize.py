"""The entry points by which users of DeepSpeed begin."""

from __future__ import annotations

from argparse import ArgumentParser
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

from ._comm import Comm, comm_from_environment
from ._core import Document, PathLike
from ._dataset import Dataset
from ._engine import Engine
from ._generator import Generator
from ._model import Model
from ._tensor import Tensor, asarray
from ._tokenizer import Tokenizer

_WEIGHTS = {"float32": "fp32", "bfloat16": "bf16", "int8": "int8", "int4": "int4"}


class LrScheduler:
    """The configuration's schedule. The engine advances it with every step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get_lr(self) -> list[float]:
        """Learning rates of the next step, one per parameter group."""
        return self._engine.get_lr()

    def get_last_lr(self) -> list[float]:
        return self._engine.get_lr()

    def step(self, *_: Any) -> None:
        """Nothing: `Engine.step` advances the schedule."""

    def __repr__(self) -> str:
        return f"ds.LrScheduler(lr={self.get_lr()})"


def init_distributed() -> Optional[Comm]:
    """The group of the launcher (torchrun, ds launch, mpirun, srun); None where this process is alone."""
    return comm_from_environment()


def _is_module(model: Any) -> bool:
    """Whether it is a torch.nn.Module, without importing PyTorch for that."""
    return any(kind.__module__.startswith("torch.nn.") for kind in type(model).__mro__)


def add_config_arguments(parser: ArgumentParser) -> ArgumentParser:
    """Adds `--deepspeed` and `--deepspeed_config FILE` to a script's own arguments, for launch commands
    that give them; `initialize(args, ...)` reads the second."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", action="store_true", help="accepted: the engine is always used")
    group.add_argument("--deepspeed_config", metavar="FILE", help="the configuration, a JSON file")
    return parser


def initialize(
    args: Any = None,
    model: Any = None,
    optimizer: Any = None,
    model_parameters: Optional[Iterable[Any]] = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    collate_fn: Any = None,
    config: Union[Document, PathLike, None] = None,
    config_params: Union[Document, PathLike, None] = None,
    *,
    comm: Optional[Comm] = None,
    **given: Any,
) -> tuple[Any, Any, Any, Any]:
    """Makes an engine the way DeepSpeed does: (engine, optimizer, data, lr_scheduler).

    `model` is a torch.nn.Module, which trains with PyTorch's gradients, or a `ds.Model` (or what makes
    one: a config.json), which the library runs itself. `config` is a DeepSpeed configuration: a dict, its
    text or its path, also from `args.deepspeed_config`. The group of a launcher is joined unless `comm` is
    given. `model_parameters` are the parameters that train, or groups of them with their own "lr",
    "weight_decay", "betas", "eps".

    The optimizer and the schedule are those of the configuration; objects of PyTorch are refused.
    `training_data`: a `ds.Dataset` for a `ds.Model` (it is set for `train_batch`), or a torch Dataset,
    which becomes a DataLoader of micro batches. Keywords besides: `resolve_auto`, `lenient`, `set`.
    """
    if optimizer is not None or lr_scheduler is not None:
        raise TypeError(
            "the engine has its own optimizers and schedules: name them in the configuration "
            '("optimizer", "scheduler") instead of passing objects'
        )
    if model is None:
        raise TypeError("initialize needs a model: a torch.nn.Module or a ds.Model")
    chosen = config if config is not None else config_params
    if chosen is None:
        chosen = getattr(args, "deepspeed_config", None)
    if chosen is None:
        raise TypeError("initialize needs a configuration: config=, or args.deepspeed_config")
    group = comm if comm is not None else comm_from_environment()
    engine: Engine
    data = training_data
    if _is_module(model):
        from ._module import ModuleEngine

        engine = ModuleEngine(
            model, chosen, comm=group, model_parameters=model_parameters, **given
        )
        if training_data is not None:
            data = _loader(training_data, engine, collate_fn)
    else:
        if model_parameters is not None:
            raise TypeError("model_parameters belong to a torch.nn.Module: use Model.freeze")
        native = model if isinstance(model, Model) else Model(model)
        engine = Engine(native, chosen, comm=group, **given)
        if isinstance(training_data, Dataset):
            engine.set_dataset(training_data)
    return engine, engine.optimizer, data, LrScheduler(engine)


def _loader(training_data: Any, engine: Engine, collate_fn: Any) -> Any:
    """Micro batches of this process's share of a torch Dataset, shuffled."""
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

    arguments: dict[str, Any] = {"batch_size": engine.train_micro_batch_size_per_gpu()}
    if collate_fn is not None:
        arguments["collate_fn"] = collate_fn
    if engine.world_size > 1 and not isinstance(training_data, IterableDataset):
        arguments["sampler"] = DistributedSampler(
            training_data, num_replicas=engine.world_size, rank=engine.global_rank
        )
    elif not isinstance(training_data, IterableDataset):
        arguments["shuffle"] = True
    return DataLoader(training_data, **arguments)


def _prompts_of(input_ids: Tensor, attention_mask: Any) -> tuple[list[list[int]], list[list[int]]]:
    """The rows of ids [count] or [batch, count] as they are, and without what the mask leaves out."""
    rows = input_ids.tolist() if input_ids.ndim == 2 else [input_ids.tolist()]
    if attention_mask is None:
        return rows, rows
    mask = asarray(attention_mask)
    if mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask is {list(mask.shape)}, the ids are {list(input_ids.shape)}"
        )
    kept = mask.tolist() if mask.ndim == 2 else [mask.tolist()]
    return rows, [[id for id, keep in zip(*row) if keep] for row in zip(rows, kept)]


class InferenceEngine(Generator):
    """A generator with the calls of DeepSpeed's inference engine and of Transformers."""

    def generate(  # type: ignore[override]
        self,
        input_ids: Any,
        max_new_tokens: int = 64,
        *,
        attention_mask: Any = None,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 0.0,
        eos_token_id: Optional[int] = None,
        pad_token_id: Optional[int] = None,
        seed: int = 0,
    ) -> Any:
        """Continues prompts [count] or [batch, count], several together, row i with `seed` + i.

        Gives the rows with their new ids and `eos_token_id` behind them, as Transformers does: int64
        [batch, longest], shorter ones filled with `pad_token_id` (None: `eos_token_id`); a PyTorch tensor
        if the prompt is one, else a `ds.Tensor`. Ids where `attention_mask`, of the same shape, is 0 are
        padding, which a text neither sees nor counts."""
        ids = self._prompt(input_ids)
        if ids.ndim not in (1, 2):
            raise ValueError(f"ids are [count] or [batch, count], not {list(ids.shape)}")
        rows, prompts = _prompts_of(ids, attention_mask)
        sampling: dict[str, Any] = {
            "temperature": temperature if do_sample else 0.0,
            "top_k": top_k,
            "top_p": top_p,
            "seed": seed,
            "stop_token": eos_token_id,
        }
        if len(prompts) == 1:
            new = [super().generate(prompts[0], max_new_tokens, **sampling)]
        else:
            new = self.generate_batch(prompts, max_new_tokens, **sampling)
        whole = []
        for row, text in zip(rows, new):
            ended = [eos_token_id] if text.size < max_new_tokens and eos_token_id is not None else []
            whole.append(row + text.tolist() + ended)
        longest = max((len(row) for row in whole), default=0)
        pad = eos_token_id if pad_token_id is None else pad_token_id
        filled = asarray([row + [pad] * (longest - len(row)) for row in whole], "int64")
        return filled.torch() if type(input_ids).__module__.startswith("torch") else filled

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Tensor:
        """Logits of ids [batch, length]: float32 [batch, length, vocabulary]."""
        return self.logits(input_ids, attention_mask=attention_mask)


def init_inference(
    model: Any,
    config: Optional[Mapping[str, Any]] = None,
    *,
    dtype: Any = None,
    tokenizer: Optional[Tokenizer] = None,
    **given: Any,
) -> InferenceEngine:
    """Prepares a model for running alone, as DeepSpeed's call of this name.

    `model`: a `ds.Model`, a Hugging Face folder or checkpoint, or a model of Transformers. `dtype`, also
    as config["dtype"]: float32, bfloat16, "int8" or "int4", by name or as a PyTorch dtype; None: the
    model's own weights. Keywords besides: those of ds.Generator."""
    wanted = dtype if dtype is not None else (config or {}).get("dtype")
    weights = None
    if wanted is not None:
        name = wanted if isinstance(wanted, str) else str(wanted)
        name = name.rsplit(".", 1)[-1]
        weights = _WEIGHTS.get(name, name if name in _WEIGHTS.values() else None)
        if weights is None:
            raise ValueError(f"no weights in {wanted!r}: known are {', '.join(_WEIGHTS)}")
    if isinstance(model, Model):
        return InferenceEngine(model, weights, tokenizer=tokenizer, **given)
    if hasattr(model, "save_pretrained"):
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            opened = Model.open(folder)
    else:
        opened = Model.open(model)
    return InferenceEngine(opened, weights, tokenizer=tokenizer, **given)
