"""Attention, forward and backward: PyTorch's scaled_dot_product_attention and ds in turn, in one run.

usage: attention.py OP_BENCH_PROGRAM [--rounds 5] [--threads 2] [--stock] [--json FILE]
       [--rows SUBSTRING]
PyTorch's backward is its forward + backward less its forward. Both read what they need from packed
projections as models do: q, k and v are views of one tensor [batch, tokens, heads, head size].
Needs torch from PyPI.
"""
import json
import subprocess

import common

# row of op_bench, batch, heads, kv heads, tokens, head size, window
SHAPES = (
    ("bench/4x12x12x256x256x64", 4, 12, 12, 256, 64, 0),
    ("bench/1x12x12x1024x1024x64", 1, 12, 12, 1024, 64, 0),
    ("bench_gqa/1x32x8x1024x1024x128", 1, 32, 8, 1024, 128, 0),
    ("bench/1x12x12x4096x4096x64", 1, 12, 12, 4096, 64, 0),
    ("bench_window/1x12x12x4096x4096x64", 1, 12, 12, 4096, 64, 512),
)


class Peer:
    """One shape in one type; forward() and both() return milliseconds."""

    def __init__(self, torch, dtype, shape):
        _, batch, heads, kv_heads, tokens, dim, window = shape
        self.torch = torch
        qkv = torch.randn(batch, tokens, heads + 2 * kv_heads, dim).to(dtype)
        parts = qkv.split([heads, kv_heads, kv_heads], dim=2)
        self.inputs = [part.transpose(1, 2).requires_grad_() for part in parts]
        self.gradient = torch.randn(batch, heads, tokens, dim).to(dtype)
        self.options = {"enable_gqa": kv_heads != heads}
        if window:
            place = torch.arange(tokens)
            distance = place[:, None] - place[None, :]
            self.options["attn_mask"] = (distance >= 0) & (distance < window)
        else:
            self.options["is_causal"] = True

    def attend(self):
        return self.torch.nn.functional.scaled_dot_product_attention(*self.inputs, **self.options)

    def forward(self):
        with self.torch.no_grad():
            return common.timed(self.attend)

    def both(self):
        return common.timed(
            lambda: self.torch.autograd.grad(self.attend(), self.inputs, self.gradient))


def ours(program, threads, row):
    """Milliseconds of one row of op_bench."""
    command = [program, "--threads", str(threads), f"--benchmark_filter=^{row}/",
               "--benchmark_format=json", "--benchmark_min_time=0.1"]
    out = subprocess.run(command, env=common.plain_environment(), check=True, capture_output=True,
                         text=True).stdout
    found = json.loads(out[out.index("{"):])["benchmarks"]
    if len(found) != 1:
        raise SystemExit(f"{program} has no row {row}")
    return found[0]["real_time"] * 1e-3  # reported in microseconds


def main():
    made = common.parser(__doc__)
    made.add_argument("program")
    made.add_argument("--rows", default="", help="only rows whose name contains this")
    args = common.parse(made)
    import torch  # after the environment is tuned
    torch.set_num_threads(args.threads)
    report = common.Report(args, "attention against torch " + torch.__version__)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        for shape in SHAPES:
            row = f"attention/{name}/{shape[0]}"
            if args.rows not in row:
                continue
            peer = Peer(torch, dtype, shape)
            peer.both()
            medians = common.interleave(args.rounds, {
                "forward": lambda: [peer.forward() for _ in range(3)],
                "ours forward": lambda: ours(args.program, args.threads, row + "/forward"),
                "both": lambda: [peer.both() for _ in range(3)],
                "ours backward": lambda: ours(args.program, args.threads, row + "/backward"),
            })
            backward = medians["both"] - medians["forward"]
            report.row(row=row, torch_forward_ms=medians["forward"],
                       ds_forward_ms=medians["ours forward"],
                       forward_ratio=medians["forward"] / medians["ours forward"],
                       torch_backward_ms=backward, ds_backward_ms=medians["ours backward"],
                       backward_ratio=backward / medians["ours backward"])
    report.finish()


if __name__ == "__main__":
    main()
