"""What a call through the Python binding costs: call_cost.py [REPEATS]

Prints nanoseconds per call, the median of several runs, without the cost of the loop. The first rows are
trivial calls; the goal for those is below one microsecond.
"""

from __future__ import annotations

import statistics
import sys
import timeit
from typing import Any, Callable

import ds
from ds import _native


def nanoseconds(call: Callable[[], object], repeats: int) -> float:
    number = 20000
    runs = timeit.repeat(call, number=number, repeat=repeats)
    empty = timeit.repeat(lambda: None, number=number, repeat=repeats)
    return (statistics.median(runs) - statistics.median(empty)) / number * 1e9


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    parameters: dict[str, Any] = {"w": [0.0] * 16}
    model = ds.Model.from_parameters(parameters)
    engine = ds.Engine(model, {"train_micro_batch_size_per_gpu": 1})
    tensor = ds.zeros((4,))
    handle = tensor._handle
    gradient = engine.view_gradient(0)
    rows: list[tuple[str, Callable[[], object]]] = [
        ("ds_abi_version", lambda: _native.ds_abi_version()),
        ("ds_tensor_describe (a struct as a tuple)", lambda: _native.ds_tensor_describe(handle)),
        ("ds_tensor_item (GIL released)", lambda: _native.ds_tensor_item(gradient_item)),
        ("engine.loss_scale", lambda: engine.loss_scale),
        ("engine.is_gradient_accumulation_boundary()", engine.is_gradient_accumulation_boundary),
        ("tensor.data_ptr", lambda: tensor.data_ptr),
        ("ds.zeros((4,)) and its end", lambda: ds.zeros((4,))),
        ("tensor.__dlpack__()", tensor.__dlpack__),
        ("ds.from_dlpack(tensor)", lambda: ds.from_dlpack(tensor)),
        ("add_gradients of one tensor", lambda: engine.add_gradients([gradient])),
    ]
    gradient_item = ds.zeros(())._handle
    for name, call in rows:
        print(f"{name:48} {nanoseconds(call, repeats):8.0f} ns")


if __name__ == "__main__":
    main()
