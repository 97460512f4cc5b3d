"""Fine-tunes a Hugging Face folder with low-rank adapters: lora.py MODEL DATA.jsonl STEPS OUTPUT

DATA has one {"prompt": ..., "completion": ...} per line; only completions are learned. OUTPUT gets the
adapters in PEFT's layout (OUTPUT/adapter) and the model with them merged in (OUTPUT/merged).
"""

import sys
from pathlib import Path

import ds

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "gradient_clipping": 1.0,
}


def main() -> None:
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    folder, path, steps, output = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    model = ds.Model.open(folder)
    try:
        tokenizer = ds.Tokenizer.open(folder)
    except ds.NotFoundError:
        tokenizer = ds.Tokenizer()
    model.add_lora("all-linear", r=8, lora_alpha=16, seed=1)
    print(model)
    data = ds.Dataset({"kind": "packed", "path": path, "sequence_length": 32}, tokenizer)
    with ds.Engine(model, CONFIG) as engine:
        engine.set_dataset(data)
        for report in engine.train(steps):
            if report.step in (1, steps):
                print(f"step {report.step}  loss {report.loss:.4f}")
    model.save_adapter(output / "adapter")
    model.merge_lora()
    model.export(output / "merged")


if __name__ == "__main__":
    main()
