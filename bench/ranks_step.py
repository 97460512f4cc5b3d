#!/usr/bin/env python3
"""A training step by several processes against one process with as many threads, in turn.

usage: ranks_step.py TRAIN_STEP_PROGRAM MODEL.json [--ranks 2] [--batch 4] [--length 256]
                     [--precision fp32] [--rounds 3] [--steps 2] [--stages 0,2,3]

Every process of a group has one thread and its share of the batch; the one process has as many
threads as there are ranks, and the whole batch. Prints medians and the share of the one process's
throughput that each ZeRO stage keeps.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Group:
    """Processes that stay and make steps when told to."""

    def __init__(self, command, ranks, environment=None):
        """`command` answers lines on its standard input; its first line says that it is ready."""
        port = free_port()
        self.processes = []
        for rank in range(ranks):
            env = dict(environment or os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                       WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(ranks))
            self.processes.append(subprocess.Popen(command, env=env, text=True,
                                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        hello = [process.stdout.readline() for process in self.processes]
        if not all(hello):
            self.close()
            raise OSError("a process ended before it was ready")
        self.hello = hello[0]

    def steps(self, count):
        for process in self.processes:
            process.stdin.write(f"{count}\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in self.processes]
        return max(answers) if isinstance(answers[0], (int, float)) else answers[0]

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(30)


def main():
    made = argparse.ArgumentParser(description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("program")
    made.add_argument("model")
    made.add_argument("--ranks", type=int, default=2)
    made.add_argument("--batch", type=int, default=4)
    made.add_argument("--length", type=int, default=256)
    made.add_argument("--precision", default="fp32")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--steps", type=int, default=2)
    made.add_argument("--stages", default="0,2,3")
    args = made.parse_args()
    if args.batch % args.ranks:
        sys.exit("--batch must be a multiple of --ranks")
    def command(threads, batch, *more):
        return [args.program, args.model, str(batch), str(args.length), args.precision, "serve",
                str(threads), *more]

    groups = {"one process": Group(command(args.ranks, args.batch), 1)}
    for stage in args.stages.split(","):
        zero = f'zero_optimization={{"stage": {stage}, "overlap_comm": false}}'
        groups[f"stage {stage}"] = Group(command(1, args.batch // args.ranks, zero), args.ranks)
    times = {name: [] for name in groups}
    for name, group in groups.items():
        group.steps(1)
    for _ in range(args.rounds):
        for name, group in groups.items():
            times[name].append(group.steps(args.steps))
    for group in groups.values():
        group.close()
    flat = {name: [t for part in values for t in (part if isinstance(part, list) else [part])]
            for name, values in times.items()}
    medians = {name: statistics.median(values) for name, values in flat.items()}
    one = medians["one process"]
    print(f"{'':14} {'ms':>9} {'of one process':>15}")
    for name, value in medians.items():
        print(f"{name:14} {value:9.1f} {100 * one / value:14.0f}%")
    print(json.dumps({"precision": args.precision, "ranks": args.ranks, "medians": medians}))


if __name__ == "__main__":
    main()
