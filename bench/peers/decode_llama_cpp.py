"""Generation with GPT-2 124M, one sequence: llama.cpp and ds in turn, in one run, with weights of 8 and
of 4 bits in groups of 32.

usage: decode_llama_cpp.py DECODE_PROGRAM [--prompts 32,990] [--new 24] [--forms int8,int4]
                    [--caches auto,int8] [--rounds 3] [--threads 2] [--json FILE]
Needs llama-cpp-python and gguf from PyPI. The weights are random; both have codes of 8 bits (Q8_0) or
of 4 (Q4_0) with a scale of 16 bits for 32 weights, in all matrices and the table of tokens that makes
the logits. ds keeps keys and values in bf16, llama.cpp in fp16; with the cache "int8" both keep codes
of 8 bits, and llama.cpp then needs its flash attention, which is tried with the other cache, too: the
faster one counts. The heap is not tuned for either.
"""
import os
import tempfile
import time

import common
import decode_common
from decode_common import SHAPE


def write_model(path, form):
    import gguf
    import numpy as np
    kind = {"int8": gguf.GGMLQuantizationType.Q8_0, "int4": gguf.GGMLQuantizationType.Q4_0}[form]
    width, random = SHAPE["n_embd"], np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(SHAPE["n_layer"])
    writer.add_context_length(SHAPE["n_positions"])
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(4 * width)
    writer.add_head_count(SHAPE["n_head"])
    writer.add_layer_norm_eps(1e-5)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(SHAPE["vocab_size"])

    def matrix(name, rows, columns):
        numbers = random.normal(0, 0.02, (rows, columns)).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)

    def vector(name, value, size):
        writer.add_tensor(name, np.full(size, value, np.float32))

    matrix("token_embd.weight", SHAPE["vocab_size"], width)
    writer.add_tensor("position_embd.weight",
                      random.normal(0, 0.02, (SHAPE["n_positions"], width)).astype(np.float32))
    vector("output_norm.weight", 1, width)
    vector("output_norm.bias", 0, width)
    for layer in range(SHAPE["n_layer"]):
        for norm in ("attn_norm", "ffn_norm"):
            vector(f"blk.{layer}.{norm}.weight", 1, width)
            vector(f"blk.{layer}.{norm}.bias", 0, width)
        for name, rows, columns in (("attn_qkv", 3 * width, width), ("attn_output", width, width),
                                    ("ffn_up", 4 * width, width), ("ffn_down", width, 4 * width)):
            matrix(f"blk.{layer}.{name}.weight", rows, columns)
            vector(f"blk.{layer}.{name}.bias", 0, rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Peer:
    def __init__(self, path, args, cache, flash):
        from llama_cpp import llama_cpp
        self.api, self.new = llama_cpp, args.new
        llama_cpp.llama_backend_init()
        how = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), how)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = context.n_batch = context.n_ubatch = SHAPE["n_positions"]
        context.n_threads = context.n_threads_batch = args.threads
        context.flash_attn_type = 1 if flash else 0
        context.no_perf = True
        if cache == "int8":
            context.type_k = context.type_v = 8  # Q8_0
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        if not self.context:
            raise RuntimeError("llama.cpp makes no context of these options")

    def feed(self, tokens):
        import ctypes
        ids = (self.api.llama_token * len(tokens))(*tokens)
        began = time.perf_counter()
        status = self.api.llama_decode(self.context, self.api.llama_batch_get_one(ids, len(tokens)))
        # Reading the logits waits for them; the likeliest would be looked for in both.
        logits = self.api.llama_get_logits(self.context)
        ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))[0]
        if status != 0:
            raise RuntimeError(f"llama_decode gave {status}")
        return (time.perf_counter() - began) * 1e3

    def generate(self, prompt):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        return decode_common.generate(self.feed, prompt, self.new)

    def close(self):
        self.api.llama_free(self.context)
        self.api.llama_model_free(self.model)


def compare(args, report, config, path, form, cache):
    ways = {"flash": True} if cache == "int8" else {"flash": True, "plain": False}
    peers = {way: Peer(path, args, cache, flash) for way, flash in ways.items()}

    def ours(prompt):
        return decode_common.run_ours(args, config, form, prompt, group=32, rounds=1, codes=True,
                                      int8_cache=cache == "int8")

    decode_common.compare(args, report, {way: peer.generate for way, peer in peers.items()},
                          {form: ours}, {"form": form, "cache": cache})
    for peer in peers.values():
        peer.close()


def main():
    made = decode_common.parser(__doc__)
    made.add_argument("--forms", default="int8,int4")
    args = made.parse_args()
    report = common.Report(args, "llama.cpp")
    with decode_common.config_file() as config, tempfile.TemporaryDirectory() as folder:
        for form in args.forms.split(","):
            path = os.path.join(folder, f"{form}.gguf")
            write_model(path, form)
            for cache in args.caches.split(","):
                compare(args, report, config, path, form, cache)
    report.finish()


if __name__ == "__main__":
    main()
