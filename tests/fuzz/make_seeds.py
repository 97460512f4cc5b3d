#!/usr/bin/env python3
"""Writes the hand-made inputs (seed-*) of tests/fuzz/corpus: make_seeds.py [FOLDER]

They give each target something well formed to start from; everything else in the corpus was found
by fuzzing. The seeds of the manifest that hold FlatBuffers were written by the library itself and
are not made here.
"""
import json
import pathlib
import struct
import sys

ROOT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "corpus")


def put(target, name, content):
    folder = ROOT / target
    folder.mkdir(parents=True, exist_ok=True)
    if not isinstance(content, bytes):
        content = content.encode()
    assert len(content) <= 4096, (target, name, len(content))
    (folder / f"seed-{name}").write_bytes(content)


def config_seeds():
    def adam(kind, **params):
        return {"type": kind, "params": {"lr": 1e-3, **params}}

    documents = {
        "empty": {},
        "batch": {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2},
        "adamw": {"train_batch_size": 8, "gradient_clipping": 1.0,
                  "optimizer": adam("AdamW", betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1),
                  "scheduler": {"type": "WarmupDecayLR", "params": {
                      "total_num_steps": 100, "warmup_num_steps": 10, "warmup_type": "linear"}},
                  "bf16": {"enabled": True}},
        "lion_fp16": {"train_batch_size": 4, "optimizer": adam("Lion", betas=[0.9, 0.99]),
                      "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 12,
                               "loss_scale_window": 500, "hysteresis": 2, "min_loss_scale": 1,
                               "consecutive_hysteresis": True}},
        "sgd_cycle": {"train_batch_size": 4,
                      "optimizer": adam("SGD", momentum=0.9, nesterov=True),
                      "scheduler": {"type": "OneCycle", "params": {
                          "cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "decay_lr_rate": 0.001,
                          "cycle_first_step_size": 10, "cycle_first_stair_count": 2,
                          "cycle_momentum": True, "cycle_min_mom": 0.8, "cycle_max_mom": 0.9}}},
        "lamb": {"train_batch_size": 4, "optimizer": adam("Lamb", max_coeff=10, min_coeff=0.01),
                 "scheduler": {"type": "LRRangeTest", "params": {
                     "lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 20,
                     "lr_range_test_step_rate": 5, "lr_range_test_staircase": False}}},
        "muon": {"train_batch_size": 4, "optimizer": adam("Muon", momentum=0.95),
                 "scheduler": {"type": "WarmupCosineLR", "params": {
                     "total_num_steps": 50, "warmup_min_ratio": 0.1, "cos_min_ratio": 0.01}}},
        "adagrad": {"train_batch_size": 4, "optimizer": adam("Adagrad", eps=1e-10)},
        "zero": {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
                 "zero_optimization": {"stage": 0, "reduce_bucket_size": 5e8,
                                       "leaf_module": {"classes": ["A", "B"]}},
                 "tensorboard": {"enabled": True, "output_path": "x", "job_name": "j"},
                 "activation_checkpointing": {"enabled": True, "number_checkpoints": 2},
                 "checkpoint": {"tag_validation": "Warn"}},
        "compression": {"train_batch_size": 8, "compression_training": {"weight_quantization": {
            "shared_parameters": {"enabled": False}, "different_groups": {"g": {"params": {
                "start_bits": 8, "target_bits": 4}, "modules": ["a"]}}}}},
        "auto": {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2,
                 "gradient_accumulation_steps": "auto", "optimizer": adam("AdamW")},
        "unknown": {"train_batch_siez": 8},
        "wrong_type": {"train_batch_size": "8", "optimizer": []},
        "huge": {"train_batch_size": 9223372036854775807, "gradient_accumulation_steps": 2},
    }
    for name, document in documents.items():
        put("config", name, json.dumps(document))
    put("config", "comments", '// one\n{ /* two */ "train_batch_size": 4, // three\n "seed": 7 }')
    put("config", "duplicate", '{"seed": 1, "seed": 2}')
    put("config", "numbers", '{"train_batch_size":1e1,"gradient_clipping":-0.0,'
                             '"steps_per_print":1e400,"seed":18446744073709551616}')


