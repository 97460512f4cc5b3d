"""A layer of experts, forward and backward: Transformers' Mixtral block (its own loop over experts, and
PyTorch's grouped products) and ds in turn, in one run.

usage: experts.py EXPERTS_PROGRAM [--rounds 5] [--threads 2] [--stock] [--json FILE]
       [--tokens 4096] [--width 768] [--inner 1536] [--experts 8] [--choices 2]
       [--types fp32,bf16] [--ways eager,grouped_mm]
Needs torch and transformers from PyPI. A way that PyTorch does not have for a type is left out.
"""
import re
import subprocess

import common


def ours(args, dtype):
    """Milliseconds of the spread layer."""
    sizes = (args.tokens, args.width, args.inner, args.experts, args.choices, args.threads)
    out = subprocess.run([args.program, dtype, *map(str, sizes)], env=common.plain_environment(),
                         check=True, capture_output=True, text=True).stdout
    return float(re.search(r"^experts +([0-9.]+)", out, re.M).group(1))


def peer(torch, args, dtype, way):
    """A function that runs forward and backward a few times, in milliseconds."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock
    config = MixtralConfig(hidden_size=args.width, intermediate_size=args.inner,
                           num_local_experts=args.experts, num_experts_per_tok=args.choices)
    config._experts_implementation = way
    torch.manual_seed(0)
    block = MixtralSparseMoeBlock(config)
    for p in block.parameters():
        torch.nn.init.normal_(p, std=0.02)
    block = block.to(dtype)
    x = torch.randn(1, args.tokens, args.width).to(dtype).requires_grad_()
    gradient = torch.randn(1, args.tokens, args.width).to(dtype)

    def both():
        block.zero_grad(set_to_none=False)
        out = block(x)
        (out[0] if isinstance(out, tuple) else out).backward(gradient)

    both()
    # Several in a turn, since what the program of ours tells is a median of several.
    return lambda: [common.timed(both) for _ in range(3)]


def main():
    made = common.parser(__doc__)
    made.add_argument("program")
    for name, default in (("tokens", 4096), ("width", 768), ("inner", 1536), ("experts", 8),
                          ("choices", 2)):
        made.add_argument("--" + name, type=int, default=default)
    made.add_argument("--types", default="fp32,bf16")
    made.add_argument("--ways", default="eager,grouped_mm", help="of Transformers' block")
    args = common.parse(made)
    import torch  # after the environment is tuned
    import transformers
    torch.set_num_threads(args.threads)
    report = common.Report(args, "a layer of experts against transformers "
                           f"{transformers.__version__}, torch {torch.__version__}")
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    for name in args.types.split(","):
        dtype = dtypes[name]
        for way in args.ways.split(","):
            try:
                run = peer(torch, args, dtype, way)
            except (RuntimeError, NotImplementedError, ValueError) as error:
                print(f"{name} {way}: not there: {str(error).splitlines()[0]}")
                continue
            medians = common.interleave(args.rounds, {
                "peer": run, "ours": lambda: ours(args, name)})
            report.row(row=f"{name} {way}", peer_ms=medians["peer"], ds_ms=medians["ours"],
                       ratio=medians["peer"] / medians["ours"])
    report.finish()


if __name__ == "__main__":
    main()
