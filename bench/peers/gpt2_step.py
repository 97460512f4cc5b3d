"""Training steps of GPT-2 124M: PyTorch eager, torch.compile and ds in turn, in one run.

usage: gpt2_step.py BENCH_FOLDER [--precision fp32|bf16] [--rounds 3] [--steps 3] [--batch 4]
                    [--length 256] [--threads 2] [--no-compile] [--stock] [--json FILE]
BENCH_FOLDER holds train_step and print_limits (build/bench/bench). Needs torch and transformers from
PyPI, and a C++ compiler for torch.compile. Every contender is a process of its own that stays warm
between its turns; peak memory is what the system counted for the process.
"""
import json
import os
import statistics
import sys
import tempfile

import common

SHAPE = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
PARAMETERS = 124_439_808


def torch_child(args):
    """Answers each line "N" on standard input with the milliseconds of N steps."""
    import time
    import torch
    import transformers
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**SHAPE, attn_implementation="sdpa")).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    function = torch.nn.functional.cross_entropy

    def loss_of(ids, labels):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            logits = model(input_ids=ids, use_cache=False).logits
        return function(logits.float().flatten(0, 1), labels.flatten())

    if args.child == "compile":
        loss_of = torch.compile(loss_of)

    def step():
        ids = torch.randint(0, SHAPE["vocab_size"], (args.batch, args.length))
        labels = torch.randint(0, SHAPE["vocab_size"], (args.batch, args.length))
        began = time.perf_counter()
        loss_of(ids, labels).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return (time.perf_counter() - began) * 1e3

    for _ in range(3):
        step()
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps([step() for _ in range(int(line))]), flush=True)


def main():
    made = common.parser(__doc__)
    made.add_argument("programs")
    made.add_argument("--child", choices=("eager", "compile"))
    made.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    for name, default in (("steps", 3), ("batch", 4), ("length", 256)):
        made.add_argument("--" + name, type=int, default=default)
    made.add_argument("--no-compile", action="store_true")
    made.set_defaults(rounds=3)
    args = common.parse(made)
    if args.child:
        return torch_child(args)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"model_type": "gpt2", **SHAPE}, file)
        file.flush()
        contenders = {"ds": common.Contender(
            [os.path.join(args.programs, "train_step"), file.name, str(args.batch),
             str(args.length), args.precision, "serve", str(args.threads)],
            common.plain_environment())}
        for kind in ("eager",) if args.no_compile else ("eager", "compile"):
            contenders[kind] = common.Contender([sys.executable, *sys.argv, "--child", kind])
        limits, seen = [], {name: [] for name in contenders}
        for _ in range(args.rounds):
            for name, contender in contenders.items():
                seen[name] += contender.steps(args.steps)
            limits.append(common.run_json([os.path.join(args.programs, "print_limits"),
                                           str(args.threads)]))
    peak = max(limit[args.precision + "_gflops"] for limit in limits)
    tokens = args.batch * args.length
    report = common.Report(args, f"GPT-2 124M step, {args.batch} x {args.length}, {args.precision}")
    mine = statistics.median(seen["ds"])
    for name, contender in contenders.items():
        ms = statistics.median(seen[name])
        rate = 6 * PARAMETERS * tokens / ms / 1e6
        report.row(contender=name if name == "ds" else f"torch {contender.hello['torch']} {name}",
                   ms=ms, spread=f"{min(seen[name]):.0f}-{max(seen[name]):.0f}", ratio=ms / mine,
                   tokens_per_s=tokens / ms * 1e3, gflops_6n=rate, share_of_peak=rate / peak,
                   peak_gib=contender.peak_gib())
        contender.close()
    report.row(contender="arithmetic peak of the run", gflops_6n=peak)
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
