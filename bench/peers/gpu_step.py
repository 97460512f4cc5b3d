"""Training steps on a GPU: PyTorch (torch.compile, flash attention, fused AdamW, bf16) and ds in turn, in
one run: tokens per second, their ratio, the share of the bf16 matrix rate (6N FLOP), peak memory.

usage: gpu_step.py BENCH_FOLDER [--model 124m|1.5b|8b] [--batch N] [--length 1024] [--rounds 5]
                   [--steps 10] [--in-turn] [--compile-blocks] [--also fp8,offload,offload-13b]
                   [--cap-gb 40] [--no-compile] [--device cuda:0] [--tiny] [--json FILE]
BENCH_FOLDER holds train_step and gpu_bench (build/cuda/bench). Every contender is a process of its own
that stays warm; both hold fp32 masters and compute in bf16. A time is that of one of the steps of a
turn, which ends when the GPU has finished. With --in-turn one process at a time holds the GPU: each
round starts the contenders one after another, warms each up, measures and ends it (PyTorch's second
start finds what it compiled in TORCHINDUCTOR_CACHE_DIR). --compile-blocks compiles a block and the head
of PyTorch's model instead of the whole, which takes long with many blocks. --also adds rows of ds alone:
  own, cudnn, recorded, products
           attention by our kernels, or by cuDNN; recorded work (graph_harvesting); matrix products
           whose algorithms were timed (time_products); each started alone, after the others
  fp8      the same with {"fp8": {"enabled": true}}
  offload  the largest GPT-2 up to 13B whose state fits this host's memory, with
           {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, while all but
           --cap-gb of the GPU's memory is taken away; then PyTorch's fully_shard with CPUOffloadPolicy
           on the same, alone too
  offload-13b  13B with 8 instead of 18 bytes of host memory per parameter: split masters, gradients
           added up in bf16, moments of 8 bits
What cannot run is a row with the reason. Exit status 3: there is no PyTorch or no GPU.
"""
import json
import os
import statistics
import sys
import tempfile
import time

import common
import gpu_common

# width, layers, heads; GPT-2 shapes throughout.
MODELS = {"124m": (768, 12, 12), "1.5b": (1600, 48, 25), "8b": (4096, 40, 32), "13b": (5120, 40, 40),
          "6.7b": (4096, 32, 32), "2.7b": (2560, 32, 32)}
BATCHES = {"124m": 32, "1.5b": 8, "8b": 2}  # two contenders fit a GPU of 141 GB
FP8 = 'fp8={"enabled": true}'
VARIANTS = {"own": 'cuda={"attention": "own"}', "cudnn": 'cuda={"attention": "cudnn"}',
            "recorded": "graph_harvesting=true", "products": 'cuda={"time_products": true}'}
OFFLOAD = 'zero_optimization={"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}}'
COMPACT = ('bf16={"enabled": true, "split_master": true}', 'data_types={"grad_accum_dtype": "bf16"}',
           'optimizer={"type": "AdamW", "state_dtype": "int8", "params": {"lr": 3e-4}}')
CHECKPOINTING = 'activation_checkpointing={"enabled": true}'


def shape(args, name):
    if args.tiny:
        return gpu_common.gpt2_config(64, 2, 2, vocab=211, positions=64)
    return gpu_common.gpt2_config(*MODELS[name], positions=args.length)


def compiled_step(torch, args, config):
    """The loss, and the parameters, of a model that is compiled and computes in bf16 by autocast."""
    kind = "cuda" if args.device.startswith("cuda") else "cpu"
    with torch.device(args.device):
        model = gpu_common.small_gpt2(torch, config)
    whole = not (args.no_compile or args.compile_blocks)
    if args.compile_blocks and not args.no_compile:
        for block in model.h:
            block.compile()
        model.head = torch.compile(model.head)

    def loss_of(ids, labels):
        with torch.autocast(kind, dtype=torch.bfloat16):
            return model(ids, labels)
    return (torch.compile(loss_of) if whole else loss_of), model


