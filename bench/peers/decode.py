"""Generation with GPT-2 124M, one sequence: transformers on PyTorch and ds in turn, in one run.

usage: decode.py DECODE_PROGRAM [--prompt 512] [--new 64] [--forms fp32,bf16,int8,int4]
                 [--rounds 3] [--threads 2] [--stock] [--json FILE]
Needs torch and transformers from PyPI. The peer decodes greedily with its key-value cache in a loop
of its own, which is faster than transformers' generate(); int8 and int4 of ds stand beside the
peer's bf16, because PyTorch has no weight-only form on the CPU without further packages.
"""
import time

import common
from decode_common import SHAPE, config_file, run_ours


class Peer:
    def __init__(self, args, precision):
        import torch
        import transformers
        torch.set_num_threads(args.threads)
        torch.manual_seed(1)
        self.torch, self.args = torch, args
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**SHAPE, attn_implementation="sdpa")).eval()
        self.model = model.to(torch.bfloat16 if precision == "bf16" else torch.float32)
        self.ids = torch.randint(0, SHAPE["vocab_size"], (1, args.prompt))

    def generate(self):
        """Milliseconds until the first token, and of each token after it."""
        torch, times = self.torch, []
        with torch.inference_mode():
            began = time.perf_counter()
            out = self.model(self.ids, use_cache=True, logits_to_keep=1)
            token = out.logits[:, -1:].argmax(-1)
            first = (time.perf_counter() - began) * 1e3
            for _ in range(self.args.new - 1):
                began = time.perf_counter()
                out = self.model(token, past_key_values=out.past_key_values, use_cache=True)
                token = out.logits[:, -1:].argmax(-1)
                times.append((time.perf_counter() - began) * 1e3)
        return first, times


def main():
    made = common.parser(__doc__)
    made.add_argument("program")
    made.add_argument("--prompt", type=int, default=512)
    made.add_argument("--new", type=int, default=64)
    made.add_argument("--forms", default="fp32,bf16,int8,int4")
    made.set_defaults(rounds=3)
    args = common.parse(made)
    report = common.Report(args, "decode")
    with config_file() as config:
        peers = {}
        for form in args.forms.split(","):
            precision = "fp32" if form == "fp32" else "bf16"
            if precision not in peers:
                peers[precision] = Peer(args, precision)
                peers[precision].generate()
            ours, firsts, seen = [], [], []

            def peer():
                first, times = peers[precision].generate()
                firsts.append(first)
                return times

            def mine():
                out = run_ours(args, config, form, args.prompt, group=64, rounds=3)
                seen.append(out)
                ours.append(out["prompt_ms"])
                return out["ms_per_token"]

            times = common.interleave(args.rounds, {"peer": peer, "ds": mine})
            median = lambda values: sorted(values)[len(values) // 2]
            report.row(form=form, peer=f"torch {precision}", peer_ms_per_token=times["peer"],
                       ds_ms_per_token=times["ds"], ratio=times["peer"] / times["ds"],
                       ds_gb_per_s=median([s["gb_per_s"] for s in seen]),
                       read_gb_per_s=median([s["read"] for s in seen]),
                       share=median([s["share"] for s in seen]),
                       peer_prompt_ms=median(firsts), ds_prompt_ms=median(ours),
                       prompt_ratio=median(firsts) / median(ours),
                       prompt_share=median([s["prompt_share"] for s in seen]))
    report.finish()


if __name__ == "__main__":
    main()