def safetensors_seeds():
    two = {"__metadata__": {"format": "pt"},
           "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
           "b.weight": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}}
    put("safetensors", "two", b"h" + json.dumps(two).encode() + b"\0" + bytes(range(32)))
    kinds = ["BOOL", "U8", "I8", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "F64", "I64",
             "U64", "F8_E5M2", "F8_E4M3", "C64"]
    sizes = dict(zip(kinds, [1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8, 1, 1, 8]))
    header, at = {}, 0
    for kind in kinds:
        header[kind.lower()] = {"dtype": kind, "shape": [1], "data_offsets": [at, at + sizes[kind]]}
        at += sizes[kind]
    put("safetensors", "kinds", b"h" + json.dumps(header).encode() + b"\0" + bytes(at))
    four = {"q": {"dtype": "F4", "shape": [2, 2], "data_offsets": [0, 2]},
            "r": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [2, 5]}}
    put("safetensors", "small_bits", b"h" + json.dumps(four).encode() + b"\0" + bytes(5))
    put("safetensors", "scalars", b'h{"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},'
                                  b'"e":{"dtype":"F32","shape":[0,7],"data_offsets":[8,8]}}\0'
                                  + bytes(8))
    put("safetensors", "overflow", b'h{"s":{"dtype":"U8","shape":[4294967296,4294967296,0],'
                                   b'"data_offsets":[0,0]}}\0')
    put("safetensors", "hole", b'h{"s":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}\0ab')
    put("safetensors", "overlap", b'h{"s":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},'
                                  b'"t":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}\0abc')
    put("safetensors", "empty", b"h{}\0")
    raw = json.dumps(two).encode()
    put("safetensors", "raw", b"r" + struct.pack("<Q", len(raw)) + raw + bytes(range(32)))
    put("safetensors", "raw_long", b"r" + struct.pack("<Q", 100_000_001) + b"{}")
    put("safetensors", "raw_short", b"r\x01\x00")

    def index(weight_map):
        return b"i" + json.dumps({"metadata": {"total_size": 13}, "weight_map": weight_map}).encode()

    put("safetensors", "index", index({"w": "a.safetensors", "b": "a.safetensors",
                                       "v": "b.safetensors"}))
    put("safetensors", "index_outside", index({"o": "../outside.safetensors"}))
    put("safetensors", "index_missing", index({"w": "c.safetensors"}))
    put("safetensors", "index_unknown", index({"w": "a.safetensors", "x": "b.safetensors"}))


def manifest_seeds():
    # Numbers for the composer of manifest_fuzz.cc ("s").
    def name(text):
        return bytes([len(text)]) + text

    head = name(b"step10") + name(b"writer") + struct.pack("<ibbiq", 10, 0, 20, 80, 640) + b"\0"
    blob = b"\1" + struct.pack("<HB", 256, 0) + b"\0" + name(b"data-0.bin")

    def tensor(text, kind, dtype, shape, slices, state=b""):
        out = name(text) + bytes([kind - 1]) + name(state) + bytes([dtype - 1, len(shape)])
        out += bytes(shape) + b"\1\xff\0" + struct.pack("<H", 0) + bytes([len(slices)])
        for offset, extent in slices:
            out += bytes(offset) + bytes(extent) + b"\0\0"
        return out

    put("manifest", "composed", b"s" + head + blob + b"\1"
        + tensor(b"w", 1, 1, [2, 3], [([0, 0], [2, 3])]) + b"\0")
    put("manifest", "slices", b"s" + head + blob + b"\1"
        + tensor(b"w", 2, 1, [4, 3], [([0, 0], [2, 3]), ([2, 0], [2, 3])]) + b"\0")
    put("manifest", "overlap", b"s" + head + blob + b"\1"
        + tensor(b"w", 2, 1, [4], [([0], [3]), ([2], [2])]) + b"\0")
    states = b"\3"
    for kind, text in ((1, b"count"), (2, b"real"), (4, b"json")):
        states += name(text) + bytes([kind - 1]) + struct.pack("<qd", -5, 0.5) + name(b"{}") + b"\0"
    put("manifest", "states", b"s" + head + blob + b"\0" + states)
    put("manifest", "empty", b"s")
    put("manifest", "raw_short", b"r\x89DSM\r\n\x1a\n")


