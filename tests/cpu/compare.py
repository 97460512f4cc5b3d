"""Runs a program on this CPU and, emulated, on one with AVX2 only or on one without AVX, and
compares what it prints. usage: compare.py PROGRAM avx2|no_avx
Six steps of training. The emulated program may have few addresses: the emulator writes down every page of
those that an engine reserves, which takes twenty times as long as all the rest.

Bounds: fp32 sums round in another order, 2e-5 of the largest value, also after the steps of training.
Where activations are bf16 (all other forms) a sum that rounds to the other side moves by 2^-8, and a
few such meet in a logit: 2e-2.
"""
import json
import resource
import shutil
import subprocess
import sys

EMULATOR = "qemu-x86_64"
PROCESSORS = {"avx2": "Haswell", "no_avx": "Nehalem"}
MOST_ADDRESSES = 8 << 30
BOUNDS = {"fp32": 2e-5, "bf16": 2e-2, "int8": 2e-2, "int4": 2e-2}


def output(command, **how):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def worst(a, b):
    largest = max(map(abs, a))
    return max(abs(x - y) for x, y in zip(a, b, strict=True)) / largest


def main():
    program = [sys.argv[1], "6"]
    if shutil.which(EMULATOR) is None:
        print(f"{EMULATOR} is not installed: scripts/setup --test brings it")
        return 77
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        flags = next(line for line in info if line.startswith("flags")).split()
    print("this CPU:", " ".join(f for f in flags if f.startswith(("avx", "amx"))))
    here = output(program)
    failed = False
    name = sys.argv[2]
    there = output([EMULATOR, "-cpu", PROCESSORS[name], *program],
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES)))
    for case, expected in here.items():
        for what in expected:
            error = worst(expected[what], there[case][what])
            bound = BOUNDS[case.split()[-1]]
            verdict = "ok" if error <= bound else "FAILED"
            failed |= error > bound
            print(f"{name}, {case}, {what}: {error:.2g} of the largest, bound {bound:g}: {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
