"""AdamW updates of PyTorch, of DeepSpeed's CPU-Adam and of ds in turn, in one run.

usage: optimizer.py OP_BENCH_PROGRAM [--rounds 5] [--threads 2] [--no-deepspeed] [--stock] [--json FILE]
Needs torch from PyPI, and deepspeed (installed with DS_BUILD_OPS=0; its kernel is built on first use)
unless left out. 16 Mi parameters in one tensor, fp32 states. Two comparisons:

* the bare update of fp32 parameters from fp32 gradients: torch.optim.AdamW foreach and fused,
  DeepSpeed's kernel, and the row adamw/fp32 of ds;
* the whole update, bf16 gradient in and bf16 weight out: DeepSpeed's sequence of passes (widen, norm,
  unscale, kernel, narrow), the same passes of ds (adamw_separate), and the fused pass of ds, also with
  split masters and narrower states.
"""
import json
import os
import subprocess
import sys

import common
import torch

ELEMENTS = 1 << 24
ROWS = {"ds fp32": "adamw/fp32/16M", "ds whole, separate passes": "adamw_separate/bf16_in_out/16M",
        "ds whole, one pass": "adamw/bf16_in_out/16M", "ds whole, split master": "adamw/bf16_split/16M",
        "ds whole, split, bf16 states": "adamw/bf16_split_bf16_states/16M",
        "ds whole, split, 8-bit states": "adamw/bf16_split_int8_states/16M"}


def parameter():
    made = torch.nn.Parameter(torch.randn(ELEMENTS))
    made.grad = torch.randn(ELEMENTS) * 1e-3
    return made


def torch_update(**form):
    optimizer = torch.optim.AdamW([parameter()], lr=1e-3, weight_decay=0.1, **form)
    return optimizer.step


def deepspeed_optimizer(own):
    # Kernels are compiled by ninja, which comes with the interpreter's environment.
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    return DeepSpeedCPUAdam([own], lr=1e-3, weight_decay=0.1, adamw_mode=True)


def deepspeed_updates():
    own = parameter()
    optimizer = deepspeed_optimizer(own)
    gradient = own.grad.bfloat16()
    weight = own.detach().bfloat16()

    def whole():
        own.grad.copy_(gradient)
        norm = own.grad.norm()
        own.grad.mul_(1 / max(1.0, float(norm)))
        optimizer.step()
        weight.copy_(own.detach())

    return optimizer.step, whole


def our_times(args, seen):
    command = [args.program, "--threads", str(args.threads), "--benchmark_format=json",
               "--benchmark_min_time=0.1", "--benchmark_filter=^(" + "|".join(ROWS.values()) + ")/"]
    out = subprocess.run(command, env=common.plain_environment(), check=True, capture_output=True, text=True)
    found = json.loads(out.stdout)["benchmarks"]
    for name, row_name in ROWS.items():
        row = next(r for r in found if r["name"].startswith(row_name + "/"))
        seen.setdefault(name, []).append((row["real_time"] / 1e3, row["%mixed"]))


def main():
    made = common.parser(__doc__)
    made.add_argument("program", help="op_bench")
    made.add_argument("--no-deepspeed", action="store_true")
    args = common.parse(made)
    torch.set_num_threads(args.threads)
    peers = {"torch foreach": torch_update(foreach=True), "torch fused": torch_update(fused=True)}
    if not args.no_deepspeed:
        peers["DeepSpeed kernel"], peers["DeepSpeed whole, passes"] = deepspeed_updates()
    for body in peers.values():
        body()
    theirs, ours = {name: [] for name in peers}, {}
    for _ in range(args.rounds):
        for name, body in peers.items():
            theirs[name].append(common.timed(body, 5))
        our_times(args, ours)
    median = common.statistics.median
    report = common.Report(args, f"AdamW, 16 Mi parameters, PyTorch {torch.__version__}")
    bare, whole = median(t for t, _ in ours["ds fp32"]), median(t for t, _ in ours["ds whole, one pass"])
    for name, times in theirs.items():
        ms = median(times)
        report.row(contender=name, ms=ms, share_of_mixed="", over_ds=ms / (whole if "whole" in name else bare))
    for name, got in ours.items():
        ms = median(t for t, _ in got)
        report.row(contender=name, ms=ms, share_of_mixed=median(s for _, s in got),
                   over_ds=ms / (whole if "whole" in name else bare))
    report.finish()


if __name__ == "__main__":
    main()
