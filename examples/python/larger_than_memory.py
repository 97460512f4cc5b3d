"""Trains with less memory than the training state needs: larger_than_memory.py FILE FOLDER STEPS

`ds.plan` finds the fastest configuration that fits 40 MB, from how fast this machine multiplies, copies
and reads and writes files in FOLDER; it puts state there if it must.
"""

import sys

import ds

SHAPE = {
    "model_type": "gpt2",
    "vocab_size": 256,
    "n_positions": 64,
    "n_embd": 256,
    "n_layer": 4,
    "n_head": 4,
}
MEMORY = 40_000_000
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"sub_group_size": 262144},
    "memory_plan": {"sequence_length": 64, "limit_bytes": MEMORY},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
}


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    path, folder, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    model = ds.Model(SHAPE, seed=1)
    try:
        ds.Engine(model, CONFIG)
    except ds.OutOfMemoryError as error:
        print(error)  # a table of what is needed, and what would help
    plan = ds.plan(SHAPE, CONFIG, device="cpu", memory=MEMORY, fit=True, folder=folder)
    needed = plan["memory_per_rank"]["total"]
    print(f"{needed / 1e6:.1f} MB of memory, {plan['files_per_rank']['total'] / 1e6:.1f} MB in files")
    with ds.Engine(model, plan["fit"]["config"]) as engine:
        engine.set_dataset(ds.Dataset(path=path, sequence_length=64))
        for report in engine.train(steps):
            if report.step % 10 == 0:
                print(f"step {report.step}  loss {report.loss:.4f}")


if __name__ == "__main__":
    main()
