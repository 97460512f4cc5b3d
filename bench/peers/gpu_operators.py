"""Operators on a GPU: PyTorch and ds in turn, in one run: medians, ratios, shares of the limits.

usage: gpu_operators.py BENCH_FOLDER [--rounds 1] [--only TEXT] [--without TEXT] [--no-compile] [--device cuda:0]
                        [--tiny] [--json FILE]
BENCH_FOLDER holds gpu_bench (build/cuda/bench). Types and sizes are those of its rows. Attention is
PyTorch's SDPA with its flash kernel, forward and backward; norms, activations and losses are what
torch.compile makes of the usual formula; AdamW is the fused one. A backward row of PyTorch is its
forward and backward less its forward. Attention of ds is measured as it is chosen, with its own
kernels and, where cuDNN is found, with cuDNN's. ds has a turn before each of PyTorch's and one at the end. Exit status
3: there is nothing to compare with.
"""
import json
import os
import subprocess
import sys

import common
import gpu_common


class Peer:
    """One row of gpu_bench in PyTorch: forward(), and both() where the row is a backward."""

    def __init__(self, torch, args, name):
        self.torch, self.args, self.f = torch, args, torch.nn.functional
        parts = name.split("/")
        self.kind, self.backward = parts[0], parts[-1] == "backward"
        self.dtype = torch.float32 if parts[1] == "fp32" else torch.bfloat16
        self.sizes = [int(n) for n in parts[2].split("x")]
        self.forward, self.both = getattr(self, self.kind)()

    def leaf(self, *shape):
        made = self.torch.randn(*shape, device=self.args.device, dtype=self.dtype)
        return made.requires_grad_(self.backward)

    def compiled(self, function):
        if self.args.no_compile:
            return function
        self.torch.compiler.reset()  # sizes of other rows would make it compile for any size
        return self.torch.compile(function, dynamic=False)

    def pair(self, function, leaves):
        """forward without gradients, and forward with backward."""
        made = self.compiled(function)
        seed = None

        def forward():
            with self.torch.no_grad():
                made(*leaves)

        def both():
            nonlocal seed
            for x in leaves:
                x.grad = None
            out = made(*leaves)
            if seed is None:
                seed = self.torch.randn_like(out)
            out.backward(seed)
        return forward, both

    def add(self):
        return self.pair(lambda a, b: a + b, [self.leaf(*self.sizes), self.leaf(*self.sizes)])

    def cast(self):
        return self.pair(lambda x: x.to(self.torch.bfloat16), [self.leaf(*self.sizes)])

    def dropout(self):
        return self.pair(lambda x: self.f.dropout(x, 0.1, True), [self.leaf(*self.sizes)])

    def sum_squares(self):
        return self.pair(lambda x: x.square().sum(), [self.leaf(*self.sizes)])

    def gelu(self):
        return self.pair(lambda x, b: self.f.gelu(x + b, approximate="tanh"),
                         [self.leaf(*self.sizes), self.leaf(self.sizes[1])])

    def swiglu(self):
        return self.pair(lambda g, u: self.f.silu(g) * u,
                         [self.leaf(*self.sizes), self.leaf(*self.sizes)])

    # The sum is a result too, as in a model.
    def layer_norm(self):
        width = self.sizes[1:]
        return self.norm(lambda s, g: self.f.layer_norm(s, width, g, g))

    def rms_norm(self):
        width = self.sizes[1:]
        return self.norm(lambda s, g: self.f.rms_norm(s, width, g, 1e-5))

    def norm(self, function):
        def both_results(x, residual, gamma):
            total = x + residual
            return function(total, gamma), total

        made = self.compiled(both_results)
        leaves = [self.leaf(*self.sizes), self.leaf(*self.sizes), self.leaf(self.sizes[1])]
        seeds = [self.torch.randn_like(leaves[0]) for _ in range(2)]

        def forward():
            with self.torch.no_grad():
                made(*leaves)

        def both():
            for x in leaves:
                x.grad = None
            self.torch.autograd.backward(made(*leaves), seeds)
        return forward, both

    def cross_entropy(self):
        labels = self.torch.randint(0, self.sizes[1], (self.sizes[0],), device=self.args.device)
        self.backward = True  # ours makes loss and gradient at once
        logits = self.leaf(*self.sizes)
        made = self.compiled(lambda x: self.f.cross_entropy(x.float(), labels))

        def both():
            logits.grad = None
            made(logits).backward()
        return both, both

    def embedding(self):
        tokens, width = self.sizes
        table = self.torch.nn.Embedding(211 if self.args.tiny else 50304, width,
                                        device=self.args.device, dtype=self.dtype)
        ids = self.torch.randint(0, table.num_embeddings, (tokens,), device=self.args.device)

        def forward():
            with self.torch.no_grad():
                table(ids)

        seed = self.torch.randn(tokens, width, device=self.args.device, dtype=self.dtype)

        def both():
            table.weight.grad = None
            table(ids).backward(seed)
        return forward, both

    def rotary(self):
        x = self.leaf(self.sizes[0], 32, 128)
        cos, sin = (self.torch.randn(self.sizes[0], 1, 64, device=self.args.device) for _ in "cs")

        def turn(x):
            a, b = x.float().chunk(2, dim=-1)
            return self.torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)
        return self.pair(turn, [x])

    def attention(self):
        batch, heads, kv_heads, length, size = self.sizes
        packed = self.torch.randn(batch, length, heads + 2 * kv_heads, size,
                                  device=self.args.device, dtype=self.dtype)
        leaves = [part.transpose(1, 2).requires_grad_()
                  for part in packed.split([heads, kv_heads, kv_heads], dim=2)]
        seed = self.torch.randn(batch, length, heads, size, device=self.args.device,
                                dtype=self.dtype).transpose(1, 2)

        def attend():
            return self.f.scaled_dot_product_attention(*leaves, is_causal=True,
                                                       enable_gqa=heads != kv_heads)

        def forward():
            with self.torch.no_grad():
                attend()
        return forward, lambda: self.torch.autograd.grad(attend(), leaves, seed)

    def linear(self):
        m, n, k = self.sizes
        x, w = self.leaf(m, k), self.leaf(n, k)
        return self.pair(lambda x, w: self.f.linear(x, w), [x, w])

    def milliseconds(self):
        both = gpu_common.median_ms(self.torch, self.args.device, self.both) if self.backward else 0
        if self.backward and self.forward is not self.both:
            return both - gpu_common.median_ms(self.torch, self.args.device, self.forward)
        return both or gpu_common.median_ms(self.torch, self.args.device, self.forward)


