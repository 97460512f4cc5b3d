"""Training steps with PyTorch's gradients in Python: what torch_loop.cc does in C++, with the same sizes, seeds and
threads. Run beside it by torch_and_cc.py.

    torch_loop.py WORK BATCH HIDDEN     WORK: torch, preset or module (see torch_and_cc.py)

Reads lines of a number of steps and, of module, the way to make them (ds or bare), and answers each with the
nanoseconds of these steps in one line; at the end of its input it prints a checksum of the weights' bits.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Callable

import numpy
import torch

import ds

WIDTH = 256


def make_module(hidden: int) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, hidden),
        torch.nn.GELU(),
        torch.nn.Linear(hidden, hidden),
        torch.nn.GELU(),
        torch.nn.Linear(hidden, WIDTH),
    )


def make_config(batch: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": batch,
        "threads": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
    }


def preset_step(module: Any, batch: int) -> Callable[[], None]:
    """Gradients that are there already are added to the engine's, which PyTorch sees by DLPack."""
    model = ds.Model.from_parameters(
        ds.Parameter(name, value=parameter.data, lend=True)
        for name, parameter in module.named_parameters()
    )
    engine = ds.Engine(model, make_config(batch))
    torch.manual_seed(1)
    given = [torch.randn(parameter.shape) for parameter in module.parameters()]
    views = [torch.from_dlpack(engine.view_gradient(index)) for index in range(len(model))]

    def step() -> None:
        for view, gradient in zip(views, given):
            view.add_(gradient)
        engine.set_loss(1.0)
        engine.step()

    return step


def module_steps(module: Any, batch: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """A step by ds.initialize, and the same with the two calls of the C library that the loop in C++ makes, as the
    extension has them: the least that a binding could do."""
    engine, *_ = ds.initialize(model=module, config=make_config(batch))
    torch.manual_seed(1)
    x, y = torch.randn(batch, WIDTH), torch.randn(batch, WIDTH)

    def step() -> None:
        loss = torch.nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()

    def bare_step() -> None:
        loss = torch.nn.functional.mse_loss(module(x), y)
        ds._native.ds_engine_set_loss(engine._handle, loss.item())
        loss.backward()
        ds._native.ds_engine_step(engine._handle)

    return step, bare_step


def torch_step(module: Any, batch: int) -> Callable[[], None]:
    """PyTorch alone, whose own cost in Python it shows."""
    torch.manual_seed(1)
    x, y = torch.randn(batch, WIDTH), torch.randn(batch, WIDTH)

    def step() -> None:
        loss = torch.nn.functional.mse_loss(module(x), y)
        loss.item()
        loss.backward()

    return step


def checksum(module: Any) -> int:
    """FNV-1a over the bits of all weights."""
    total = 14695981039346656037
    for parameter in module.parameters():
        for bits in parameter.detach().numpy().view(numpy.uint32).ravel().tolist():
            total = ((total ^ bits) * 1099511628211) & 0xFFFFFFFFFFFFFFFF
    return total


def answer(ways: dict[str, Callable[[], None]]) -> None:
    for line in sys.stdin:
        steps, way = line.split()
        step = ways[way]
        times = []
        for _ in range(int(steps)):
            begin = time.perf_counter_ns()
            step()
            times.append(time.perf_counter_ns() - begin)
        print(*times, flush=True)


def main() -> None:
    work, batch, hidden = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    module = make_module(hidden)
    if work == "module":
        step, bare = module_steps(module, batch)
        answer({"ds": step, "bare": bare})
    else:
        answer({"ds": {"torch": torch_step, "preset": preset_step}[work](module, batch)})
    print(checksum(module), flush=True)


if __name__ == "__main__":
    main()
