"""Training steps of a GPT-2-like model by several processes: PyTorch's fully_shard on gloo, DeepSpeed
and ds in turn, in one run.

usage: zero_step.py BENCH_FOLDER [--precision fp32|bf16] [--stage 2|3] [--ranks 2] [--layers 12]
                    [--width 768] [--heads 12] [--vocabulary 50257] [--batch 4] [--length 256]
                    [--rounds 3] [--steps 3] [--peers fsdp,deepspeed] [--stock] [--json FILE]
BENCH_FOLDER holds train_step (build/bench/bench). Needs torch and transformers from PyPI; deepspeed
is left out with a word where it does not run. Every process of a group has its share of the batch
and of the CPUs; groups stay warm between their turns. Stage 2 is compared with sharded gradients
whose weights stay gathered after forward, stage 3 with whole sharding.
"""
import json
import os
import statistics
import sys
import tempfile

import common

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from ranks_step import Group  # noqa: E402


def shape_of(args):
    return {"vocab_size": args.vocabulary, "n_positions": max(args.length, 32),
            "n_embd": args.width, "n_layer": args.layers, "n_head": args.heads, "resid_pdrop": 0.0,
            "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def build(args):
    import torch
    import transformers
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    config = transformers.GPT2Config(**shape_of(args), attn_implementation="sdpa",
                                     bos_token_id=None, eos_token_id=None)
    return transformers.GPT2LMHeadModel(config).train()


def fsdp_step(args):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (args.ranks,))
    model = build(args)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if args.precision == "bf16" else None,
        reduce_dtype=torch.bfloat16 if args.precision == "bf16" else None)
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=args.stage == 3)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=args.stage == 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def step(ids, labels):
        logits = model(input_ids=ids, use_cache=False).logits
        torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step, f"torch {torch.__version__} fully_shard, gloo"


def deepspeed_step(args):
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    import torch
    deepspeed.init_distributed(dist_backend="gloo")
    model = build(args)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(),
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True),
        config={"train_micro_batch_size_per_gpu": args.batch // args.ranks,
                "gradient_clipping": 1.0, "bf16": {"enabled": args.precision == "bf16"},
                "zero_allow_untested_optimizer": True,
                "zero_optimization": {"stage": args.stage, "overlap_comm": False}})

    def step(ids, labels):
        logits = engine(input_ids=ids, use_cache=False).logits
        engine.backward(torch.nn.functional.cross_entropy(logits.float().flatten(0, 1),
                                                          labels.flatten()))
        engine.step()

    return step, f"deepspeed {deepspeed.__version__}, torch {torch.__version__}, gloo"


def child(args):
    """Answers each line "N" on standard input with the milliseconds of N steps."""
    import time
    said = os.dup(1)
    os.dup2(2, 1)  # libraries print where they like
    answers = os.fdopen(said, "w", buffering=1)
    step, name = {"fsdp": fsdp_step, "deepspeed": deepspeed_step}[args.child](args)
    import torch

    def timed():
        shape = (args.batch // args.ranks, args.length)
        ids, labels = (torch.randint(0, args.vocabulary, shape) for _ in range(2))
        torch.distributed.barrier()
        began = time.perf_counter()
        step(ids, labels)
        return (time.perf_counter() - began) * 1e3

    for _ in range(2):
        timed()
    print(json.dumps({"name": name}), file=answers)
    for line in sys.stdin:
        print(json.dumps([timed() for _ in range(int(line))]), file=answers)
    torch.distributed.destroy_process_group()


def main():
    made = common.parser(__doc__)
    made.add_argument("programs")
    made.add_argument("--child", choices=("fsdp", "deepspeed"))
    made.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    made.add_argument("--stage", type=int, choices=(2, 3), default=2)
    made.add_argument("--peers", default="fsdp,deepspeed")
    for name, default in (("ranks", 2), ("layers", 12), ("width", 768), ("heads", 12),
                          ("vocabulary", 50257), ("batch", 4), ("length", 256), ("steps", 3)):
        made.add_argument("--" + name, type=int, default=default)
    made.set_defaults(rounds=3, threads=0)
    args = common.parse(made)
    args.threads = args.threads or max(1, len(os.sched_getaffinity(0)) // args.ranks)
    if args.batch % args.ranks:
        sys.exit("--batch must be a multiple of --ranks")
    if args.child:
        return child(args)
    groups, names = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model.json")
        with open(model, "w", encoding="utf-8") as file:
            json.dump({"model_type": "gpt2", **shape_of(args)}, file)
        zero = json.dumps({"stage": args.stage, "overlap_comm": False})
        groups["ds"] = Group(
            [os.path.join(args.programs, "train_step"), model, str(args.batch // args.ranks),
             str(args.length), args.precision, "serve", str(args.threads),
             f"zero_optimization={zero}"], args.ranks, common.plain_environment())
        names["ds"] = f"ds, stage {args.stage}"
        for peer in filter(None, args.peers.split(",")):
            try:
                groups[peer] = Group([sys.executable, *sys.argv, "--child", peer], args.ranks)
                names[peer] = json.loads(groups[peer].hello)["name"]
            except (OSError, ValueError) as error:
                print(f"{peer} does not run here: {error}", flush=True)
                groups.pop(peer, None)
    seen = {name: [] for name in groups}
    for group in groups.values():
        group.steps(1)
    for _ in range(args.rounds):
        for name, group in groups.items():
            times = group.steps(args.steps)
            seen[name] += times if isinstance(times, list) else [times]
    report = common.Report(args, f"{args.layers} x {args.width}, {args.batch} x {args.length}, "
                                 f"{args.precision}, stage {args.stage}, {args.ranks} processes")
    mine = statistics.median(seen["ds"])
    for name, group in groups.items():
        ms = statistics.median(seen[name])
        report.row(contender=names[name], ms=ms,
                   spread=f"{min(seen[name]):.0f}-{max(seen[name]):.0f}", ratio=ms / mine,
                   tokens_per_s=args.batch * args.length / ms * 1e3)
        group.close()
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