def tokenizer_seeds():
    def document(**parts):
        base = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None,
                "post_processor": None, "decoder": None,
                "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4},
                          "merges": ["a b", "ab c"]}}
        base.update(parts)
        return base

    def seed(label, text, **parts):
        put("tokenizer_json", label, json.dumps(document(**parts), ensure_ascii=False).encode()
            + b"\0" + text)

    special = {"id": 5, "content": "<|endoftext|>", "special": True, "lstrip": False,
               "rstrip": True, "single_word": False, "normalized": False}
    word = {"id": 6, "content": "cab", "special": False, "lstrip": True, "rstrip": False,
            "single_word": True, "normalized": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                  "use_regex": True}
    seed("plain", b"abc cab")
    seed("added", b"ab <|endoftext|> cab abcab", added_tokens=[special, word])
    alphabet = [chr(c) for c in list(range(33, 127)) + list(range(161, 173))
                + list(range(174, 256)) + list(range(256, 324))]
    vocab = {c: i for i, c in enumerate(alphabet)}
    vocab["\u0120t"] = len(vocab)
    seed("byte_level", "it's text \u00e9\u4e2d\U0001f600 123".encode() + b"\xff\x80",
         pre_tokenizer=byte_level, decoder=byte_level,
         model={"type": "BPE", "vocab": vocab, "merges": ["\u0120 t"]})
    seed("ignore_merges", b"abc abd", pre_tokenizer={"type": "ByteLevel", "use_regex": False},
         model={"type": "BPE", "ignore_merges": True, "vocab": {"a": 0, "b": 1, "abc": 2,
                                                                "\u0120": 3}, "merges": []})
    pattern = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+(?!\S)|\s+"
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        seed("split_" + behavior.lower(), b"abc's 1234 \n ab", pre_tokenizer={
            "type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior,
                 "invert": behavior == "Removed"},
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]})
    seed("metaspace", "ab\u00fcc".encode(),
         normalizer={"type": "Sequence", "normalizers": [
             {"type": "Prepend", "prepend": "\u2581"},
             {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
         decoder={"type": "Sequence", "decoders": [
             {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
             {"type": "ByteFallback"}, {"type": "Fuse"},
             {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
         model={"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True,
                "vocab": {"<unk>": 0, "<0xC3>": 1, "<0xBC>": 2, "\u2581": 3, "a": 4, "b": 5,
                          "\u2581a": 6}, "merges": [["\u2581", "a"]]})
    seed("metaspace_step", b"a b  c", pre_tokenizer={
        "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True},
         decoder={"type": "Metaspace", "replacement": "\u2581", "add_prefix_space": True})
    seed("normalizers", "\u0130A\u0301\ufb01 \u212b ".encode(),
         normalizer={"type": "Sequence", "normalizers": [
             {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}, {"type": "NFKC"},
             {"type": "Strip", "strip_left": True, "strip_right": True}]})
    seed("wordpiece", "Caf\u00e9 \u4e2d abc, [MASK]ab".encode(),
         normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                     "strip_accents": None, "lowercase": True},
         pre_tokenizer={"type": "BertPreTokenizer"},
         added_tokens=[{"id": i, "content": t, "special": True}
                       for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])],
         post_processor={"type": "TemplateProcessing",
                         "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                                    {"Sequence": {"id": "A", "type_id": 0}},
                                    {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
                         "pair": [],
                         "special_tokens": {
                             "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                             "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
         decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
         model={"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
                "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "ca": 5,
                          "##fe": 6, "a": 7, "##b": 8, "##c": 9, ",": 10, "\u4e2d": 11}})
    seed("roberta", b"ab", post_processor={"type": "RobertaProcessing", "sep": ["c", 2],
                                           "cls": ["b", 1], "trim_offsets": True,
                                           "add_prefix_space": False})
    seed("hard_pattern", b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
         pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"})
    seed("empty_pattern", b"abc", pre_tokenizer={"type": "Split", "pattern": {"Regex": "x*"},
                                                 "behavior": "MergedWithNext"})
    grow = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 700}
    seed("growing", b"a" * 64, normalizer={"type": "Sequence", "normalizers": [grow] * 2})
    seed("growing_decoder", b"a" * 64, decoder={"type": "Sequence", "decoders": [
        {"type": "Fuse"}] + [grow] * 2})
    seed("holes", b"ab", model={"type": "BPE", "vocab": {"a": 0, "b": 70000}, "merges": []})
    seed("huge_id", b"ab", model={"type": "BPE", "vocab": {"a": 0, "b": 2147483646}, "merges": []})
    seed("same_id", b"ab", model={"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []})
    seed("unigram", b"ab", model={"type": "Unigram", "vocab": [["a", -1.0]]})


def idx_seeds():
    def idx(code, sizes, documents, modes=b""):
        item = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 4, 8: 2}[code]
        pointers, at = [], 0
        for size in sizes:
            pointers.append(at)
            at += size * item
        out = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(sizes), len(documents))
        out += struct.pack(f"<{len(sizes)}i", *sizes) + struct.pack(f"<{len(sizes)}q", *pointers)
        return out + struct.pack(f"<{len(documents)}q", *documents) + modes, at

    def seed(name, flags, length, *parts, **more):
        content, size = idx(*parts, **more)
        put("idx", name, struct.pack("<BHH", flags, length, size) + content)

    for code in range(1, 9):
        seed(f"type{code}", 0, 4, code, [5, 3, 9, 0, 2], [0, 2, 5])
    seed("modes", 16, 3, 4, [2, 7, 1, 1], [0, 1, 4], modes=b"\0\1\0\1")
    seed("repaired", 3, 8, 8, [40, 30, 20, 10], [0, 1, 2, 3, 4])
    seed("valid", 4, 4, 8, [20] * 30, list(range(31)))
    seed("empty", 0, 1, 4, [], [0])
    content, size = idx(4, [3, 3], [0, 2])
    broken = bytearray(content)
    broken[34:38] = struct.pack("<i", -3)
    put("idx", "negative", struct.pack("<BHH", 0, 2, size) + bytes(broken))
    broken = bytearray(content)
    broken[18:26] = struct.pack("<Q", 1 << 61)
    put("idx", "many", struct.pack("<BHH", 0, 2, size) + bytes(broken))
    put("idx", "legacy", struct.pack("<BHH", 0, 2, 0) + b"TNTIDX\0\0" + bytes(40))


def dlpack_seeds():
    def seed(name, bits, code, width, shape, strides=(), extra=b"", offset=b"\0"):
        out = bytes([bits]) + extra + b"\0\0" + bytes([code, width, 0, len(shape)]) + offset
        put("dlpack", name, out + bytes(shape) + bytes(strides))

    seed("packed", 4, 2, 2, [2, 3])
    seed("strided", 0, 2, 2, [3, 2], [4, 1])
    seed("transposed", 0, 0, 3, [4, 3], [1, 4])
    seed("broadcast", 0, 0, 0, [8, 8], [0, 1])
    seed("legacy", 5, 4, 1, [5])
    seed("scalar", 4, 2, 3, [])
    seed("read_only", 16 + 4, 2, 2, [2, 3], extra=struct.pack("<Q", 1))
    seed("stream", 32 + 4, 2, 2, [2])
    seed("null", 128 + 4, 2, 2, [2])
    seed("odd", 64 + 4, 2, 2, [2], extra=b"\1")
    seed("version", 8 + 4, 2, 2, [2], extra=struct.pack("<I", 2))
    seed("empty", 0, 2, 2, [0, 5], [5, 1])
    seed("offset", 4, 2, 2, [4], offset=b"\xc8\4")
    big = b"\xe6\x3e"  # 1 << 62
    put("dlpack", "overflow", bytes([4, 0, 0, 2, 2, 0, 3, 0]) + big + big + b"\4")
    put("dlpack", "wrap", bytes([0, 0, 0, 2, 2, 0, 2, 0, 2, 2]) + big + big)
    put("dlpack", "negative", bytes([0, 0, 0, 2, 2, 0, 1, 0, 3, 0xF0])
        + struct.pack("<q", -1))


def jsonl_seeds():
    put("jsonl", "text", '{"text":"one"}\n{"text":"two \\u00e9"}\n\n{"text":["a","b"]}\n')
    put("jsonl", "no_end", '{"text":"no line end"}')
    put("jsonl", "crlf", '{"text":"one"}\r\n{"text":"two"}\r\n')
    put("jsonl", "empty_text", '{"text":""}\n{"text":[]}\n{"text":["",""]}\n{"text":"x"}')
    put("jsonl", "wrong", '{"text":1}\n')
    put("jsonl", "no_key", '{"other":"x"}\n')
    put("jsonl", "list", '["text"]\n')
    put("jsonl", "utf8", b'{"text":"\xff"}\n')
    put("jsonl", "surrogate", '{"text":"\\ud800"}\n{"text":"\\ud83d\\ude00"}\n')
    put("jsonl", "blanks", " \t\n\n  \r\n")
    put("jsonl", "prompt", '{"prompt":"2+2=","completion":"4"}\n{"prompt":"a","completion":"b"}\n')
    put("jsonl", "chat", json.dumps({"messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."}]}) + "\n")


def finetune_seeds():
    chat = [json.dumps({"messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": text}, {"role": "tool", "content": "<|im_end|>"},
        {"role": "assistant", "content": " \u00e9 "}]}) for text in ("Hello.", "x" * 40, "")]
    pairs = [json.dumps({"prompt": p, "completion": c})
             for p, c in (("2+2=", "4"), ("", "empty"), ("long " * 9, "end"), ("none", ""))]
    texts = [json.dumps({"text": t}) for t in ("one", "two <|im_end|>", "three " * 10, "", "y")]
    for flags in (0, 1 + 2, 1 + 4, 8, 16 + 32, 64, 128, 1 + 8 + 128):
        for name, lines in (("chat", chat), ("pairs", pairs), ("texts", texts)):
            put("finetune", f"{name}_{flags}", bytes([flags, 24]) + "\n".join(lines).encode())
    put("finetune", "no_template", bytes([2, 24]) + chat[0].encode())
    put("finetune", "role", b'\0\x18{"messages":[{"role":"bot","content":"x"}]}')
    put("finetune", "both", b'\0\x18{"text":"x","prompt":"y"}')
    put("finetune", "half", b'\0\x18{"prompt":"y"}')
    put("finetune", "kind", b'\0\x18{"text":["x"]}\n\n[]')


def sentences_seeds():
    text = "a b c.\nthe texts, abc\n0 1\n\nabcabc\nthe a b\n\none alone\n"
    vocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n\nthe\nab\n"
    lines = "\n".join(json.dumps({"text": t}) for t in (["a b", "c, c"], "a\nb\nthe text", [], ""))
    for flags in (0, 2, 8 * 20, 2 + 8 * 20):
        put("sentences", f"text_{flags}", bytes([flags, 16]) + text.encode())
        put("sentences", f"lines_{flags}", bytes([flags + 1, 16]) + lines.encode())
    put("sentences", "vocab", bytes([4, 16]) + (vocab + "\n" + text).encode())
    put("sentences", "vocab_short", bytes([4, 16]) + b"[PAD]\n[UNK]\n")
    put("sentences", "long", bytes([0, 16]) + b"a " * 600 + b"\nb\n")
    put("sentences", "short", bytes([0, 4]) + text.encode())


def model_config_seeds():
    llama = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64,
             "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
             "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0}
    documents = {
        "gpt2": {"model_type": "gpt2", "vocab_size": 64, "n_positions": 32, "n_embd": 16,
                 "n_layer": 2, "n_head": 2, "activation_function": "gelu_new",
                 "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "n_inner": None},
        "llama": llama,
        "llama_tied": {**llama, "tie_word_embeddings": True, "attention_bias": True},
        "linear": {**llama, "rope_scaling": {"type": "linear", "factor": 4.0}},
        "dynamic": {**llama, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        "llama3": {**llama, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}},
        "yarn": {**llama, "rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1, "truncate": False,
            "mscale": 1.0, "mscale_all_dim": 0.5, "original_max_position_embeddings": 32}},
        "mistral": {**llama, "model_type": "mistral", "architectures": ["MistralForCausalLM"],
                    "sliding_window": 16},
        "qwen2": {**llama, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
                  "use_sliding_window": True, "max_window_layers": 1, "sliding_window": 8,
                  "layer_types": ["full_attention", "sliding_attention"]},
        "gpt_neox": {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"],
                     "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
                     "num_hidden_layers": 2, "num_attention_heads": 4, "rotary_pct": 0.25,
                     "rotary_emb_base": 10000, "use_parallel_residual": True,
                     "layer_norm_eps": 1e-5, "hidden_act": "gelu"},
        "bert": {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 64,
                 "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                 "num_attention_heads": 4, "max_position_embeddings": 64, "type_vocab_size": 2,
                 "layer_norm_eps": 1e-12, "hidden_act": "gelu"},
        "unknown_type": {"model_type": "t5"},
        "unknown_key": {**llama, "rope_thteta": 1.0},
        "heads": {**llama, "num_key_value_heads": 3},
    }
    documents["bert_mlm"] = {**documents["bert"], "architectures": ["BertForMaskedLM"]}
    documents["bert_classifier"] = {**documents["bert"],
                                    "architectures": ["BertForSequenceClassification"],
                                    "id2label": {"0": "no", "1": "yes"}}
    for name, document in documents.items():
        put("model_config", name, json.dumps(document))
    put("model_config", "defaults", '{"model_type":"gpt2"}')
    put("model_config", "huge", '{"model_type":"gpt2","vocab_size":9223372036854775808}')


def record(kind, count, payload=b"", op=0, dtype=1, flags=4, root=-1, claimed=None, largest=0, dims=0):
    """A record as src/comm/record.h lays it out, and its payload."""
    claimed = len(payload) if claimed is None else claimed
    head = struct.pack("<QBBBBiqqQii", 1, kind, op, dtype, flags, root, count, largest, 0, dims,
                       claimed)
    return head + bytes(64 + 32) + b"label".ljust(96, b"\0") + payload


def peer_records_seeds():
    def rank(name, which, data, large=False, n=9, checked=False, control=b"", stream=b""):
        put("peer_records", name, bytes([which, large, n, checked, len(control)]) +
            struct.pack("<H", len(stream)) + control + stream + data)
    floats = struct.pack("<10f", *range(10))
    alike = {0: 0, 1: 1, 2: 2, 3: 3, 6: 6}
    for which, kind in alike.items():
        rooted = kind == 1
        payload = floats * (2 if kind in (2, 6) else 1)
        answer = record(kind, 10, payload, op=3 if kind == 1 else 0, root=0 if rooted else -1)
        rank(f"call_{kind}", 2 * which, answer * 2)
        rank(f"joined_{kind}", 22, record(10, 0, flags=0, dtype=0) + answer)
    rank("broadcast", 11, record(5, 10, floats, root=1) * 3)
    rank("scatter", 19, record(9, 10, floats * 2, root=1) * 2)
    rank("gather", 16, record(8, 10, floats, root=0) * 2)
    rank("counts", 14, record(7, 0, struct.pack("<qq", 10, 11), flags=0, largest=44) + floats * 3)
    rank("large", 0, record(0, 1100, flags=0) + floats * 95, large=True)
    rank("without_payload", 0, record(0, 10))
    rank("long_payload", 0, record(0, 10, bytes(3000)))
    rank("claims", 0, record(0, 10, floats, claimed=2**31 - 1))
    rank("root", 11, record(5, 10, floats, root=2**31 - 1))
    rank("kind", 22, record(10, 0, flags=0, dtype=0) + record(200, 10, floats))
    rank("count", 22, record(10, 0, flags=0, dtype=0) + record(0, 2**62, flags=0))
    rank("joins", 0, record(15, 0, flags=1) * 4)
    rank("negative_counts", 14, record(7, 0, struct.pack("<qq", -5, 2**62), flags=0))
    rank("failure", 0, b"", control=struct.pack("<iI", -5, 20) + b"\x1b[2Jrank 1 is full\0\0")
    header = struct.pack("<Qqq", 0x6D657373616765, 0, 40)
    rank("message", 20, b"", stream=header + floats)
    rank("early", 21, b"", stream=header + floats + struct.pack("<Qqq", 0x6D657373616765, 1, 40) +
         floats)
    rank("announced", 20, b"", stream=struct.pack("<Qqq", 0x6D657373616765, 7, 2**33) + floats)
    rank("short_message", 20, b"", stream=struct.pack("<Qqq", 0x6D657373616765, 0, 39) + floats)


def rendezvous_seeds():
    text = b"+" + b"".join(struct.pack("<Q", n) + b"x" * n for n in (3, 0, 200))
    for name, value in (("whole", text), ("cut", text[:-1]), ("failure", b"-rank 2 \x1b]0;x\x07"),
                        ("empty", b""), ("beyond", b"+" + struct.pack("<Q", 2**64 - 1) + b"abc")):
        put("rendezvous_client", f"texts_{name}", b"\x02\x01" + value)
        put("rendezvous_client", f"rank_0_{name}", b"\x02\0" + value)
    for name, value in (("plain", b"1234 99 10.0.0.1"), ("port", b"70000 1 a"), ("none", b"1 1 "),
                        ("words", b"a b c"), ("control", b"1 2 \x1b[2J")):
        put("rendezvous_client", f"entry_{name}", b"\x01" + value)
    magic = struct.pack("<Q", 0x6532726F74732D64)
    put("rendezvous_client", "stranger", b"\0\0HTTP/1.1 400 Bad Request\r\n\r\n")
    put("rendezvous_client", "challenge", b"\0\0" + magic + bytes(40) + magic + bytes(40))
    put("rendezvous_client", "value", b"\0\1" + struct.pack("<II", 0, 5) + b"value")
    put("rendezvous_client", "huge", b"\0\1" + struct.pack("<II", 0, 2**32 - 1) + b"value")
    hello = magic + struct.pack("<Qii", 0x45627C193A5B605C, 1, 2) + bytes(range(32))
    put("rendezvous_server", "hello", b"\0" + hello)
    put("rendezvous_server", "proof", b"\0" + hello + bytes(32))
    put("rendezvous_server", "half", b"\0" + hello[:30])
    put("rendezvous_server", "http", b"\0GET / HTTP/1.1\r\n\r\n")
    put("rendezvous_server", "lies", b"\1" + struct.pack("<IIII", 1, 2**32 - 1, 2**32 - 1, 0))
    put("rendezvous_server", "without_code", b"\1" + struct.pack("<IIII", 1, 1, 1, 0) + b"kv" +
        bytes(32))

    def asks(*requests):
        return b"\2" + b"".join(struct.pack("<BBHB", operation, len(key), len(value), 0) + key +
                                bytes([own]) + value for operation, key, value, own in requests)
    put("rendezvous_server", "put_and_get", asks((1, b"a/round/1", b"text", 1), (2, b"a/round/1", b"", 0)))
    put("rendezvous_server", "keys_of_others", asks((1, b"a/round/0", b"text", 0), (1, b"", b"", 0)))
    put("rendezvous_server", "twice", asks(*[(1, b"b/round/1", bytes(1900), 1)] * 2))
    put("rendezvous_server", "unknown", asks((2, b"missing", b"", 0), (3, b"x", b"", 0)))


for make in (config_seeds, safetensors_seeds, manifest_seeds, tokenizer_seeds, idx_seeds,
             dlpack_seeds, jsonl_seeds, finetune_seeds, sentences_seeds, model_config_seeds,
             peer_records_seeds, rendezvous_seeds):
    make()
