#!/usr/bin/env python3
"""Compares two builds of the ds program: two_programs.py FIRST SECOND [--rounds 15] [ds bench options]

Runs `ds bench` of both in turn, on one thread unless told otherwise, and prints the median of each figure
and the ratio of the medians (second to first; below 1 is faster). The rounds alternate, so that what else
the machine does meets both alike."""

import argparse
import json
import statistics
import subprocess


def run(program, options):
    done = subprocess.run([program, "bench", "--json", *options], check=True,
                          stdout=subprocess.PIPE, text=True)
    figures = json.loads(done.stdout)
    return {"training step, ms": 1e3 * figures["training"]["step_seconds"],
            "prompt, ms": 1e3 * figures["generation"]["prompt_seconds"],
            "decoding a token, ms": 1e3 * figures["generation"]["decode_seconds_per_token"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs=2)
    parser.add_argument("--rounds", type=int, default=15)
    arguments, options = parser.parse_known_args()
    if "--threads" not in options:
        options += ["--threads", "1"]
    measured = [[], []]
    for turn in range(arguments.rounds):
        # Neither is always the one that begins.
        for which in ((0, 1), (1, 0))[turn % 2]:
            measured[which].append(run(arguments.programs[which], options))
    for name in measured[0][0]:
        first, second = (statistics.median(row[name] for row in rows) for rows in measured)
        print(f"{name:22} {first:10.4f} {second:10.4f}  ratio {second / first:.3f}")


if __name__ == "__main__":
    main()
