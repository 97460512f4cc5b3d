"""The optimizer inside an engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from . import _native
from ._core import Handle
from ._model import ParameterKey
from ._structs import OptimizerInfo

if TYPE_CHECKING:
    from ._engine import Engine


class Optimizer(Handle):
    """The optimizer of an engine: steps, rates, names of its states. After the engine has ended every
    call raises StateError."""

    _destroy = _native.ds_optimizer_destroy

    def __init__(self, engine: Engine) -> None:
        super().__init__(_native.ds_engine_optimizer(engine._handle))
        self._model = engine.model

    @property
    def info(self) -> OptimizerInfo:
        return OptimizerInfo._make(_native.ds_optimizer_describe(self._handle))

    @property
    def steps(self) -> int:
        """Updates applied so far (Adam's t)."""
        return self.info.steps

    @property
    def lr(self) -> float:
        """The first learning rate, for the next step; assigning sets that of every group."""
        return self.info.lr

    @lr.setter
    def lr(self, value: float) -> None:
        _native.ds_optimizer_set_lr(self._handle, value)

    def rates(self) -> list[float]:
        """Learning rates of the next step: one per parameter group, two for Muon's."""
        return [
            float(_native.ds_optimizer_rate(self._handle, index))
            for index in range(self.info.rate_count)
        ]

    def state_names(self, parameter: ParameterKey) -> list[str]:
        """Names of the state tensors of a parameter, such as ["exp_avg", "exp_avg_sq"]."""
        names: list[str] = json.loads(
            _native.ds_optimizer_state_names(self._handle, self._model.index(parameter))
        )
        return names

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The rates as torch.optim shows them, to be read only: [{"lr": ...}, ...]."""
        return [{"lr": rate} for rate in self.rates()]

    def __repr__(self) -> str:
        if self.closed:
            return "ds.Optimizer(closed)"
        return f"ds.Optimizer(steps={self.steps}, lr={self.lr:g})"
