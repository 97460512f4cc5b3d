#!/usr/bin/env python3
"""Makes tests/data/splits.json: boundaries of train, validation and test parts by the two rules of
Megatron, written from their descriptions with numpy.

    python tests/parity/gen_split_vectors.py"""
import json
import pathlib
import random

import numpy

OUT = pathlib.Path(__file__).resolve().parent.parent / "data" / "splits.json"


def older(shares, size):
    total = sum(shares)
    bounds = [0]
    for share in shares:
        bounds.append(bounds[-1] + int(round(share / total * float(size))))
    excess = bounds[-1] - size
    return [0] + [bound - excess for bound in bounds[1:]]


def core(shares, size):
    weights = numpy.array(shares, dtype=numpy.float64)
    weights = weights / numpy.sum(weights)
    ends = [0.0]
    for weight in weights:
        ends.append(ends[-1] + weight)
    return [int(round(end * float(size))) for end in ends]


def main():
    draw = random.Random(11)
    shares = ["969,30,1", "949,50,1", "98,2,0", "90,5,5", "8,1,1", "0.5,0.25,0.25", "1,1,1"]
    shares += [",".join(str(draw.randrange(1, 1000)) for _ in range(3)) for _ in range(5)]
    sizes = [1, 2, 3, 5, 7, 10, 17, 25, 50, 99, 100, 150, 333, 500, 999, 1000, 1001, 1500, 2048,
             4999, 12345, 100000, 999999] + [draw.randrange(1, 5000) for _ in range(12)]
    cases, different = [], 0
    for text in shares:
        numbers = [float(part) for part in text.split(",")]
        for size in sizes:
            a, b = older(numbers, size), core(numbers, size)
            if min(a) < 0:  # the older rule has no such part
                a = [max(bound, 0) for bound in a]
            different += a != b
            cases.append([text, size, a, b])
    print(f"{different} of {len(cases)} differ")
    OUT.write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
