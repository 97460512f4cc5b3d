"""The names by which users of DeepSpeed know an engine, with the same meaning."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Optional

from . import _native
from ._comm import Comm
from ._core import PathLike
from ._errors import NotFoundError, UnsupportedError
from ._structs import EngineInfo, StepReport


class DeepSpeedNames:
    """Methods and attributes of DeepSpeedEngine on top of what an engine has."""

    model: Any
    comm: Optional[Comm]
    last_report: Optional[StepReport]
    _handle: Any
    _boundary: Optional[bool] = None

    @property
    def info(self) -> EngineInfo:
        """How far the engine is."""
        raise NotImplementedError

    # What is saved and loaded beside the engine's own state, by engines that have such things.
    def _before_save(self) -> None:
        pass

    def _after_load(self) -> None:
        pass

    @property
    def module(self) -> Any:
        """What is trained."""
        return self.model

    @property
    def global_steps(self) -> int:
        """Optimizer steps so far, skipped ones included."""
        return self.info.step

    @property
    def micro_steps(self) -> int:
        """Micro batches so far."""
        return self.info.micro_steps

    @property
    def global_samples(self) -> int:
        """Samples so far."""
        return self.info.samples

    @property
    def global_rank(self) -> int:
        return 0 if self.comm is None else self.comm.rank

    @property
    def local_rank(self) -> int:
        return 0 if self.comm is None else self.comm.local_rank

    @property
    def world_size(self) -> int:
        return 1 if self.comm is None else self.comm.size

    def train_batch_size(self) -> int:
        """Samples of a step, of all processes."""
        return self.info.train_batch_size

    def train_micro_batch_size_per_gpu(self) -> int:
        """Samples of a micro batch."""
        return self.info.micro_batch_size

    def gradient_accumulation_steps(self) -> int:
        return self.info.accumulation_steps

    def zero_optimization_stage(self) -> int:
        return self.info.zero_stage

    def zero_optimization(self) -> bool:
        return self.info.zero_stage > 0

    def bfloat16_enabled(self) -> bool:
        return self._enabled("bf16")

    def fp16_enabled(self) -> bool:
        return self._enabled("fp16")

    def _enabled(self, section: str) -> bool:
        resolved = self.config["config"]  # type: ignore[attr-defined]
        return bool((resolved.get(section) or {}).get("enabled"))

    def is_gradient_accumulation_boundary(self) -> bool:
        """Whether the next `step` updates."""
        if self._boundary is not None:
            return self._boundary
        config = json.loads(_native.ds_engine_config(self._handle))["config"]
        if config.get("rampup_batch_size") is not None:
            raise UnsupportedError(
                "with rampup_batch_size steps differ in length: what `step` returns tells whether it "
                "updated"
            )
        info = self.info
        return (info.micro_steps + 1) % info.accumulation_steps == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Says whether the next calls of `step` update."""
        _native.ds_engine_set_boundary(self._handle, int(is_boundary))
        self._boundary = is_boundary

    def get_lr(self) -> list[float]:
        """Learning rates of the next step, one per parameter group."""
        return self.optimizer.rates()  # type: ignore[attr-defined,no-any-return]

    def set_lr(self, lr: float) -> None:
        """Sets every group's rate of the next step."""
        self.optimizer.lr = lr  # type: ignore[attr-defined]

    def get_global_grad_norm(self) -> Optional[float]:
        """Global norm of the last step's gradients before clipping; None before the first step."""
        return None if self.last_report is None else self.last_report.grad_norm

    def was_step_applied(self) -> bool:
        """Whether the last call of `step` changed the weights."""
        return self.last_report is not None and self.last_report.applied

    def save_checkpoint(
        self,
        save_dir: PathLike,
        tag: Optional[str] = None,
        client_state: Optional[Mapping[str, Any]] = None,
    ) -> bool:
        """`save`, with a document that `load_checkpoint` gives back."""
        if client_state is not None:
            self.client_state = dict(client_state)
        self._before_save()
        self.save(save_dir, tag)  # type: ignore[attr-defined]
        return True

    def load_checkpoint(
        self,
        load_dir: PathLike,
        tag: Optional[str] = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
    ) -> tuple[Optional[str], Optional[dict[str, Any]]]:
        """`load`; the folder of the checkpoint and the document that was saved with it, or (None, None)
        where there is none."""
        try:
            self.load(  # type: ignore[attr-defined]
                load_dir,
                tag,
                load_module_strict=load_module_strict,
                load_optimizer_states=load_optimizer_states,
                load_lr_scheduler_states=load_lr_scheduler_states,
                load_module_only=load_module_only,
            )
        except NotFoundError:
            return None, None
        self._after_load()
        folder = os.fspath(load_dir)
        name = tag or f"global_step{self.global_steps}"
        place = os.path.join(folder, name)
        return place if os.path.isdir(place) else folder, self.client_state or {}

    def save_16bit_model(
        self, save_dir: PathLike, *, dtype: str = "bfloat16", max_shard_bytes: int = 0
    ) -> bool:
        """Writes the weights in 16 bits as safetensors, and config.json where there is one."""
        self.model.export(save_dir, dtype, max_shard_bytes=max_shard_bytes)
        return True

    client_state: Any

    def destroy(self) -> None:
        """Ends the engine."""
        self.close()  # type: ignore[attr-defined]
