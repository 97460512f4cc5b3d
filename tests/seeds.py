#!/usr/bin/env python3
"""Runs GoogleTest programs of a build with several seeds: python3 -B tests/seeds.py BUILD [--seeds 1:20]

Tests draw fresh inputs in each run; DS_TEST_SEED repeats them. A bound that holds for nearly all inputs fails one
run in hundreds, where nobody looks for the cause. This finds such bounds: each program runs its quick tests once
for each seed, in one process, and what fails is named with its seed.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys

LONGEST_FILTER = 100_000  # of the 128 KiB that one argument may have


def costs(build):
    """Seconds that each test took when ctest ran it last."""
    found = {}
    path = build / "Testing" / "Temporary" / "CTestCostData.txt"
    for line in path.read_text().splitlines() if path.exists() else []:
        words = line.rsplit(" ", 2)
        if len(words) == 3:
            found[words[0]] = float(words[2])
    return found


def programs(build, chosen, slowest):
    """The filters of each program's tests that match `chosen` and took at most `slowest` seconds."""
    text = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], capture_output=True, text=True,
                          check=True).stdout
    seconds = costs(build)
    found = collections.defaultdict(list)
    for test in json.loads(text)["tests"]:
        command = test.get("command", [])
        filters = [word for word in command if word.startswith("--gtest_filter=")]
        if filters and re.search(chosen, test["name"]) and seconds.get(test["name"], 0) <= slowest:
            found[command[0]].append(filters[0].split("=", 1)[1])
    return found


def batches(filters):
    batch, length = [], 0
    for one in filters:
        if batch and length + len(one) + 1 > LONGEST_FILTER:
            yield batch
            batch, length = [], 0
        batch.append(one)
        length += len(one) + 1
    if batch:
        yield batch


def run(program, filters, seed, timeout):
    """The names of the tests that failed; all of them where the program did not come to its end."""
    environment = dict(os.environ, DS_TEST_SEED=str(seed), GTEST_FILTER=":".join(filters), GTEST_BRIEF="1")
    try:
        ended = subprocess.run([program], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return [f"no end within {timeout} s"]
    if ended.returncode == 0:
        return []
    names = re.findall(r"^\[  FAILED  \] (\S+?)(?:,| \()", ended.stdout, re.MULTILINE)
    return sorted(set(names)) or [f"ended with {ended.returncode}: {ended.stdout[-300:]}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--seeds", default="1:10", help="first:last (1:10)")
    parser.add_argument("--tests", default="", help="regular expression that finds tests' names (all)")
    parser.add_argument("--slowest", type=float, default=0.5, help="seconds that a test may have taken (0.5)")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one program and seed (600)")
    options = parser.parse_args()
    first, _, last = options.seeds.partition(":")
    found = programs(options.build, options.tests, options.slowest)
    if not found:
        sys.exit(f"no test of {options.build} is chosen")
    failures = 0
    for seed in range(int(first), int(last or first) + 1):
        for program, filters in found.items():
            for batch in batches(filters):
                for name in run(program, batch, seed, options.timeout):
                    failures += 1
                    print(f"DS_TEST_SEED={seed} {pathlib.Path(program).name}: {name}", flush=True)
    count = sum(map(len, found.values()))
    print(f"{count} tests of {len(found)} programs, seeds {options.seeds}: {failures} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
