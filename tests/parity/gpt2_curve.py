"""Trains the model of tests/parity/curve.h with PyTorch and Transformers and prints the losses.

usage: gpt2_curve.py INITIAL_FOLDER  (written by `parity_curve export`) -> JSON on standard output
"""
import json
import sys

import torch
import transformers

STEPS, BATCH, LENGTH = 50, 4, 32


def tokens(step):
    rows = []
    state = (12345 + 977 * step) & 0xFFFFFFFF
    for _ in range(BATCH):
        previous, row = 0, []
        for _ in range(LENGTH + 1):
            state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
            previous = (previous * 3 + 17 * (state >> 31) + 11) % 32
            row.append(previous)
        rows.append(row)
    return torch.tensor(rows)


def run(folder, bf16):
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager")
    model.float().train()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.999), eps=1e-8)
    losses = []
    for step in range(STEPS):
        rows = tokens(step)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            logits = model(input_ids=rows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(
            logits.float().reshape(-1, logits.shape[-1]), rows[:, 1:].reshape(-1))
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def main():
    torch.manual_seed(0)
    print(json.dumps({
        "torch": torch.__version__, "transformers": transformers.__version__,
        "fp32": run(sys.argv[1], False), "bf16": run(sys.argv[1], True)}, indent=1))


if __name__ == "__main__":
    main()
