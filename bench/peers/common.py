"""What the peer scripts share: the tuned environment, interleaved timing, medians, ratios, output."""
import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

# An untrimmed heap in huge pages: what keeps a peer from paying page faults in every call.
TUNED = {
    "GLIBC_TUNABLES": "glibc.malloc.trim_threshold=4294967295:"
                      "glibc.malloc.mmap_threshold=4294967295:glibc.malloc.hugetlb=1",
}
with open("/proc/cpuinfo") as cpus:
    if "avx512f" in cpus.read():
        TUNED["OPENBLAS_CORETYPE"] = "SKYLAKEX"


def parser(doc):
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--rounds", type=int, default=5, help="turns of peer and ds")
    made.add_argument("--stock", action="store_true", help="leave the peer's heap as it is")
    made.add_argument("--json", help="also write the results to this file")
    return made


def parse(made):
    """Parses, and starts the script again under the tuned environment unless --stock."""
    args = made.parse_args()
    if not args.stock and any(os.environ.get(key) != value for key, value in TUNED.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **TUNED})
    return args


def plain_environment():
    """For our own programs, which tune nothing."""
    return {key: value for key, value in os.environ.items() if key not in TUNED}


def run_json(command):
    """The last line that a program of ours prints, as JSON."""
    out = subprocess.run(command, env=plain_environment(), check=True, capture_output=True, text=True)
    return json.loads(out.stdout.strip().splitlines()[-1])


def timed(body, repeat=1):
    """Milliseconds per call of body."""
    began = time.perf_counter()
    for _ in range(repeat):
        body()
    return (time.perf_counter() - began) * 1e3 / repeat


def interleave(rounds, contenders):
    """contenders: name -> function that returns milliseconds, or a list of them; called in turn.
    Returns name -> median."""
    seen = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, body in contenders.items():
            got = body()
            seen[name].extend(got if isinstance(got, list) else [got])
    return {name: statistics.median(times) for name, times in seen.items()}


class NotStarted(Exception):
    """A contender ended before it was ready; the text is what it said last."""


class Contender:
    """A process that answers a number with the times of so many steps."""

    def __init__(self, command, environment=None):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, env=environment)
        hello = self.process.stdout.readline()
        if not hello:
            raise NotStarted(self._last_words())
        self.hello = json.loads(hello)

    def ask(self, question):
        try:
            self.process.stdin.write(f"{question}\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise NotStarted(self._last_words())
        return json.loads(answer)

    def steps(self, count):
        return self.ask(count)

    def peak_gib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as status:
            peak = next(line for line in status if line.startswith("VmHWM"))
        return int(peak.split()[1]) / 2**20

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def _last_words(self):
        self.process.wait()
        self.errors.seek(0)
        lines = [line for line in self.errors.read().splitlines() if line.strip()]
        if not lines:
            return f"it ended with status {self.process.returncode}"
        # After the error PyTorch may give advice.
        return next((line for line in reversed(lines) if re.match(r"[\w.]*Error: ", line)), lines[-1])


class Report:
    """Rows of figures, printed as a table and kept as JSON."""

    def __init__(self, args, title):
        self.path, self.rows = args.json, []
        self.head = {"title": title, "threads": args.threads, "heap": "stock" if args.stock else "tuned",
                     "python": platform.python_version(), "processor": processor()}

    def row(self, **figures):
        self.rows.append(figures)
        self._write()  # what was measured is not lost when the script is ended
        print("  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                        for key, value in figures.items()), flush=True)

    def finish(self):
        keys = list(dict.fromkeys(key for row in self.rows for key in row))
        print("\n| " + " | ".join(keys) + " |\n|" + " --- |" * len(keys))
        for row in self.rows:
            cells = (row.get(key, "") for key in keys)
            print("| " + " | ".join(f"{c:.4g}" if isinstance(c, float) else str(c) for c in cells) + " |")
        self._write()

    def _write(self):
        if self.path:
            with open(self.path, "w", encoding="utf-8") as file:
                json.dump({**self.head, "rows": self.rows}, file, indent=1)


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()
