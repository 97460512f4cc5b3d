"""Whether the steps of two engines on two threads overlap: steps_overlap.py FILE [ROUNDS]

Each engine computes on one thread. In every round one thread makes 20 steps on the text FILE alone, then two threads
make 20 steps each at once. Prints the ratio of the medians of both times, and that of the lowest ones, which other
programs have disturbed least: 1 where all overlaps (and each thread has a core), 2 where one waits for the other.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time

import ds

STEPS = 20
SHAPE = {
    "model_type": "gpt2",
    "vocab_size": 256,
    "n_positions": 64,
    "n_embd": 128,
    "n_layer": 2,
    "n_head": 4,
}


def make_engine(file: str) -> ds.Engine:
    config = {"train_micro_batch_size_per_gpu": 8, "threads": 1, "optimizer": {"type": "AdamW"}}
    engine = ds.Engine(ds.Model(SHAPE, seed=1), config)
    engine.set_dataset(ds.Dataset(path=file, sequence_length=64))
    return engine


def train(engine: ds.Engine) -> None:
    for _ in range(STEPS):
        engine.train_batch()


def run(engines: list[ds.Engine]) -> float:
    """Seconds until a thread has trained each engine."""
    threads = [threading.Thread(target=train, args=(engine,)) for engine in engines]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit("usage: steps_overlap.py FILE [ROUNDS]")
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 11
    engines = [make_engine(sys.argv[1]) for _ in range(2)]
    run(engines)  # warms up
    one, two = [], []
    for _ in range(rounds):
        one.append(run(engines[:1]))
        two.append(run(engines))
    alone, both = statistics.median(one), statistics.median(two)
    print(
        f"Python: one thread {alone:.3f} s, two threads {both:.3f} s, "
        f"ratio {both / alone:.2f}, of the lowest {min(two) / min(one):.2f} ({rounds} rounds)"
    )


if __name__ == "__main__":
    main()
