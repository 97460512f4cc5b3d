"""Training steps of GPT-2 124M: PyTorch eager and ds in turn, in one run; prints medians and ratios.

usage: gpt2_step.py TRAIN_STEP_PROGRAM [--rounds 3] [--steps 3] [--batch 4] [--length 256]
                    [--threads 2] [--precision fp32|bf16]
Needs torch and transformers from PyPI. For a tuned peer set
GLIBC_TUNABLES=glibc.malloc.trim_threshold=4294967295:glibc.malloc.mmap_threshold=4294967295:\
glibc.malloc.hugetlb=1, which keeps PyTorch's heap from going back to the system.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import transformers

SHAPE = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


class Peer:
    def __init__(self, args):
        torch.set_num_threads(args.threads)
        self.args = args
        self.model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**SHAPE, attn_implementation="sdpa")).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.1)

    def step(self):
        ids = torch.randint(0, SHAPE["vocab_size"], (self.args.batch, self.args.length))
        labels = torch.randint(0, SHAPE["vocab_size"], (self.args.batch, self.args.length))
        began = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.args.precision == "bf16"):
            logits = self.model(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        return (time.perf_counter() - began) * 1e3


def ours(args, model_file):
    command = [args.program, model_file, str(args.batch), str(args.length), args.precision,
               str(args.steps), str(args.threads)]
    environment = {k: v for k, v in os.environ.items() if k != "GLIBC_TUNABLES"}
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True,
                                     env=environment).stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    for name, default in (("rounds", 3), ("steps", 3), ("batch", 4), ("length", 256),
                          ("threads", 2)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    args = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"model_type": "gpt2", **SHAPE}, file)
        file.flush()
        peer, theirs, mine, peak = Peer(args), [], [], 0
        peer.step()
        peer.step()
        for _ in range(args.rounds):
            theirs += [peer.step() for _ in range(args.steps)]
            result = ours(args, file.name)
            mine += result["milliseconds"]
            peak = max(peak, result["peak_bytes"])
    tokens = args.batch * args.length
    a, b = statistics.median(theirs), statistics.median(mine)
    parameters = sum(p.numel() for p in peer.model.parameters())
    print(json.dumps({
        "precision": args.precision, "batch": args.batch, "length": args.length,
        "threads": args.threads, "torch": torch.__version__,
        "torch_ms": round(a, 1), "ds_ms": round(b, 1), "ratio": round(a / b, 3),
        "ds_tokens_per_s": round(tokens / b * 1e3, 1),
        "ds_gflops_6n": round(6 * parameters * tokens / b / 1e6, 1),
        "ds_peak_gib": round(peak / 2**30, 2)}))


if __name__ == "__main__":
    sys.exit(main())
