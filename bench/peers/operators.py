"""Operators of PyTorch eager and of ds in turn, in one run: medians, ratios, shares of the limits.

usage: operators.py OP_BENCH_PROGRAM [--rounds 5] [--threads 2] [--types fp32,bf16] [--only TEXT]
                    [--stock] [--json FILE]
Needs torch from PyPI. The sizes are those of the program's rows; every contender keeps its outputs
from call to call where its interface allows that. A backward row of PyTorch is the difference of
forward with backward and forward, since eager cannot run backward alone twice.
"""
import json
import re
import subprocess

import common
import torch
from torch.nn import functional as F

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def leaf(*shape, dtype):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def forward(body):
    def run():
        with torch.no_grad():
            body()
    return run


def both(body, leaves, seed_shape, dtype):
    """Forward and backward; gradients are dropped first, as optimizers do."""
    seed = torch.ones(seed_shape, dtype=dtype)

    def run():
        for x in leaves:
            x.grad = None
        body().backward(seed)
    return run


def cases(kind):
    """ds row -> (PyTorch body, body to subtract or None)"""
    dtype = TYPES[kind]
    x, gamma, beta = leaf(4096, 768, dtype=dtype), leaf(768, dtype=dtype), leaf(768, dtype=dtype)
    residual = leaf(4096, 768, dtype=dtype)
    wide, bias = leaf(1024, 3072, dtype=dtype), leaf(3072, dtype=dtype)
    gate, up = leaf(1024, 5632, dtype=dtype), leaf(1024, 5632, dtype=dtype)
    logits, labels = leaf(1024, 50304, dtype=dtype), torch.randint(0, 50257, (1024,))

    def norm():
        return F.layer_norm(x, (768,), gamma, beta)

    def norm_residual():
        return F.layer_norm(x + residual, (768,), gamma, beta)

    def rms():
        return F.rms_norm(x + residual, (768,), gamma)

    def gelu(form):
        return lambda: F.gelu(wide + bias, approximate=form)

    def swiglu():
        return F.silu(gate) * up

    def loss():
        return F.cross_entropy(logits, labels, reduction="none")

    made = {}

    def add(name, body, leaves, shape, backward, grad_type=dtype):
        made[name] = (forward(body), None)
        if backward:
            made[backward] = (both(body, leaves, shape, grad_type), body)

    add(f"layer_norm/{kind}/4096x768", norm, (x, gamma, beta), (4096, 768),
        f"layer_norm_backward/{kind}/4096x768")
    add(f"layer_norm_residual/{kind}/4096x768", norm_residual, (), (4096, 768), None)
    add(f"rms_norm_residual/{kind}/4096x768", rms, (x, residual, gamma), (4096, 768),
        f"rms_norm_backward/{kind}/4096x768")
    for form, ours in (("tanh", "tanh"), ("none", "erf")):
        add(f"gelu/forward/{ours}/{kind}/1024x3072", gelu(form), (wide, bias), (1024, 3072),
            f"gelu/backward/{ours}/{kind}/1024x3072")
    add(f"gated/silu/{kind}/1024x5632", swiglu, (gate, up), (1024, 5632),
        f"gated_backward/silu/{kind}/1024x5632")
    add(f"cross_entropy/forward/{kind}/1024x50304", loss, (), (1024,), None)
    # Ours makes loss and gradient in one call.
    made[f"cross_entropy/fused/{kind}/1024x50304"] = (both(loss, (logits,), (1024,), dtype), None)
    made[f"dropout/{kind}/4096x768"] = (forward(lambda: F.dropout(x, 0.1, True)), None)
    return made


def torch_ms(body):
    body()
    once = common.timed(body)
    return common.timed(body, max(1, min(50, int(30 / max(once, 0.01)))))


def peer_ms(entry):
    body, less = entry
    return torch_ms(body) - (torch_ms(less) if less else 0)


def our_rows(args, names):
    """name -> (milliseconds, share of the row's limit in percent)"""
    pattern = "^(" + "|".join(re.escape(name) for name in names) + ")/"
    command = [args.program, "--threads", str(args.threads), "--benchmark_format=json",
               "--benchmark_min_time=0.05", f"--benchmark_filter={pattern}"]
    out = subprocess.run(command, env=common.plain_environment(), check=True, capture_output=True, text=True)
    rows = {}
    for row in json.loads(out.stdout)["benchmarks"]:
        share = next((row[key] for key in ("%copy", "%read", "%mixed") if key in row), 0.0)
        name = next(name for name in names if row["name"].startswith(name + "/"))
        rows[name] = (row["real_time"] / 1e3, share)
    missing = set(names) - set(rows)
    if missing:
        raise SystemExit(f"{args.program} has no rows {sorted(missing)}")
    return rows


def main():
    made = common.parser(__doc__)
    made.add_argument("program", help="op_bench")
    made.add_argument("--types", default="fp32,bf16")
    made.add_argument("--only", default="", help="rows whose name contains this")
    args = common.parse(made)
    torch.set_num_threads(args.threads)
    report = common.Report(args, f"operators, PyTorch {torch.__version__} eager")
    for kind in args.types.split(","):
        entries = {n: e for n, e in cases(kind).items() if args.only in n}
        if not entries:
            continue
        theirs, ours = {n: [] for n in entries}, {n: [] for n in entries}
        for _ in range(args.rounds):
            for name, entry in entries.items():
                theirs[name].append(peer_ms(entry))
            for name, got in our_rows(args, list(entries)).items():
                ours[name].append(got)
        for name in entries:
            peer, (mine, share) = common.statistics.median(theirs[name]), sorted(ours[name])[len(ours[name]) // 2]
            report.row(row=name, torch_ms=peer, ds_ms=mine, ratio=peer / mine, share_of_limit=share)
    report.finish()


if __name__ == "__main__":
    main()
