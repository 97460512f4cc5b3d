"""Engines: train one model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, Optional, Union

from . import _native
from ._comm import Comm
from ._core import DTYPE_NAMES, Document, Handle, PathLike, optional, options, path_text, to_json
from ._dataset import Dataset
from ._deepspeed import DeepSpeedNames
from ._generator import make_batch
from ._model import Model, ParameterKey
from ._optimizer import Optimizer
from ._scope import MODES, Scope
from ._signals import interruptible
from ._structs import EngineInfo, StepReport
from ._tensor import Tensor, asarray, in_order
from ._tokenizer import Tokenizer

VALUES = {
    "parameter": _native.DS_VALUE_PARAMETER,
    "gradient": _native.DS_VALUE_GRADIENT,
    "state": _native.DS_VALUE_STATE,
}
ProgressFunction = Callable[[str, int, int], object]
"""Hears, in the thread of the call, the call ("train_batch", "evaluate", "save", "load"), the parts that are
done and those of the call. It must not use the engine, its model or its optimizer."""

_ALONE = interruptible(None)
"""For engines without a group, which have nobody to wait for: one for all, since it keeps nothing."""


def _is_text(config: Union[Document, PathLike]) -> bool:
    return isinstance(config, Mapping) or (
        isinstance(config, str) and config.lstrip()[:1] in ("{", "")
    )


class Engine(Handle, DeepSpeedNames):
    """Trains one model by a DeepSpeed configuration (a dict, its text or its path).

    With a data set:

        engine = ds.Engine(model, {"train_micro_batch_size_per_gpu": 8, "optimizer": {...}})
        engine.set_dataset(ds.Dataset(path="book.txt", sequence_length=64))
        for report in engine.train(100):
            print(report.step, report.loss)

    with batches of the caller: `loss = engine(ids, labels); engine.backward(loss); engine.step()`, or with
    gradients of the caller: `engine.add_gradients(gradients); engine.step()`.

    One thread at a time uses an engine; different engines run on different threads at once, the GIL is
    released. `comm` is the group to train with. `resolve_auto`, `lenient`, `set` and `require_optimizer`
    say how the configuration is read (ds_engine_create). Calls end at Ctrl-C with KeyboardInterrupt before
    their next micro batch, tensor or part of a file, and the engine goes on from there.
    """

    _destroy = _native.ds_engine_destroy
    model: Model
    """What is trained."""

    def __init__(
        self,
        model: Model,
        config: Union[Document, PathLike],
        *,
        comm: Optional[Comm] = None,
        resolve_auto: Union[bool, Mapping[str, Any], None] = None,
        lenient: Optional[bool] = None,
        set: Optional[Mapping[str, Any]] = None,
        require_optimizer: Optional[bool] = None,
    ) -> None:
        given = options(
            resolve_auto=resolve_auto, lenient=lenient, set=set, require_optimizer=require_optimizer
        )
        self._comm = comm if comm is not None and comm.size > 1 else None
        with self._interruptible():
            if _is_text(config):
                handle = _native.ds_engine_create(
                    to_json(config), given, model._handle, optional(comm)  # type: ignore[arg-type]
                )
            else:
                handle = _native.ds_engine_create_from_file(
                    path_text(config), given, model._handle, optional(comm)  # type: ignore[arg-type]
                )
        super().__init__(handle)
        self.model = model
        self.comm = comm
        self.dataset: Optional[Dataset] = None
        self.last_report: Optional[StepReport] = None
        """What the last step did."""
        self.on_progress(None)  # long calls look for Ctrl-C all the same

    def _interruptible(self) -> interruptible:
        return _ALONE if self._comm is None else interruptible(self._comm.abort)

    # ---- Steps ---------------------------------------------------------------------------------

    def forward(
        self,
        ids: Any,
        labels: Any,
        *,
        attention_mask: Any = None,
        segments: Any = None,
        token_types: Any = None,
    ) -> Tensor:
        """Loss of one micro batch, a float32 tensor [], mean over the labels that count.

        `ids` and `labels` are integers [batch, length]; label (b, t) is the token that position (b, t)
        shall predict, -100 does not count. Models that classify take labels [batch], or numbers
        [batch, classes] (ds_batch). The other arrays are [batch, length]."""
        batch, kept = make_batch(
            ids=ids,
            labels=labels,
            attention_mask=attention_mask,
            segments=segments,
            token_types=token_types,
        )
        with self._interruptible():
            loss = Tensor._of(_native.ds_engine_forward(self._handle, batch))
        del kept
        return loss

    __call__ = forward

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of the last forward's loss, divided by gradient_accumulation_steps."""
        with self._interruptible():
            _native.ds_engine_backward(self._handle, loss._handle)

    def step(self) -> StepReport:
        """Ends a micro batch; at an accumulation boundary clips, updates and clears the gradients."""
        with self._interruptible():
            return self._keep(_native.ds_engine_step(self._handle))

    def _keep(self, told: Any) -> StepReport:
        self.last_report = StepReport._make(told)
        return self.last_report

    def set_dataset(self, dataset: Optional[Dataset]) -> None:
        """The data that `train_batch` reads, from the engine's sample counter on."""
        _native.ds_engine_set_dataset(self._handle, optional(dataset))
        self.dataset = dataset

    def train_batch(self) -> StepReport:
        """One optimizer step over the data set: all its micro batches, then the update."""
        with self._interruptible():
            return self._keep(_native.ds_engine_train_batch(self._handle))

    def train(self, steps: int, *, progress: bool = False) -> Iterator[StepReport]:
        """Iterates over `steps` steps over the data set; each item is made when it is asked for.

        `progress` shows a bar with the loss: tqdm's where it is installed, else a line."""
        bar = _bar(steps) if progress else None
        try:
            for done in range(1, steps + 1):
                report = self.train_batch()
                if bar is not None:
                    bar(done, report)
                yield report
        finally:
            if bar is not None:
                bar(-1, None)

    def evaluate(self, dataset: Dataset, max_batches: int = 0) -> float:
        """Mean loss over a data set, without training and without dropout; 0 micro batches: all."""
        with self._interruptible():
            return float(_native.ds_engine_evaluate(self._handle, dataset._handle, max_batches))

    def set_boundary(self, boundary: Optional[bool]) -> None:
        """Whether the next calls of `step` update; None: gradient_accumulation_steps decides."""
        _native.ds_engine_set_boundary(self._handle, -1 if boundary is None else int(boundary))
        self._boundary = boundary

    def join(self) -> None:
        """For a process without further batches: takes part in the others' steps until all have called."""
        with self._interruptible():
            _native.ds_engine_join(self._handle)

    # ---- The caller's gradients ----------------------------------------------------------------

    def add_gradients(
        self, gradients: Union[Mapping[Any, Any], Sequence[Any]]
    ) -> None:
        """Adds gradients to those of the open step: a mapping from parameters (index or name) to arrays of
        their shapes, or a sequence for parameters 0, 1, ... They carry `loss_scale`, are read where they
        lie, in float32, bfloat16 or float16, and may be changed after the call."""
        import array

        indices = None
        if isinstance(gradients, Mapping):
            indices = array.array("q", [self.model.index(key) for key in gradients])
            gradients = list(gradients.values())
        held = [in_order(gradient, self.model._stream) for gradient in gradients]
        with self._interruptible():
            _native.ds_engine_add_gradients(
                self._handle, indices, [t._handle for t in held], len(held)
            )

    def view_gradient(self, parameter: ParameterKey) -> Tensor:
        """The memory that a parameter's gradient gathers in, to be added to in place, without a copy.
        Take it again after a load."""
        return Tensor._of(
            _native.ds_engine_view_gradient(self._handle, self.model.index(parameter))
        )

    def set_loss(self, loss: float) -> None:
        """What the loss of the open micro batch was, where gradients are the caller's."""
        _native.ds_engine_set_loss(self._handle, float(loss))

    def discard_gradients(self) -> None:
        """Gives up the open step: its gradients are cleared, weights and progress are as before it."""
        _native.ds_engine_discard_gradients(self._handle)

    # ---- Parameters made whole, values ---------------------------------------------------------

    def scope(
        self,
        parameters: Optional[Iterable[ParameterKey]] = None,
        mode: str = "compute",
        *,
        root: int = 0,
    ) -> Scope:
        """Makes parameters whole in this process at every ZeRO stage; None: all. Mode "compute": to be
        read, each in its type (parameters of one's own); "modify": float32 masters that process
        `root` may change; "no_sync": see `no_sync`. See `Scope`."""
        if mode not in MODES:
            raise ValueError(f"no mode {mode!r}: known are {', '.join(MODES)}")
        if parameters is None:
            parameters = () if mode == "no_sync" else range(len(self.model))
        indices = [self.model.index(parameter) for parameter in parameters]
        with self._interruptible():
            handle = _native.ds_engine_open_scope(
                self._handle, indices, len(indices), MODES[mode]
            )
        return Scope(handle, indices, mode, root)

    def no_sync(self) -> Scope:
        """A block whose passes leave their gradients in this process (ZeRO stages 0 and 1): the first
        `step` after it averages their sum. Every process opens it; `step` is refused inside."""
        return self.scope(mode="no_sync")

    def get_values(
        self,
        parameter: ParameterKey,
        kind: str = "parameter",
        state: Optional[str] = None,
        *,
        local: bool = False,
    ) -> Tensor:
        """A float32 copy of values of a parameter: "parameter" (the master), "gradient" (of the open step)
        or "state" (of the optimizer, by its name). `local`: this process's part alone, of one
        dimension; else every process calls."""
        with self._interruptible():
            return Tensor._of(
                _native.ds_engine_get_values(
                    self._handle,
                    self.model.index(parameter),
                    _value_kind(kind),
                    state,
                    _native.DS_EXTENT_LOCAL if local else _native.DS_EXTENT_WHOLE,
                )
            )

    def set_values(
        self,
        parameter: ParameterKey,
        value: Any,
        kind: str = "parameter",
        state: Optional[str] = None,
        *,
        local: bool = False,
    ) -> None:
        """Sets values of a parameter, of the shape that `get_values` gives. Every process calls."""
        given = in_order(value, self.model._stream)
        source = asarray(given, dtype=None if kind == "gradient" else "float32")
        with self._interruptible():
            _native.ds_engine_set_values(
                self._handle,
                self.model.index(parameter),
                _value_kind(kind),
                state,
                _native.DS_EXTENT_LOCAL if local else _native.DS_EXTENT_WHOLE,
                source._handle,
            )

    def local_range(self, parameter: ParameterKey) -> range:
        """The elements of a parameter whose master and optimizer state this process holds."""
        first, count = _native.ds_engine_local_range(self._handle, self.model.index(parameter))
        return range(first, first + count)

    # ---- Progress and interruption -------------------------------------------------------------

    def on_progress(self, function: Optional[ProgressFunction]) -> None:
        """Sets what hears how far a long call is. An exception in it ends the call and is raised by it."""
        _native.ds_engine_set_progress(self._handle, function)

    def interrupt(self) -> None:
        """Ends the call that runs in another thread before its next part, with AbortedError."""
        _native.ds_engine_interrupt(self._handle)

    # ---- Saving and loading --------------------------------------------------------------------

    def save(self, folder: PathLike, tag: Optional[str] = None) -> None:
        """Saves everything a bitwise resume needs; `tag` None: "global_step<N>"."""
        with self._interruptible():
            _native.ds_engine_save(self._handle, path_text(folder), tag)

    def save_wait(self) -> None:
        """Waits for a save that goes on beside the training."""
        with self._interruptible():
            _native.ds_engine_save_wait(self._handle)

    def load(
        self,
        folder: PathLike,
        tag: Optional[str] = None,
        *,
        load_module_only: Optional[bool] = None,
        load_module_strict: Optional[bool] = None,
        load_optimizer_states: Optional[bool] = None,
        load_lr_scheduler_states: Optional[bool] = None,
        may_be_missing: Optional[bool] = None,
        strict: Optional[bool] = None,
        restore_on_failure: Optional[bool] = None,
    ) -> None:
        """Loads a checkpoint; `tag` None: the newest valid one. Keywords say how much of it is taken over
        (ds_engine_load); `may_be_missing` begins anew in a folder without checkpoints; `strict` refuses
        settings that differ from the saved run's; with `restore_on_failure` False a load over training
        reads once and needs no memory, and one that fails leaves the engine incomplete."""
        given = options(
            load_module_only=load_module_only,
            load_module_strict=load_module_strict,
            load_optimizer_states=load_optimizer_states,
            load_lr_scheduler_states=load_lr_scheduler_states,
            may_be_missing=may_be_missing,
            strict=strict,
            restore_on_failure=restore_on_failure,
        )
        with self._interruptible():
            _native.ds_engine_load(self._handle, path_text(folder), tag, given)

    def set_tokenizer(self, tokenizer: Optional[Tokenizer]) -> None:
        """Attaches a tokenizer, which checkpoints then carry."""
        _native.ds_engine_set_tokenizer(self._handle, optional(tokenizer))

    @property
    def client_state(self) -> Any:
        """A document of the caller, which checkpoints carry; None when there is none."""
        return json.loads(_native.ds_engine_client_state(self._handle))

    @client_state.setter
    def client_state(self, document: Any) -> None:
        text = None if document is None else json.dumps(document)
        _native.ds_engine_set_client_state(self._handle, text)

    def set_blob(self, name: str, data: Any) -> None:
        """Attaches bytes under a name, which checkpoints then carry; None takes them away."""
        _native.ds_engine_set_blob(self._handle, name, data)

    def blob(self, name: str) -> bytes:
        """Bytes as set or loaded."""
        return Tensor._of(_native.ds_engine_blob(self._handle, name)).tobytes()

    def blobs(self) -> dict[str, int]:
        """Names of the attached blobs and their sizes."""
        sizes: dict[str, int] = json.loads(_native.ds_engine_blobs(self._handle))
        return sizes

    # ---- Questions -----------------------------------------------------------------------------

    @property
    def info(self) -> EngineInfo:
        return EngineInfo._make(_native.ds_engine_describe(self._handle))

    @property
    def loss_scale(self) -> float:
        """What losses are multiplied by before their gradients are taken: 1 unless fp16 trains."""
        return self.info.loss_scale

    @property
    def compute_dtype(self) -> str:
        """The type that the engine computes in, by name."""
        return DTYPE_NAMES.get(self.info.compute_dtype, "unknown")

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer inside the engine."""
        return Optimizer(self)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as resolved: "config", "given", "origins", "warnings"."""
        document: dict[str, Any] = json.loads(_native.ds_engine_config(self._handle))
        return document

    def memory_report(self) -> dict[str, Any]:
        """Bytes of memory by tag, now and peak."""
        report: dict[str, Any] = json.loads(_native.ds_engine_memory_report(self._handle))
        return report

    def profile(self) -> Any:
        """The profile of the step that `flops_profiler` asked for; None before it."""
        return json.loads(_native.ds_engine_profile(self._handle))

    def experts(self) -> Any:
        """Loads and losses of the last step's experts; None where the model has none."""
        return json.loads(_native.ds_engine_experts(self._handle))

    def __repr__(self) -> str:
        if self.closed:
            return "ds.Engine(closed)"
        info = self.info
        text = (
            f"ds.Engine(step={info.step}, batch={info.train_batch_size}, "
            f"zero_stage={info.zero_stage}, dtype={self.compute_dtype!r}"
        )
        if self.comm is not None:
            text += f", rank={self.comm.rank} of {self.comm.size}"
        return text + ")"


def _value_kind(kind: str) -> int:
    if kind not in VALUES:
        raise ValueError(f"no kind of values {kind!r}: known are {', '.join(VALUES)}")
    return int(VALUES[kind])


def _bar(steps: int) -> Callable[[int, Optional[StepReport]], None]:
    """Shows how far a loop is; a number below 0 ends it."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _line(steps)
    bar = tqdm(total=steps, unit="step")

    def show(done: int, report: Optional[StepReport]) -> None:
        if report is None:
            bar.close()
            return
        bar.update(done - bar.n)
        bar.set_postfix(loss=f"{report.loss:.4f}", lr=f"{report.lr:.2e}", refresh=False)

    return show


def _line(steps: int) -> Callable[[int, Optional[StepReport]], None]:
    def show(done: int, report: Optional[StepReport]) -> None:
        text = "\n" if report is None else f"\r{done}/{steps}  loss {report.loss:.4f}"
        print(text, end="", file=sys.stderr, flush=True)

    return show


__all__ = ["Engine"]
