"""Reads and writes of files: `ds bench io` beside fio and DeepSpeed, in turn.

usage: file_io.py DS_PROGRAM --folder DIR [--bytes 1073741824] [--rounds 5] [--block 8388608]
                  [--depth 32]
Each side moves a file of so many bytes, past the page cache:
  fio libaio fio with libaio, blocks of 1 MiB, 32 at once
  fio        fio as it comes: psync, 4 KiB, one at a time
  fio 1M     the same with blocks of 1 MiB
  deepspeed  its async_io handle (block 1 MiB, depth 128, one thread), where it is installed
  ds         ds bench io
In every round each has its turn, in another order, and medians are compared: other work on the
machine meets all of them. Needs fio (Debian); DeepSpeed and torch from PyPI, and Debian's libaio-dev,
are optional. Removes what it wrote.
"""
import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


def fio(folder, direction, size, *more):
    """Bytes per second."""
    done = subprocess.run(
        ["fio", "--name=peer", f"--filename={folder}/fio.bin", f"--size={size}", "--direct=1",
         f"--rw={direction}", "--output-format=json", *more],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    text = done.stdout.decode()
    job = json.loads(text[text.index("{"):])["jobs"][0]
    return job[direction]["bw_bytes"]


def ours(program, folder, direction, size, block, depth):
    done = subprocess.run(
        [program, "bench", "io", "--folder", folder, "--io-size", str(size), "--block-size",
         str(block), "--queue-depth", str(depth), "--loops", "1", "--json",
         *(["--read"] if direction == "read" else [])],
        check=True, stdout=subprocess.PIPE)
    return size / json.loads(done.stdout)[direction]["loop_seconds"][0]


class DeepSpeed:
    """None where it does not build."""

    def __init__(self, folder, size):
        import torch
        from deepspeed.ops.op_builder import AsyncIOBuilder
        self.handle = AsyncIOBuilder().load().aio_handle(1 << 20, 128, False, True, 1)
        self.memory = self.handle.new_cpu_locked_tensor(
            size, torch.empty(0, dtype=torch.uint8))
        self.memory.fill_(1)
        self.path = os.path.join(folder, "deepspeed.bin")
        self.size = size

    def run(self, direction):
        began = time.perf_counter()
        if direction == "read":
            self.handle.sync_pread(self.memory, self.path, 0)
        else:
            self.handle.sync_pwrite(self.memory, self.path, 0)
        return self.size / (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block", type=int, default=8 << 20)
    parser.add_argument("--depth", type=int, default=32)
    o = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="ds-file-io-", dir=o.folder)
    try:
        small = max(1 << 20, o.bytes // 64)  # by 4 KiB it would take minutes
        sides = {
            "fio libaio": lambda d: fio(folder, d, o.bytes, "--ioengine=libaio", "--bs=1M", "--iodepth=32"),
            "fio": lambda d: fio(folder, d, small),
            "fio 1M": lambda d: fio(folder, d, o.bytes, "--bs=1M"),
            "ds": lambda d: ours(o.program, folder, d, o.bytes, o.block, o.depth),
        }
        try:
            sides["deepspeed"] = DeepSpeed(folder, o.bytes).run
        except Exception as error:  # not installed, or it does not build here
            print(f"deepspeed is left out: {error}", file=sys.stderr)
        rates = {name: {"write": [], "read": []} for name in sides}
        for turn in range(o.rounds + 1):  # the first one makes the files
            for direction in ("write", "read"):
                order = list(sides)
                random.shuffle(order)
                for name in order:
                    rate = sides[name](direction)
                    if turn > 0:
                        rates[name][direction].append(rate)
        median = {name: {d: statistics.median(r) for d, r in of.items()} for name, of in rates.items()}
        print(f"{'':12} {'write GB/s':>12} {'ds / it':>10} {'read GB/s':>12} {'ds / it':>10}")
        for name, of in median.items():
            print(f"{name:12}", *(f"{of[d] / 1e9:12.2f} {median['ds'][d] / of[d]:10.2f}"
                                  for d in ("write", "read")))
        print(json.dumps({"bytes": o.bytes, "rates": rates}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
