"""The loss curve of GPT-2 124M on a GPU: ds twice, which must give the same bits, ds on the CPU, and PyTorch
in bf16, by autocast and in fp32, from the same weights on the same tokens.

usage: gpu_curve.py BENCH_FOLDER [--curve-steps 100] [--cpu-steps 100] [--batch 8] [--length 256]
                    [--device cuda:0] [--tiny] [--json FILE]
BENCH_FOLDER holds loss_curve (build/cuda/bench). Masters are fp32. "torch bf16" has weights and all
activations in bf16, as ds has; autocast keeps the sums of the residuals in fp32 and strays less. The
curve in fp32 says how far bf16 strays by itself: no curve of ds may stray further from it than twice
as far as "torch bf16", and 0.02. Exit status: 1 a curve does, or bits differ; 3 there is no PyTorch
or no GPU.
"""
import array
import json
import os
import random
import subprocess
import sys
import tempfile

import common
import gpu_common

RATE, DECAY, BETAS, EPSILON = 3e-4, 0.1, (0.9, 0.95), 1e-8


def some_text(vocab, count):
    """A walk through words that can be learnt: most are followed by one of two."""
    source = random.Random(5)
    words = min(vocab, 500)
    word, out = 0, array.array("i")
    for _ in range(count):
        out.append(word)
        draw = source.random()
        word = (word * 7 + (1 if draw < 0.6 else 3)) % words if draw < 0.9 else source.randrange(words)
    return out


def tokens_of(args, config):
    """For every step ids and labels, [batch, length] each; a label is the next token."""
    each = args.batch * args.length
    text = some_text(config["vocab_size"], args.curve_steps * each + 1)
    out = array.array("i")
    for step in range(args.curve_steps):
        begin = step * each
        out.extend(text[begin:begin + each])
        out.extend(text[begin + 1:begin + each + 1])
    return out


def ours(args, folder, device, steps):
    path = os.path.join(folder, f"tokens-{steps}")
    with open(path, "wb") as file, open(os.path.join(folder, "tokens"), "rb") as whole:
        file.write(whole.read(steps * 2 * args.batch * args.length * 4))
    done = subprocess.run([os.path.join(args.programs, "loss_curve"), os.path.join(folder, "model"), path,
                           str(args.batch), str(args.length), os.path.join(folder, "config.json"),
                           "--device", device], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip())
    return json.loads(done.stdout.strip().splitlines()[-1])


def theirs(torch, args, config, folder, tokens, how):
    model = gpu_common.load_gpt2(torch, os.path.join(folder, "model"), config).to(args.device)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY},
                                   {"params": vectors, "weight_decay": 0.0}],
                                  lr=RATE, betas=BETAS, eps=EPSILON)
    kind = "cuda" if args.device.startswith("cuda") else "cpu"
    steps = torch.tensor(list(tokens), dtype=torch.int64).reshape(-1, 2, args.batch, args.length)
    losses = []
    for ids, labels in steps.to(args.device):
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=how == "autocast"):
            if how == "bf16":
                narrow = {name: p.to(torch.bfloat16) for name, p in model.named_parameters()}
                loss = torch.func.functional_call(model, narrow, (ids, labels))
            else:
                loss = model(ids, labels)
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses


def farthest(a, b):
    return max(abs(x - y) for x, y in zip(a, b))


def main():
    made = gpu_common.parser(__doc__)
    made.add_argument("programs")
    made.add_argument("--curve-steps", type=int, default=100)
    made.add_argument("--cpu-steps", type=int, default=100, help="of ds on the CPU; 0 leaves it out")
    made.add_argument("--batch", type=int, default=8)
    made.add_argument("--length", type=int, default=256)
    args = gpu_common.parse(made)
    config = gpu_common.gpt2_config(768, 12, 12)
    if args.tiny:
        config = gpu_common.gpt2_config(64, 2, 2, vocab=211, positions=64)
        args.batch, args.length = 2, 32
    torch = gpu_common.need_torch(args.device)
    torch.backends.cuda.matmul.allow_tf32 = False
    report = common.Report(args, f"loss curve on {args.device}, PyTorch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "gpt2.json"), "w", encoding="utf-8") as file:
            json.dump({"model_type": "gpt2", **config}, file)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump({"train_micro_batch_size_per_gpu": args.batch, "bf16": {"enabled": True},
                       "gradient_clipping": 0.0,
                       "optimizer": {"type": "AdamW", "params": {
                           "lr": RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": DECAY}}}, file)
        tokens = tokens_of(args, config)
        with open(os.path.join(folder, "tokens"), "wb") as file:
            tokens.tofile(file)
        subprocess.run([os.path.join(args.programs, "loss_curve"), os.path.join(folder, "gpt2.json"),
                        "--export", os.path.join(folder, "model")], check=True, stdout=subprocess.DEVNULL)
        runs = [ours(args, folder, args.device, args.curve_steps) for _ in range(2)]
        curves = {"ds": runs[0]["losses"]}
        if args.cpu_steps:
            curves["ds on the CPU"] = ours(args, folder, "cpu",
                                           min(args.cpu_steps, args.curve_steps))["losses"]
        for how in ("bf16", "autocast"):
            curves[f"torch {how}"] = theirs(torch, args, config, folder, tokens, how)
        precise = theirs(torch, args, config, folder, tokens, "fp32")
    allowed = 2 * farthest(curves["torch bf16"], precise) + 0.02
    good = True
    for name, losses in curves.items():
        strays = farthest(losses, precise)
        within = strays <= allowed  # NaN is not
        good = good and within
        report.row(curve=name, steps=len(losses), first=losses[0], last=losses[-1], strays=strays,
                   allowed=allowed, within="yes" if within else "NO")
    report.row(curve="torch fp32", steps=len(precise), first=precise[0], last=precise[-1])
    same = runs[0]["losses"] == runs[1]["losses"] and runs[0]["weights"] == runs[1]["weights"]
    learnt = min(precise[-1], curves["ds"][-1]) < precise[0] - (0.3 if args.tiny else 1)
    report.row(curve="ds twice", bits="the same" if same else "DIFFERENT")
    if not learnt:
        print("nothing was learnt: the comparison says little", file=sys.stderr)
    report.finish()
    if args.json:  # with all losses
        with open(args.json, encoding="utf-8") as file:
            written = json.load(file)
        written["losses"] = {**curves, "torch fp32": precise}
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(written, file, indent=1)
    return 0 if good and same and learnt else 1


if __name__ == "__main__":
    sys.exit(main())
