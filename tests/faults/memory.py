#!/usr/bin/env python3
"""One rank of two may have too little memory (RLIMIT_AS) while engines are made: every rank ends at
once, with an error that names that rank and what it could not have, and none waits for a deadline.

The limit goes from what hardly loads the program to what makes the engine, so that each large
allocation on the way fails in turn.
"""
import argparse
import json
import sys

import ranks

MODEL = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 512, "n_layer": 6, "n_head": 8}
DEADLINE = 60  # seconds; a rank that waits for it says so
MADE = "micro batch"  # of the lines that rank 0 prints when its engine is there

# What the system refuses; a thread is memory, too.
REASONS = ("out of memory", "Cannot allocate memory", "Resource temporarily unavailable")


def commands(scratch, stage, more, limit):
    """Of a rank that may have everything, and of one that may have `limit` bytes."""
    train = scratch.train(stage, 1, model="large.json", comm={"timeout_seconds": DEADLINE})
    (scratch.path / "large.json").write_text(json.dumps(MODEL))
    (scratch.path / f"stage{stage}.json").write_text(json.dumps(
        {"train_batch_size": 4, "memory_plan": {"check": "off"}, "zero_optimization": {"stage": stage},
         "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, **more}))
    return [train, ["sh", "-c", 'ulimit -v "$0" && exec "$@"', str(limit // 1024), *train]]


def sweep(stage, more, first, step):
    """How many limits were too low for an engine."""
    failed, later = 0, 0
    with ranks.Scratch() as scratch:
        for turn in range(64):
            limit = first + turn * step
            with ranks.Job(commands(scratch, stage, more, limit), scratch.path) as job:
                statuses = job.wait(DEADLINE // 2)
                said = [job.error(rank) for rank in range(2)]
                what = f"stage {stage}, {more}, {limit >> 20} MiB: "
                assert None not in statuses.values(), what + f"still waiting: {statuses}\n{said}"
                if not any(statuses.values()):
                    return failed
                assert all(statuses.values()), what + f"{statuses}\n{said}"
                if not any(why in said[1] for why in REASONS):
                    continue  # not even the libraries were loaded
                assert "rank 1" in said[0], what + said[0]
                # Then the other engine was made, too, or could not make what it does not share.
                if MADE in said[0]:
                    later += 1
                    if later == 3:
                        return failed
                    continue
                assert any(why in said[0] for why in REASONS), what + said[0]
                failed += 1
    raise AssertionError(f"stage {stage}: no engine with {limit >> 20} MiB: {said[1]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=40, help="MiB of the lowest limit")
    parser.add_argument("--step", type=int, default=24, help="MiB from one limit to the next")
    options = parser.parse_args()
    split = {"bf16": {"enabled": True, "split_master": True}}
    for stage, more in ((0, {}), (1, {"bf16": {"enabled": True}}), (2, split), (3, {})):
        failed = sweep(stage, more, options.first << 20, options.step << 20)
        print(f"stage {stage}, {more}: {failed} limits were too low", flush=True)
        assert failed > 1


if __name__ == "__main__":
    sys.exit(main())
