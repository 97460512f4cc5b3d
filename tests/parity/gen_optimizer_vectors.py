#!/usr/bin/env python3
"""Records what torch.optim makes of fixed gradients, in double precision.

    python tests/parity/gen_optimizer_vectors.py tests/data/optim/torch_optim.json

Needs torch 2.9 or later (torch.optim.Muon) and mup 1.0. The unit tests of src/optim compare with the file and
need no Python.
"""

import inspect
import json
import sys

import mup
import torch
from torch.optim import _muon

ELEMENTS = 35
STEPS = 100
RECORDED = (1, 2, 10, 100)


def numbers(tensor):
    return [float(x) for x in tensor.detach().reshape(-1)]


def run(make, shape, start, gradients):
    p = torch.nn.Parameter(start.to(torch.float64).reshape(shape))
    optimizer = make(p)
    weights = {}
    for step in range(1, STEPS + 1):
        p.grad = gradients[step - 1].to(torch.float64).reshape(shape)
        optimizer.step()
        if step in RECORDED:
            weights[str(step)] = numbers(p)
    return weights


def main():
    torch.manual_seed(20240607)
    # fp32 numbers with few digits: gradients with a mean of their own per element, so that they
    # neither agree nor cancel all the time.
    start = (torch.randn(ELEMENTS) * 0.2).to(torch.float32)
    means = torch.randn(ELEMENTS) * 0.02
    gradients = [
        torch.round((means + torch.randn(ELEMENTS) * 0.05) * 2**16) / 2**16 for _ in range(STEPS)
    ]
    start = torch.round(start * 2**16) / 2**16

    # Muon iterates in bf16; the formula is compared, so torch's code runs without its cast.
    source = inspect.getsource(_muon._zeropower_via_newtonschulz)
    assert source.count("torch.bfloat16") == 1
    exec(source.replace("torch.bfloat16", "grad.dtype"), _muon.__dict__)

    def adamw(**options):
        return lambda p: torch.optim.AdamW([p], **options)

    def adam(**options):
        return lambda p: torch.optim.Adam([p], **options)

    def sgd(**options):
        return lambda p: torch.optim.SGD([p], **options)

    def adagrad(**options):
        return lambda p: torch.optim.Adagrad([p], **options)

    def nadam(**options):
        return lambda p: torch.optim.NAdam([p], **options)

    def rmsprop(**options):
        return lambda p: torch.optim.RMSprop([p], **options)

    def with_widths(optimizer, base, **options):
        def make(p):
            p.infshape = mup.infshape.zip_infshape(base, p.shape)
            return optimizer([p], **options)

        return make

    def muon(**options):
        return lambda p: torch.optim.Muon([p], **options)

    cases = []

    def case(type_name, params, make, shape=(ELEMENTS,)):
        cases.append(
            {
                "optimizer": {"type": type_name, "params": params},
                "shape": list(shape),
                "weights": run(make, shape, start, gradients),
            }
        )

    case("AdamW", {"lr": 1e-3, "weight_decay": 0.1}, adamw(lr=1e-3, weight_decay=0.1))
    case(
        "AdamW",
        {"lr": 3e-3, "betas": [0.8, 0.95], "eps": 1e-6},
        adamw(lr=3e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.0),
    )
    case("Adam", {"lr": 1e-3, "adam_w_mode": False}, adam(lr=1e-3))
    case(
        "Adam",
        {"lr": 1e-3, "adam_w_mode": False, "weight_decay": 0.01},
        adam(lr=1e-3, weight_decay=0.01),
    )
    case("SGD", {"lr": 0.05}, sgd(lr=0.05))
    case("SGD", {"lr": 0.05, "weight_decay": 0.01}, sgd(lr=0.05, weight_decay=0.01))
    case(
        "SGD",
        {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01},
        sgd(lr=0.01, momentum=0.9, weight_decay=0.01),
    )
    case(
        "SGD",
        {"lr": 0.01, "momentum": 0.8, "dampening": 0.3},
        sgd(lr=0.01, momentum=0.8, dampening=0.3),
    )
    case(
        "SGD",
        {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.001},
        sgd(lr=0.01, momentum=0.9, nesterov=True, weight_decay=0.001),
    )
    case("Adagrad", {"lr": 0.01, "eps": 1e-10}, adagrad(lr=0.01, eps=1e-10))
    case(
        "Adagrad",
        {"lr": 0.02, "weight_decay": 0.1, "lr_decay": 0.05, "initial_accumulator_value": 0.01},
        adagrad(
            lr=0.02, weight_decay=0.1, lr_decay=0.05, initial_accumulator_value=0.01, eps=1e-10
        ),
    )
    case("Adagrad", {"lr": 0.01, "weight_decay": 0.5}, adagrad(lr=0.01, weight_decay=0.5))
    case(
        "Adam",
        {"lr": 1e-3, "adam_w_mode": False, "amsgrad": True, "weight_decay": 0.01},
        adam(lr=1e-3, amsgrad=True, weight_decay=0.01),
    )
    case(
        "AdamW",
        {"lr": 2e-3, "betas": [0.9, 0.9], "amsgrad": True, "weight_decay": 0.1},
        adamw(lr=2e-3, betas=(0.9, 0.9), amsgrad=True, weight_decay=0.1),
    )
    case("NAdam", {}, nadam())
    case("NAdam", {"lr": 1e-3, "weight_decay": 0.01}, nadam(lr=1e-3, weight_decay=0.01))
    case(
        "NAdam",
        {
            "lr": 3e-3,
            "betas": [0.8, 0.95],
            "momentum_decay": 0.02,
            "weight_decay": 0.1,
            "decoupled_weight_decay": True,
        },
        nadam(
            lr=3e-3,
            betas=(0.8, 0.95),
            momentum_decay=0.02,
            weight_decay=0.1,
            decoupled_weight_decay=True,
        ),
    )
    for options in (
        {"lr": 1e-3},
        {"lr": 2e-3, "alpha": 0.9, "eps": 1e-6, "weight_decay": 0.01},
        {"lr": 1e-3, "momentum": 0.9, "weight_decay": 0.01},
        {"lr": 1e-3, "centered": True},
        {"lr": 1e-3, "alpha": 0.95, "centered": True, "momentum": 0.8, "weight_decay": 0.01},
    ):
        case("RMSprop", options, rmsprop(**options))
    for name, optimizer in (("MuAdam", mup.MuAdam), ("MuAdamW", mup.MuAdamW), ("MuSGD", mup.MuSGD)):
        for shape, base in (((5, 7), (2, 7)), ((5, 7), (5, 3)), ((7, 5), (3, 2)), ((35,), (10,))):
            options = {"lr": 3e-3, "weight_decay": 0.02}
            if name == "MuSGD":
                options["momentum"] = 0.9
            case(
                name,
                {**options, "base_shapes": [{"match": ["w"], "shape": list(base)}]},
                with_widths(optimizer, base, **options),
                shape,
            )
    for shape in ((5, 7), (7, 5)):
        for method in ("gram", "standard"):
            case(
                "Muon",
                {"lr": 1e-3, "momentum": 0.95, "weight_decay": 0.1, "ns_method": method},
                muon(lr=1e-3, momentum=0.95, weight_decay=0.1, nesterov=True),
                shape,
            )

    document = {
        "made_by": f"tests/parity/gen_optimizer_vectors.py with torch {torch.__version__}",
        "start": numbers(start),
        "gradients": [numbers(g) for g in gradients],
        "cases": cases,
    }
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(document, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
