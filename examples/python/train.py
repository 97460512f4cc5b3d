"""Trains a small GPT on a text file, byte by byte, and writes some text: train.py FILE STEPS FOLDER"""

import sys

import ds

SHAPE = {
    "model_type": "gpt2",
    "vocab_size": 256,
    "n_positions": 64,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
}
CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
}


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    path, steps, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    tokenizer = ds.Tokenizer()  # its tokens are bytes
    data = ds.Dataset(path=path, sequence_length=64)
    model = ds.Model(SHAPE, seed=1)
    with ds.Engine(model, CONFIG) as engine:
        engine.set_dataset(data)
        engine.set_tokenizer(tokenizer)
        for report in engine.train(steps, progress=True):
            if report.step % 10 == 0:
                print(f"step {report.step}  loss {report.loss:.4f}")
        engine.save(folder)
    generator = ds.Generator(model, tokenizer=tokenizer)
    print(generator.text("The ", 60, temperature=0.8, seed=1))


if __name__ == "__main__":
    main()