def offloaded_step(torch, args, config):
    """fully_shard of one rank whose masters, moments and gradients are the host's; blocks are
    recomputed."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577", RANK="0", WORLD_SIZE="1")
    torch.cuda.set_device(args.device)
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl")
    with torch.device("meta"):
        model = gpu_common.small_gpt2(torch, config)
    model.to_empty(device="cpu")
    some = torch.randn(1 << 20) * 0.02
    with torch.no_grad():
        for parameter in model.parameters():
            flat = parameter.view(-1)
            for at in range(0, flat.numel(), some.numel()):
                part = flat[at:at + some.numel()]
                part.copy_(some[:part.numel()])
    policy = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16),
              "offload_policy": CPUOffloadPolicy()}
    for i, block in enumerate(model.h):
        model.h[i] = fully_shard(checkpoint_wrapper(block), **policy)
    return fully_shard(model, **policy), model


def torch_child(args):
    """Answers each line "N" with the milliseconds of N steps, and "memory" with the GPU's peak."""
    torch = gpu_common.need_torch(args.device)
    torch.manual_seed(1)
    config = shape(args, args.model)
    kind = "cuda" if args.device.startswith("cuda") else "cpu"
    make = offloaded_step if args.child == "offload" else compiled_step
    compiled, model = make(torch, args, config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def turn(count):
        tokens = torch.randint(0, config["vocab_size"], (count, 2, args.batch, args.length),
                               device=args.device)
        gpu_common.synchronize(torch, args.device)
        began = time.perf_counter()
        for ids, labels in tokens:
            compiled(ids, labels).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        gpu_common.synchronize(torch, args.device)
        return (time.perf_counter() - began) * 1e3 / count

    turn(1 if args.child == "offload" else 3)
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        if line.strip() == "memory":
            peak = torch.cuda.max_memory_allocated() if kind == "cuda" else 0
            print(json.dumps({"total": {"peak": peak}}), flush=True)
        else:
            print(json.dumps([turn(int(line))]), flush=True)
    return 0


class Run:
    """Contenders on one model, started one after another; what failed has a reason instead."""

    def __init__(self, args, report, model):
        self.args, self.report, self.model = args, report, model
        self.config = shape(args, model)
        self.parameters = gpu_common.gpt2_parameters(self.config)
        self.seen, self.failed = {}, {}

    def ours(self, *keys, batch=None):
        """How a contender is started: a function, so that it can be started again."""
        def start():
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                json.dump({"model_type": "gpt2", **self.config}, file)
                file.flush()
                return gpu_common.contender(
                    [os.path.join(self.args.programs, "train_step"), file.name,
                     str(batch or self.args.batch), str(self.args.length), "bf16", "serve",
                     str(self.args.threads), "gradient_clipping=0", *keys, "--device", self.args.device])
        return start

    def torch(self, kind="compiled", batch=None, options=()):
        return lambda: gpu_common.contender([sys.executable, *sys.argv, "--child", kind, "--model", self.model,
                                             "--batch", str(batch or self.args.batch), *options])

    def measure(self, starts, matrix_rate, batch=None, note="", in_turn=False):
        """Contenders stay while the others have their turns, unless in_turn."""
        times, peaks, running = {name: [] for name in starts}, {}, {}
        for _ in range(self.args.rounds):
            for name, start in starts.items():
                if name in self.failed:
                    continue
                contender = running.get(name) or start()
                try:
                    if isinstance(contender, str):
                        raise common.NotStarted(contender)
                    times[name].append(statistics.fmean(contender.steps(self.args.steps)))
                    print(f"{name}: {times[name][-1]:.4g} ms a step", flush=True)
                    peaks[name] = contender.ask("memory")["total"]["peak"]
                    running[name] = contender
                except common.NotStarted as error:
                    self.failed[name] = str(error)
                    running.pop(name, None)
                if in_turn and name in running:
                    running.pop(name).close()
        for contender in running.values():
            contender.close()
        for name in starts:
            self.show(name, times[name], peaks, matrix_rate, batch, note)

    def show(self, name, times, peaks, matrix_rate, batch, note):
        if name in self.failed:
            self.report.row(contender=name, note=note, model=self.model, skipped=self.failed[name])
            return
        tokens = (batch or self.args.batch) * self.args.length
        ms = statistics.median(times)
        self.seen[name] = ms
        rate = 6 * self.parameters * tokens / ms * 1e3
        ratio = {"ratio": ms / self.seen["ds"]} if "ds" in self.seen else {}
        self.report.row(contender=name, note=note, model=self.model, parameters=self.parameters,
                        tokens=tokens, ms=ms, spread=f"{min(times):.4g}-{max(times):.4g}",
                        tokens_per_s=tokens / ms * 1e3, **ratio,
                        share_of_matrix_rate=rate / matrix_rate if matrix_rate else 0.0,
                        peak_gib=peaks[name] / 2**30)


def host_bytes():
    with open("/proc/meminfo", encoding="utf-8") as info:
        return next(int(line.split()[1]) for line in info if line.startswith("MemTotal")) * 1024


def fits_host(args, name, bytes_per_parameter):
    host = args.host_gib * 2**30 or host_bytes()
    return bytes_per_parameter * gpu_common.gpt2_parameters(shape(args, name)) < 0.9 * host


def cap(args):
    """What takes all but --cap-gb of the GPU's memory, as long as it is held."""
    if not args.device.startswith("cuda"):
        return None
    torch = gpu_common.need_torch(args.device)
    free, _ = torch.cuda.mem_get_info()
    return torch.empty(max(0, free - int(args.cap_gb * 1e9)), dtype=torch.uint8, device=args.device)


def compact_offload(args, report, matrix_rate):
    run = Run(args, report, "13b")
    note = f"offload, {args.cap_gb:g} GB, 8-bit moments"
    if not fits_host(args, "13b", 8):
        report.row(contender="ds", note=note, model="13b", skipped="the host has too little memory")
        return run
    ballast = cap(args)
    batch = 2 if args.tiny else 4
    run.measure({"ds": run.ours(*COMPACT, OFFLOAD, CHECKPOINTING, batch=batch)}, matrix_rate, batch, note)
    del ballast
    return run


def offload(args, report, matrix_rate):
    """Adam with its masters, moments and gradients in host memory: 18 bytes per parameter there."""
    fitting = [name for name in ("13b", "8b", "6.7b", "2.7b", "1.5b", "124m") if fits_host(args, name, 18)]
    model = fitting[0] if fitting else "124m"
    if model != "13b":
        print(f"offload: 13B needs more host memory than there is here; {model} is taken", flush=True)
    ballast = cap(args)
    batch = 2 if args.tiny else 4
    run = Run(args, report, model)
    note = f"offload, {args.cap_gb:g} GB"
    run.measure({"ds": run.ours(OFFLOAD, CHECKPOINTING, batch=batch)}, matrix_rate, batch, note)
    peer = run.torch("offload", batch) if args.device.startswith("cuda") else lambda: "it needs a GPU"
    run.measure({"torch fully_shard": peer}, matrix_rate, batch, note)
    del ballast
    return run


def main():
    made = gpu_common.parser(__doc__)
    made.add_argument("programs")
    made.add_argument("--child", choices=("compiled", "offload"))
    made.add_argument("--model", choices=sorted(MODELS), default="124m")
    made.add_argument("--batch", type=int, default=0)
    made.add_argument("--length", type=int, default=1024)
    made.add_argument("--steps", type=int, default=10)
    made.add_argument("--in-turn", action="store_true", help="one process at a time holds the GPU")
    made.add_argument("--compile-blocks", action="store_true")
    made.add_argument("--also", default="", help="own, cudnn, recorded, products, fp8, offload, offload-13b; "
                                                 "several with commas")
    made.add_argument("--only-also", action="store_true", help="leave the comparison out")
    made.add_argument("--cap-gb", type=float, default=40)
    made.add_argument("--host-gib", type=float, default=float(os.environ.get("HOST_GIB", 0)),
                      help="host memory that may be used, where the system reports less than it has")
    args = gpu_common.parse(made)
    if args.tiny:
        args.length, args.batch = 32, 2
    args.batch = args.batch or BATCHES.get(args.model, 2)
    if args.child:
        return torch_child(args)
    torch = gpu_common.need_torch(args.device)
    report = common.Report(args, f"GPT-2 {args.model} on {args.device}, {args.batch} x {args.length}, "
                                 f"bf16, PyTorch {torch.__version__}")
    bench = os.path.join(args.programs, "gpu_bench")
    limits = gpu_common.limits_of(bench, args)
    rates = [limits["bf16_flops_per_s"]]
    run = Run(args, report, args.model)
    also = [name for name in args.also.split(",") if name]
    unknown = set(also) - {*VARIANTS, "fp8", "offload", "offload-13b"}
    if unknown:
        made.error(f"--also does not know {', '.join(sorted(unknown))}")
    contenders = {}
    if not args.only_also:
        contenders = {"ds": run.ours(), "torch eager" if args.no_compile else "torch compile": run.torch()}
    if "fp8" in also:
        if "ds" not in contenders:
            contenders["ds"] = run.ours()
        contenders["ds fp8"] = run.ours(FP8)
    if contenders:
        run.measure(contenders, rates[0], in_turn=args.in_turn)
        if "torch compile" in run.failed:  # without a C compiler, say: then as it is
            run.measure({"torch eager": run.torch(options=["--no-compile"])}, rates[0], in_turn=True)
    variants = {f"ds {name}": run.ours(VARIANTS[name]) for name in also if name in VARIANTS}
    if variants:
        args.rounds = min(args.rounds, 2)
        run.measure(variants, rates[0], in_turn=True)
    runs = [run]
    if "offload-13b" in also:
        runs.append(compact_offload(args, report, rates[0]))
    if "offload" in also:
        runs.append(offload(args, report, rates[0]))
        host = common.run_json([os.path.join(args.programs, "print_limits"), str(args.threads)])
        report.row(contender="limits", note="GB/s: to the GPU, to the host, Adam's mix in host memory",
                   to_gpu=limits["host_to_gpu_bytes_per_s"] * 1e-9,
                   to_host=limits["gpu_to_host_bytes_per_s"] * 1e-9, adam_mix=host["mixed_gbs"])
    rates.append(gpu_common.limits_of(bench, args)["bf16_flops_per_s"])
    report.row(contender="bf16 products", tflop_per_s=rates[0] * 1e-12, and_after=rates[1] * 1e-12)
    report.finish()
    return verdict(runs)


def verdict(runs):
    """1 when ds failed, 3 when it only refused keys of what is not built yet."""
    reasons = [reason for run in runs for name, reason in run.failed.items() if name.startswith("ds")]
    refused = [reason for reason in reasons
               if "unknown key" in reason or "which this build does not have" in reason]
    if len(refused) < len(reasons):
        return 1
    if refused:
        gpu_common.skip(refused[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
