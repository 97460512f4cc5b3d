#!/usr/bin/env python3
"""Runs a program that is linked for inference alone, and looks for what belongs to training in it.

Usage: check.py PROGRAM
"""

import pathlib
import subprocess
import sys

# Namespaces in the names of symbols and types.
NEEDED = (b"2ds6models", b"2ds5infer", b"2ds2nn")
OF_TRAINING = (b"2ds4zero", b"2ds5optim", b"2ds6EngineC", b"2ds7Trainer")


def main(argv):
    program = pathlib.Path(argv[1])
    result = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    print(result.stdout + result.stderr, end="")
    failures = []
    if result.returncode != 0:
        failures.append(f"exit status {result.returncode}")
    tokens = [line.split() for line in result.stdout.splitlines()]
    if [len(line) for line in tokens] != [8, 8]:
        failures.append("two lines of 8 tokens are expected")
    contents = program.read_bytes()
    failures += [f"no symbol has {name.decode()}: the names are not there to look at"
                 for name in NEEDED if name not in contents]
    failures += [f"symbols of training are linked: {name.decode()}"
                 for name in OF_TRAINING if name in contents]
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
