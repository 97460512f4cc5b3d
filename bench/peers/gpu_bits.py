"""Steps of GPT-2 124M on a GPU, every kind of step twice: equal bits, and losses of one kind beside another's.

usage: gpu_bits.py BENCH_FOLDER [--bit-steps 20] [--batch 8] [--length 1024] [--device cuda:0] [--tiny]
                   [--json FILE]
BENCH_FOLDER holds train_step (build/cuda/bench). The kinds: attention by our own kernels, the same with
recorded work (graph_harvesting), by cuDNN, by cuDNN with recorded work, and by cuDNN with
strict_determinism. Both runs of a kind must have the same losses and the same bits in the weights, and
recorded work those of the same kind without; but of cuDNN without strict_determinism it is only told,
since the order of its sums is not fixed. Losses with cuDNN may differ from ours by --most in any step.
No peer is needed. Exit status: 1 something differs or fails.
"""
import json
import os
import subprocess
import sys
import tempfile

import common
import gpu_common

KINDS = {
    "own": {"attention": "own"},
    "own, recorded": {"attention": "own"},
    "cuDNN": {"attention": "cudnn"},
    "cuDNN, recorded": {"attention": "cudnn"},
    "cuDNN, strict": {"attention": "cudnn", "strict_determinism": True},
}
SAME_AS = {"own, recorded": "own", "cuDNN, recorded": "cuDNN"}
MAY_DIFFER = ("cuDNN", "cuDNN, recorded")


def steps(args, model, kind):
    """What train_step printed, or the reason why it did not."""
    keys = ["gradient_clipping=0", "cuda=" + json.dumps(KINDS[kind])]
    if kind.endswith("recorded"):
        keys.append("graph_harvesting=true")
    done = subprocess.run([os.path.join(args.programs, "train_step"), model, str(args.batch), str(args.length),
                           "bf16", str(args.bit_steps - 2), "0", *keys, "--device", args.device],
                          capture_output=True, text=True)
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()
        return words[-1] if words else f"it ended with status {done.returncode}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def farthest(a, b):
    """Infinity where one is not finite: NaN is never near."""
    far = max(abs(x - y) for x, y in zip(a["losses"], b["losses"]))
    return far if far == far else float("inf")


def same(a, b):
    return a["losses"] == b["losses"] and a["weights"] == b["weights"]


def compare(args, kind, pair, firsts):
    """A row of the report, and whether all is as it must be."""
    broken = [run for run in pair if isinstance(run, str)]
    if broken:
        return {"kind": kind, "error": broken[0]}, False
    first, second = pair
    row = {"kind": kind, "steps": len(first["losses"]), "first": first["losses"][0],
           "last": first["losses"][-1], "weights": first["weights"],
           "twice": "same bits" if same(first, second) else "DIFFERENT"}
    free = kind in MAY_DIFFER
    good = (free or same(first, second)) and len(first["losses"]) == args.bit_steps
    base = firsts.get(SAME_AS.get(kind))
    if base:
        row["beside"] = f"the bits of {SAME_AS[kind]}" if same(first, base) else f"NOT those of {SAME_AS[kind]}"
        good = good and (free or same(first, base))
    elif kind != "own" and "own" in firsts:
        far = farthest(first, firsts["own"])
        row["from_own"], row["allowed"] = far, args.most
        good = good and far <= args.most
    return row, good


def main():
    made = gpu_common.parser(__doc__)
    made.add_argument("programs")
    made.add_argument("--bit-steps", type=int, default=20)
    made.add_argument("--batch", type=int, default=8)
    made.add_argument("--length", type=int, default=1024)
    made.add_argument("--most", type=float, default=0.02)
    args = gpu_common.parse(made)
    if args.bit_steps < 3:
        raise SystemExit("--bit-steps must be at least 3: two warm up")
    config = gpu_common.gpt2_config(768, 12, 12)
    if args.tiny:
        config = gpu_common.gpt2_config(64, 2, 2, vocab=211, positions=64)
        args.batch, args.length = 2, 32
    report = common.Report(args, f"{args.bit_steps} steps, {args.batch} x {args.length}, on {args.device}")
    good, firsts = True, {}
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "gpt2.json")
        with open(model, "w", encoding="utf-8") as file:
            json.dump({"model_type": "gpt2", **config}, file)
        for kind in KINDS:
            pair = [steps(args, model, kind) for _ in range(2)]
            if not isinstance(pair[0], str):
                firsts[kind] = pair[0]
            row, fine = compare(args, kind, pair, firsts)
            report.row(**row)
            good = good and fine
    report.finish()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