class AdamW(Peer):
    """The fused step over one flat parameter, or PyTorch's bf16 parameter for the other rows."""

    def __init__(self, torch, args, name):
        _, storage, n = name.split("/")
        dtype = torch.float32 if storage == "fp32" else torch.bfloat16
        self.torch, self.args, self.backward = torch, args, False
        weight = torch.nn.Parameter(torch.randn(int(n), device=args.device, dtype=dtype))
        weight.grad = torch.randn_like(weight)
        self.forward = torch.optim.AdamW([weight], lr=1e-3, weight_decay=0.1, fused=True).step


def peer_of(torch, args, name):
    """None where PyTorch has nothing that does the same."""
    parts = name.split("/")
    if parts[0] == "adamw":
        return AdamW(torch, args, name) if parts[1] == "fp32" else None
    if parts[0] in ("lion",) or parts[-1].startswith("grad_"):
        return None
    return Peer(torch, args, name)


def our_rows(args, only, attention="auto"):
    command = [os.path.join(args.programs, "gpu_bench"), "--device", args.device, "--filter",
               only, "--without", args.without, "--attention", attention, "--repeats", "3"]
    command += ["--tiny"] if args.tiny else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr.strip())
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    made = gpu_common.parser(__doc__)
    made.add_argument("programs")
    made.add_argument("--only", default="", help="rows whose name contains this")
    made.add_argument("--without", default="", help="none of those whose name contains this")
    made.set_defaults(rounds=1)
    args = gpu_common.parse(made)
    torch = gpu_common.need_torch(args.device)
    report = common.Report(args, f"operators on {args.device}, PyTorch {torch.__version__}")
    ours, theirs, limits = {}, {}, []

    def our_turn():
        result = our_rows(args, args.only)
        limits.append(result["limits"])
        for row in result["rows"]:
            ours.setdefault(row["name"], []).append(row)

    for _ in range(args.rounds):
        our_turn()
        for name in ours:
            if theirs.get(name) == []:
                continue  # it failed before
            try:
                peer = peer_of(torch, args, name)
                if peer is not None:
                    theirs.setdefault(name, []).append(peer.milliseconds())
            except Exception as error:  # noqa: BLE001 - one row less, with the reason
                print(f"{name}: PyTorch: {str(error).splitlines()[0]}", file=sys.stderr)
                theirs[name] = []
            peer = None
            if args.device.startswith("cuda"):
                torch.cuda.empty_cache()
    our_turn()
    by = {"own": {}, "cudnn": {}}
    if any(name.startswith("attention/") for name in ours) and args.device.startswith("cuda"):
        only = args.only if "attention/" in args.only else "attention/"
        for choice, times in by.items():
            for row in our_rows(args, only, choice)["rows"]:
                times[row["name"]] = row.get("milliseconds")
    failed = False
    for name, rows in ours.items():
        if any("error" in row for row in rows):
            failed = True
            report.row(row=name, error=next(row["error"] for row in rows if "error" in row))
            continue
        mine = common.statistics.median(row["milliseconds"] for row in rows)
        figures = {"row": name, "ds_ms": mine}
        if theirs.get(name):
            peer = common.statistics.median(theirs[name])
            figures.update(torch_ms=peer, ratio=peer / mine)
        for choice, times in by.items():
            if times.get(name):
                figures[f"ds_{choice}_ms"] = times[name]
        figures["share"] = common.statistics.median(row["share"] for row in rows)
        figures["of"] = rows[0]["bound"]
        report.row(**figures)
    report.row(row="limits", copy_gb_per_s=max(x["copy_bytes_per_s"] for x in limits) * 1e-9,
               bf16_tflop_per_s=max(x["bf16_flops_per_s"] for x in limits) * 1e-12)
    report.finish()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
