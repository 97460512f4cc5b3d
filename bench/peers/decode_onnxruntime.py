"""Generation with GPT-2 124M, one sequence: ONNX Runtime and ds in turn, in one run.

usage: decode_onnxruntime.py DECODE_PROGRAM [--prompts 32,990] [--new 24] [--forms fp32,int8,int4]
                    [--caches auto,int8] [--rounds 3] [--threads 2] [--group 32] [--json FILE]
       decode_onnxruntime.py --check
Needs onnxruntime, onnx and numpy from PyPI. The weights are random, the graph is that of onnx_gpt2.py,
its inputs and outputs are bound once, keys and values stay where they are. Forms of the peer, and
those of ds beside them:
  fp32  products in fp32; ds's fp32 and bf16, since ONNX Runtime has no bf16 on a CPU
  int8  "dynamic" quantisation and "nbits" (MatMulNBits of 8 bits, in groups); ds's int8
  int4  MatMulNBits of 4 bits with accuracy_level 4; ds's int4
The faster way of a form counts. ds rounds activations of prompts to 8 bits, too, with int8 and int4. The
peer keeps keys and values in fp32 (ds: fp32 beside fp32, else bf16), with the cache "int8" both in
8 bits. --check compares the graph's logits, of a prompt and of tokens after it, with NumPy's in
double precision on a small shape, and measures nothing.
"""
import sys
import time

import numpy as np
import onnx_gpt2
from onnx_gpt2 import Form

import common
import decode_common
from decode_common import SHAPE

OURS = {"fp32": ["fp32", "bf16"], "int8": ["int8"], "int4": ["int4"]}


def forms_of(name, group):
    return {"fp32": {"float": Form("float")},
            "int8": {"dynamic": Form("dynamic", 8), "nbits": Form("nbits", 8, block=group)},
            "int4": {"nbits": Form("nbits", 4, block=group)}}[name]


class Peer:
    def __init__(self, graph, threads):
        import onnxruntime
        self.value = onnxruntime.OrtValue.ortvalue_from_numpy
        how = onnxruntime.SessionOptions()
        how.intra_op_num_threads, how.inter_op_num_threads = threads, 1
        model = graph.model().SerializeToString()
        self.session = onnxruntime.InferenceSession(model, how, providers=["CPUExecutionProvider"])
        shape = graph.shape
        room = (1, shape["n_head"], shape["n_positions"], shape["n_embd"] // shape["n_head"])
        kind = np.int8 if graph.cache_scales else np.float32
        self.cache = [(names, self.value(np.zeros(room, kind))) for names in graph.caches]
        self.logits = self.value(np.zeros((1, 1, shape["vocab_size"]), np.float32))
        self.name = self.session.get_outputs()[0].name
        self.bindings, self.seen = {}, 0

    def binding(self, count):
        """Buffers for `count` tokens, made once."""
        if count not in self.bindings:
            inputs = {name: self.value(np.zeros(shape, kind)) for name, shape, kind in (
                ("ids", (1, count), np.int64), ("positions", (1, count), np.int64),
                ("lengths", 1, np.int32), ("total", 1, np.int32))}
            bound = self.session.io_binding()
            for name, value in inputs.items():
                bound.bind_ortvalue_input(name, value)
            for (past, present), value in self.cache:
                bound.bind_ortvalue_input(past, value)
                bound.bind_ortvalue_output(present, value)
            bound.bind_ortvalue_output(self.name, self.logits)
            self.bindings[count] = bound, inputs
        return self.bindings[count]

    def feed(self, tokens):
        count = len(tokens)
        bound, inputs = self.binding(count)
        began = time.perf_counter()
        self.seen += count
        inputs["ids"].update_inplace(np.array([tokens], np.int64))
        inputs["positions"].update_inplace(np.arange(self.seen - count, self.seen, dtype=np.int64)[None])
        inputs["lengths"].update_inplace(np.array([self.seen - 1], np.int32))
        inputs["total"].update_inplace(np.array([self.seen], np.int32))
        self.session.run_with_iobinding(bound)
        return (time.perf_counter() - began) * 1e3

    def generate(self, prompt, new):
        self.seen = 0
        return decode_common.generate(self.feed, prompt, new)


def cache_scales(shape, weights, form, threads, ids):
    """The largest key and value of each layer, of a prompt with a cache in fp32, as code 127."""
    peer = Peer(onnx_gpt2.Graph(shape, weights, form), threads)
    peer.feed(ids)
    return {(int(layer), part): float(np.abs(value.numpy()).max()) / 127
            for (names, value) in peer.cache for _, layer, part in [names[0].split(".")]}


def compare(args, report, weights, config, name, cache):
    peers = {}
    for way, form in forms_of(name, args.group).items():
        scales = None
        if cache == "int8":
            scales = cache_scales(SHAPE, weights, form, args.threads, decode_common.prompt_ids(256))
        peer = Peer(onnx_gpt2.Graph(SHAPE, weights, form, scales), args.threads)
        peers[way] = lambda prompt, peer=peer: peer.generate(prompt, args.new)
    ours = {form: lambda prompt, form=form: decode_common.run_ours(
        args, config, form, prompt, group=args.group, rounds=1, codes=form.startswith("int"),
        int8_cache=cache == "int8") for form in OURS[name]}
    decode_common.compare(args, report, peers, ours, {"form": name, "cache": cache})


def check(threads):
    """Whether the graph's logits are the model's: where all is computed in fp32, but for the order of
    sums; with activations or the cache in 8 bits, but for their rounding."""
    shape = {"vocab_size": 301, "n_positions": 64, "n_embd": 128, "n_layer": 3, "n_head": 4}
    weights = onnx_gpt2.random_weights(shape, 2, spread=0.1)
    exact, coded = 2e-5, 0.05
    cases = [("float", Form("float"), False, exact),
             ("float, cache in 8 bits", Form("float"), True, coded),
             ("dynamic", Form("dynamic", 8), False, coded)]
    for bits in (8, 4):
        for block in (32, 128):
            for level, bound in ((1, exact), (4, coded)):
                cases.append((f"nbits {bits}, block {block}, level {level}",
                              Form("nbits", bits, level, block), False, bound))
    ids, prompt, wrong = decode_common.prompt_ids(40, shape["vocab_size"]), 29, 0
    for name, form, codes, bound in cases:
        scales = cache_scales(shape, weights, form, threads, ids) if codes else None
        peer = Peer(onnx_gpt2.Graph(shape, weights, form, scales), threads)
        want = onnx_gpt2.reference(shape, weights, form, ids)
        error = 0
        for begin, end in [(0, prompt), *((i, i + 1) for i in range(prompt, len(ids)))]:
            peer.feed(ids[begin:end])
            row = want[end - 1]
            error = max(error, np.sqrt(np.mean((peer.logits.numpy()[0, 0] - row) ** 2)) / row.std())
        wrong += not error < bound
        print(f"{name}: error {error:.2g} of the logits' deviation, at most {bound:g}"
              + ("" if error < bound else ": TOO LARGE"))
    return 1 if wrong else 0


def main():
    if "--check" in sys.argv[1:]:
        return check(threads=2)
    made = decode_common.parser(__doc__)
    made.add_argument("--forms", default="fp32,int8,int4")
    made.add_argument("--group", type=int, default=32, help="weights with one scale")
    args = made.parse_args()
    report = common.Report(args, "ONNX Runtime")
    weights = onnx_gpt2.random_weights(SHAPE, 1)
    with decode_common.config_file() as config:
        for name in args.forms.split(","):
            for cache in args.caches.split(","):
                compare(args, report, weights, config, name, cache)
    report.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
