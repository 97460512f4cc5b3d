"""What training a torch module through Python costs beside the same loop in C++:

    PYTHON torch_and_cc.py [--batch 128] [--hidden 1024] [--steps 160] [--rounds 3] [--stock] [WORK ...]

PYTHON has torch and ds (scripts/test-python --torch makes build/python-tests/torch/bin/python). Builds torch_loop.cc
with the headers and libraries of that torch and that ds, so that both programs run the same code below their loops,
and gives them blocks of steps in turn: one thread each on the same CPU, and only one of them runs at any time. Both
have an untrimmed heap in huge pages, so that neither has page faults that the other has not (--stock: as the system
gives it). Each round starts both anew, because where memory happens to lie makes a difference of percents. WORK is

    torch     forward, loss and backward of the module by PyTorch alone: what PyTorch's own calls cost in Python
    preset    gradients that are there already are added to the engine's by PyTorch, then engine.step()
    module    the whole: ds.initialize, engine(x), engine.backward(loss), engine.step(); in turn with it, in the same
              process, "bare": the two calls of the library that C++ makes, as the extension has them, and no more

and all of them without it. Prints the medians of all steps, their ratios, the middle half of the ratios of neighbouring
blocks, and whether the weights have the same bits afterwards.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

import torch

import ds

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BLOCK = 8
WAYS = {"torch": ["ds"], "preset": ["ds"], "module": ["ds", "bare"]}
HEAP = (
    "glibc.malloc.trim_threshold=4294967295:glibc.malloc.mmap_threshold=4294967295:"
    "glibc.malloc.hugetlb=1"
)


def build() -> Path:
    """The program in C++, made anew when it is older than its source or the installed ds."""
    program = ROOT / "build" / "python-tests" / "torch_loop"
    source = HERE / "torch_loop.cc"
    library = next(Path(ds.__file__).parent.glob("libds.so.*"))
    needed = max(source.stat().st_mtime, library.stat().st_mtime)
    if program.exists() and program.stat().st_mtime > needed:
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    home = Path(torch.__file__).parent
    headers = home / "include"
    command = ["c++", "-std=c++20", "-O2", str(source), "-o", str(program), f"-I{ROOT / 'include'}"]
    command += [f"-I{headers}", f"-I{headers / 'torch/csrc/api/include'}"]
    command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    command += [f"-L{home / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", str(library)]
    command += [f"-Wl,-rpath,{folder}" for folder in (home / "lib", library.parent)]
    subprocess.run(command, check=True)
    return program


class Contender:
    """A program whose standard input asks for steps and whose output gives their times."""

    def __init__(self, command: list[str], stock: bool) -> None:
        tuned = {} if stock else {"GLIBC_TUNABLES": HEAP}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **tuned},
        )

    def _line(self) -> list[int]:
        assert self.process.stdout is not None
        numbers = [int(word) for word in self.process.stdout.readline().split()]
        if not numbers:
            raise SystemExit(f"torch_and_cc: {self.process.args!r} ended")
        return numbers

    def run(self, steps: int, way: str) -> list[int]:
        """Nanoseconds of each step."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps} {way}\n")
        self.process.stdin.flush()
        return self._line()

    def end(self) -> int:
        """Its checksum."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        (checksum,) = self._line()
        self.process.wait()
        return checksum


class Blocks:
    """What was measured of one way to make steps: blocks of both programs, each beside its neighbour."""

    def __init__(self) -> None:
        self.cc: list[list[int]] = []
        self.python: list[list[int]] = []

    def tell(self, name: str) -> str:
        cc, python = (
            statistics.median(time for block in blocks for time in block) * 1e-6
            for blocks in (self.cc, self.python)
        )
        ratios = [
            statistics.median(b) / statistics.median(a) for a, b in zip(self.cc, self.python)
        ]
        low, middle, high = statistics.quantiles(ratios, n=4)
        return (
            f"{name:14} C++ {cc:8.3f} ms  Python {python:8.3f} ms  ratio {python / cc:.3f}, "
            f"of blocks {middle:.3f} ({low:.3f} to {high:.3f})"
        )


def one_round(work: str, arguments: argparse.Namespace, measured: dict[str, Blocks]) -> bool:
    """Whether the weights of both have the same bits afterwards."""
    sizes = [work, str(arguments.batch), str(arguments.hidden)]
    cc = Contender([str(build()), *sizes], arguments.stock)
    python = Contender([sys.executable, str(HERE / "torch_loop.py"), *sizes], arguments.stock)
    for turn in range(-1, arguments.steps // BLOCK):
        for way, blocks in measured.items():
            pair = {}
            for contender in (cc, python) if turn % 2 else (python, cc):  # neither is always the first
                pair[contender] = contender.run(BLOCK, way)
            if turn >= 0:  # the first turn warms up
                blocks.cc.append(pair[cc])
                blocks.python.append(pair[python])
    return cc.end() == python.end()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", nargs="*", metavar="WORK", default=list(WAYS))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=160, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stock", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.work) - set(WAYS)
    if unknown:
        parser.error(f"no work {', '.join(sorted(unknown))}: known are {', '.join(WAYS)}")
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for work in arguments.work:
        measured = {way: Blocks() for way in WAYS[work]}
        equal = [one_round(work, arguments, measured) for _ in range(arguments.rounds)]
        for way, blocks in measured.items():
            print(blocks.tell(work if way == "ds" else f"{work}, {way}"))
        print(f"{'':14} {'the same bits' if all(equal) else 'OTHER BITS'}", flush=True)


if __name__ == "__main__":
    main()
