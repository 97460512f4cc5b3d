"""A run that can be stopped at any moment and started again: resume.py FILE STEPS FOLDER

The first start begins; each further one goes on where the newest checkpoint is, bit for bit, until STEPS steps
are done. Ctrl-C ends a step cleanly, saves and leaves.
"""

import sys

import ds

SHAPE = {
    "model_type": "gpt2",
    "vocab_size": 256,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
}
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 0.003}},
    "checkpoint": {"keep": 2},
}


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    path, steps, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with ds.Engine(ds.Model(SHAPE, seed=1), CONFIG) as engine:
        try:
            engine.load(folder)
            print(f"goes on after step {engine.global_steps}: {engine.client_state}")
        except ds.NotFoundError:
            print("begins")
        engine.set_dataset(ds.Dataset(path=path, sequence_length=64))
        try:
            for report in engine.train(steps - engine.global_steps):
                if report.step % 10 == 0:
                    engine.client_state = {"loss": report.loss}
                    engine.save(folder)
        except KeyboardInterrupt:
            engine.save(folder)
            print(f"stopped in step {engine.global_steps + 1}")
            return
        print(f"done: {engine.global_steps} steps")


if __name__ == "__main__":
    main()
