"""The parts of a mixture of experts around the experts, for programs that compute gradients themselves:
which experts a token chooses, its way to them, and the sum of what they give.

Arguments are arrays of NumPy, PyTorch or this package in host memory; results are `ds.Tensor`s. The gradient
of `dispatch` without weights is `combine` without weights, of the rows' gradient; that of `combine` is
`dispatch` with its weights, of the output's gradient, for the rows, and `weights_backward` for the weights."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

from . import _native
from ._core import options
from ._tensor import Tensor, asarray

__all__ = [
    "Gate",
    "SortedRoutes",
    "combine",
    "dispatch",
    "gate",
    "gate_backward",
    "sort",
    "weights_backward",
]


class Gate(NamedTuple):
    """What a gate says of every token."""

    chosen: Tensor
    """int32 [tokens, top_k]: experts, best first; -1 where one had no room"""
    weights: Tensor
    """float32 [tokens, top_k]"""
    counts: Tensor
    """int64 [3, experts]: tokens that chose each expert, that it took, that the balancing loss counts"""
    losses: Tensor
    """float32 [2]: the balancing loss, 1 where loads are equal, and the z-loss"""


class SortedRoutes(NamedTuple):
    """Routes sorted by expert; a route is number token * choices + choice."""

    offsets: Tensor
    """int32 [experts + 1]: where each expert's rows begin"""
    order: Tensor
    """int32 [rows]: the route of each row"""
    places: Tensor
    """int32 [tokens, choices]: the row of each route, or -1"""


def _maybe(array: Any) -> Optional[Tensor]:
    return None if array is None else asarray(array)


def _handle(tensor: Optional[Tensor]) -> Any:
    return None if tensor is None else tensor._handle


def gate(logits: Any, bias: Any = None, **given: Any) -> Gate:
    """Chooses the experts of each token by its logits (float32 [tokens, experts]).

    Keywords are the options of ds_experts_gate: `top_k`, `score_function`, `route_norm`, `route_scale`,
    `capacity_factor`, `min_capacity`, `drop_policy`, `num_expert_groups`, `num_limited_groups`,
    `group_score`, `sample`, `seed`, `first_token`, `balance_choices`."""
    added = _maybe(bias)
    made = _native.ds_experts_gate(asarray(logits)._handle, _handle(added), options(**given))
    return Gate(*(Tensor._of(handle) for handle in made))


def gate_backward(
    logits: Any, chosen: Any, counts: Any, weights_gradient: Any = None, losses_gradient: Any = None, **given: Any
) -> Tensor:
    """The gradient of `gate` with respect to its logits; keywords as for `gate`."""
    by_weights, by_losses = _maybe(weights_gradient), _maybe(losses_gradient)
    return Tensor._of(
        _native.ds_experts_gate_backward(
            asarray(logits)._handle,
            asarray(chosen)._handle,
            asarray(counts)._handle,
            options(**given),
            _handle(by_weights),
            _handle(by_losses),
        )
    )


def sort(chosen: Any, experts: int) -> SortedRoutes:
    """Sorts routes (int32 [tokens, choices], -1 for none) by expert, with the order of tokens kept."""
    made = _native.ds_experts_sort(asarray(chosen)._handle, experts)
    return SortedRoutes(*(Tensor._of(handle) for handle in made))


def dispatch(tokens: Any, order: Any, choices: int = 1, weights: Any = None) -> Tensor:
    """Rows of routes: row r is token order[r] // choices, times the weight of its route where there are any."""
    factors = _maybe(weights)
    return Tensor._of(
        _native.ds_experts_dispatch(
            asarray(tokens)._handle, asarray(order)._handle, choices, _handle(factors)
        )
    )


def combine(rows: Any, places: Any, weights: Any = None) -> Tensor:
    """The sum of the rows of each token's routes, times their weights where there are any."""
    factors = _maybe(weights)
    return Tensor._of(
        _native.ds_experts_combine(asarray(rows)._handle, asarray(places)._handle, _handle(factors))
    )


def weights_backward(rows: Any, places: Any, gradient: Any) -> Tensor:
    """The gradient of `combine` with respect to its weights, from that of its result."""
    return Tensor._of(
        _native.ds_experts_weights_backward(
            asarray(rows)._handle, asarray(places)._handle, asarray(gradient)._handle
        )
    )
