"""Kills or stops one of four ranks in the middle of a step, many times over, and sees to it that
every other rank says which, in time, and that nothing is left.

Each try takes the next of the cases: shared memory and sockets, stages 0, 2 and 3, SIGKILL and
SIGSTOP; victim and moment are random.
"""
import argparse
import itertools
import random
import re
import signal
import sys
import time

from ranks import Job, Scratch

WORLD = 4
CASES = [(transport, stage, number) for number, stage, transport in itertools.product(
    (signal.SIGKILL, signal.SIGSTOP), (0, 2, 3), ("shm", "sockets"))]


def steps_done(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


class TooSlow(Exception):
    """A rank was not lost but late, before anything was done to it."""


def attempt(scratch, name, case, deadline, patience):
    """One try; gives what went wrong, or nothing, and how long the others took."""
    transport, stage, sent = case
    folder = scratch.folder(name)
    victim = random.randrange(WORLD)
    command = scratch.train(stage, 1000000, "--metrics", folder / "metrics.jsonl", comm={
        "transport": transport, "timeout_seconds": deadline, "rendezvous_timeout_seconds": 60})
    with Job([command] * WORLD, folder) as job:
        end = time.monotonic() + 60 + patience
        while steps_done(folder / "metrics.jsonl") < 3:
            if any(job.wait(0).values()):
                job.wait(deadline + patience)
                errors = "; ".join(map(job.error, range(WORLD)))
                if re.search(r"did not arrive within", errors):
                    raise TooSlow(errors)
                return f"did not start: {errors}", 0
            if time.monotonic() > end:
                said = "; ".join(map(job.error, range(WORLD)))
                return f"had not made three steps after {60 + patience:.0f} s: {said}", 0
            time.sleep(0.02)
        time.sleep(random.random() * 0.3)
        job.processes[victim].send_signal(sent)
        began = time.monotonic()
        others = [rank for rank in range(WORLD) if rank != victim]
        allowed = (deadline if sent == signal.SIGSTOP else 0) + patience
        status = job.wait(allowed, others)
        took = time.monotonic() - began
        what = f"victim {victim}: "
        for rank in others:
            if status[rank] is None:
                return f"{what}rank {rank} hangs", took
            if status[rank] == 0:
                return f"{what}rank {rank} ended as if nothing had happened", took
            named = rf"rank {victim} did not arrive" if sent == signal.SIGSTOP else rf"rank {victim}\b"
            if not re.search(named, job.error(rank)):
                return f"{what}rank {rank} does not name it: {job.error(rank)}", took
        job.processes[victim].send_signal(signal.SIGKILL)
        job.wait(10)
        if job.left():
            return f"{what}left behind: {job.left()}", took
        return "", took


def attempt_in_time(scratch, number, case, deadline, patience):
    """The deadline holds from the first collective on, and ranks that share processors with much
    else may come late to that: then the same again with more time, once."""
    try:
        return attempt(scratch, f"try-{number}", case, deadline, patience)
    except TooSlow as late:
        print(f"{number + 1}: too slow for a deadline of {deadline} s, again: {late}", flush=True)
    try:
        return attempt(scratch, f"try-{number}-again", case, 4 * deadline, patience)
    except TooSlow as late:
        return f"did not start: {late}", 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=50)
    parser.add_argument("--deadline", type=float, default=3, help="of a collective, in seconds")
    parser.add_argument("--patience", type=float, default=30,
                        help="seconds beyond it for the ranks to end, on a busy machine")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    random.seed(options.seed)
    print(f"--seed {options.seed}", flush=True)
    failed = 0
    cases = CASES * (options.tries // len(CASES) + 1)
    if options.tries < len(CASES):
        cases = random.sample(CASES, len(CASES))
    with Scratch() as scratch:
        for number, case in enumerate(cases[:options.tries]):
            wrong, took = attempt_in_time(scratch, number, case, options.deadline, options.patience)
            failed += bool(wrong)
            transport, stage, sent = case
            said = f"FAILED: {wrong}" if wrong else f"named by all after {took:.2f} s"
            print(f"{number + 1}: {transport}, stage {stage}, {sent.name}: {said}", flush=True)
    print(f"{options.tries - failed} of {options.tries}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
