#!/usr/bin/env python3
"""Runs GoogleTest programs in shards, several processes at a time, and goes on where one of them dies.

usage: run_shards.py --results FILE.json --failures FILE.txt [--seconds 300] [--jobs 4]
                     [--test-seconds 120] [--tool "COMMAND ..."] (--group NAME PROGRAM FILTER)...

A group is what FILTER (of --gtest_filter) selects in PROGRAM; its tests are dealt to --jobs shards
(GTEST_TOTAL_SHARDS). Groups begin in the order given. A process has died when it ends before its
tests do, when one test takes longer than --test-seconds, or when a test fails with an error of CUDA
that no later work in the process survives. What it did not run is then run by another process: the
deadly test is left out, or, of a test that runs rows of the operator table, the deadly row. At
--seconds everything is ended; what did not run is counted. --tool runs every process under a tool
(compute-sanitizer) whose own errors, told by its exit status, count as a failure of the shard.

Both files are written anew whenever a process ends. Exit status: 0 all passed, 1 a test failed, died or
did not run, 3 all were skipped (the reason is printed).
"""
import argparse
import collections
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time

MOST_PROCESSES = 8  # of one shard: the first, and those after deaths
FATAL = "the process must be restarted"  # as src/device/cuda_support.cc says it
# Not always at the begin of a line: what a test printed before may lack the end of its own.
EVENT = re.compile(r"\[ +(RUN|OK|FAILED|SKIPPED) +\] ([^\s,]+)(?:,.*?)?(?: \((\d+) ms\))?$")
ROW = re.compile(r"\[ row +\] (\S+)$")
RESULTS = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}
NO_GROUP = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


def list_tests(program, wanted):
    """Names in the order in which the program deals them to shards."""
    done = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={wanted}"],
                          capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise OSError(words[-1] if words else f"it ended with status {done.returncode}")
    suite, names = "", []
    for line in done.stdout.splitlines():
        name = line.split("#")[0].rstrip()
        if re.match(r"^\S+\.$", name):
            suite = name
        elif name.startswith("  ") and suite:
            full = suite + name.strip()
            if not re.search(r"(^|[./])DISABLED_", full):
                names.append(full)
    return names


class Process:
    """One process of a test program, read line by line until it ends or must be ended."""

    def __init__(self, command, environment, deadline, test_seconds):
        self.deadline, self.test_seconds = deadline, test_seconds
        self.finished = {}  # name -> (result, ms, text)
        self.running = self.row = None
        self.text, self.last = [], collections.deque(maxlen=400)
        self.tool_lines = []  # what a tool of compute-sanitizer found
        self.why = ""  # it was ended from here
        self.began = time.monotonic()
        self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                      errors="replace", env=environment, **NO_GROUP)

    def read(self):
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        for line in self.child.stdout:
            self._line(line.rstrip("\n"))
        self.child.wait()
        watch.join()

    def end(self, why):
        self.why = self.why or why
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except OSError:
            pass  # it has ended

    def _watch(self):
        while self.child.poll() is None:
            now = time.monotonic()
            if now > self.deadline:
                self.end("out of time")
            elif now - self.began > self.test_seconds:
                self.end(f"one test took longer than {self.test_seconds:g} s")
            time.sleep(0.05)

    def _line(self, line):
        if self.why:
            return  # what ran before the end came says nothing: after an error of CUDA all fails
        self.last.append(line)
        if line.startswith("=========") and len(self.tool_lines) < 60:
            self.tool_lines.append(line)
        row, event = ROW.search(line), EVENT.search(line)
        if row:
            self.row = row.group(1)
        elif event and event.group(1) == "RUN":
            if self.running:
                self.finished[self.running] = ("failed", 0, [*self.text, "it printed no result"])
            self.running, self.row, self.text = event.group(2), None, []
            self.began = time.monotonic()
        elif event and event.group(2) == self.running:
            self.finished[self.running] = (RESULTS[event.group(1)], int(event.group(3) or 0), self.text)
            # Of what the program prints after its last test nothing takes long.
            self.running, self.text, self.began = None, [], time.monotonic()
        elif self.running:
            if len(self.text) < 400:
                self.text.append(line)
            if FATAL in line:
                self.end("an error of CUDA that ends the process")


class Run:
    def __init__(self, args):
        self.args = args
        self.deadline = time.monotonic() + args.seconds
        self.lock = threading.Lock()
        self.groups, self.tests, self.troubles, self.alive = {}, {}, [], set()
        self.stopped = False

    def shards(self):
        out = queue.Queue()
        for name, program, wanted in self.args.group:
            self.groups[name] = {"expected": 0, "seconds": 0.0, "processes": 0}
            try:
                tests = list_tests(program, wanted)
            except (OSError, subprocess.TimeoutExpired) as error:
                self.trouble(name, f"{program} cannot list its tests: {error}", [])
                continue
            if not tests:
                self.trouble(name, f"{program} has no test that {wanted} selects", [])
            self.groups[name]["expected"] = len(tests)
            count = min(self.args.jobs, len(tests))
            for index in range(count):
                out.put((name, program, wanted, index, count, tests[index::count]))
        return out

    def trouble(self, where, what, lines):
        with self.lock:
            self.troubles.append((where, what, lines))

    def run_shard(self, name, program, wanted, index, count, expected):
        environment = {**os.environ, "DS_TEST_TRACE_ROWS": "1", "GTEST_TOTAL_SHARDS": str(count),
                       "GTEST_SHARD_INDEX": str(index)}
        choice, left, skipped_rows = [f"--gtest_filter={wanted}"], list(expected), []
        where = f"{name}, shard {index + 1} of {count}"
        for _ in range(MOST_PROCESSES):
            if self.stopped or time.monotonic() > self.deadline:
                break
            with tempfile.NamedTemporaryFile("w", suffix=".flags") as flags:
                flags.write("\n".join(choice))
                flags.flush()
                command = [*self.args.tool, program, f"--gtest_flagfile={flags.name}", "--gtest_color=no"]
                process = Process(command, environment, self.deadline, self.args.test_seconds)
                with self.lock:
                    self.alive.add(process)
                process.read()
            left = self.account(name, where, process, left, skipped_rows)
            if not left or process.why == "out of time" or not (process.finished or process.running):
                break
            for variable in ("GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"):
                environment.pop(variable, None)
            environment["DS_TEST_SKIP_CASES"] = ",".join(skipped_rows)
            choice = ["--gtest_filter=" + ":".join(left)]
        if left:
            why = "out of time" if time.monotonic() > self.deadline else "after that"
            self.trouble(where, f"{len(left)} tests did not run ({why})", left)
        self.write()

    def account(self, name, where, process, left, skipped_rows):
        """Takes what a process did; what is left for the next."""
        status, culprit = process.child.returncode, process.running
        with self.lock:
            self.alive.discard(process)
            self.groups[name]["processes"] += 1
            for test, result in process.finished.items():
                # A test one of whose rows ended a process has failed, even if its other rows pass.
                if result[0] != "passed" or f"{name}: {test}" not in self.tests:
                    self.tests[f"{name}: {test}"] = result
                self.groups[name]["seconds"] += result[1] / 1e3
            print(f"== {where}", *process.last, sep="\n", flush=True)
        left = [test for test in left if test not in process.finished]
        if culprit is None and not left:
            failed = any(result[0] == "failed" for result in process.finished.values())
            if status != 0 and not failed:
                self.trouble(where, f"it ended with status {status} after its last test",
                             process.tool_lines or list(process.last)[-30:])
            return left
        why = process.why or (f"it ended with status {status}" if status >= 0 else
                              f"it was ended by signal {-status}")
        last = culprit or next(reversed(process.finished), "none")
        at = f", row {process.row}" if culprit and process.row else ""
        others = sum(test != culprit for test in left)
        lines = process.text if culprit else list(process.last)[-20:]
        self.trouble(where, f"died: {why}; the test that ran last: {last}{at}; {others} others did not run yet",
                     lines[-40:])
        if culprit and process.why != "out of time":
            if process.row and process.row not in skipped_rows:
                skipped_rows.append(process.row)  # the others of its table run
            else:
                left = [test for test in left if test != culprit]
            with self.lock:
                self.tests[f"{name}: {culprit}"] = ("failed", 0, [why + at, *process.text])
        return left

    def worker(self, shards):
        while not self.stopped:
            try:
                shard = shards.get_nowait()
            except queue.Empty:
                return
            try:
                self.run_shard(*shard)
            except Exception as error:  # noqa: BLE001 - one shard less, with the reason
                self.trouble(shard[0], f"shard {shard[3] + 1}: {error}", [])

    def run(self):
        shards = self.shards()
        threads = [threading.Thread(target=self.worker, args=(shards,), daemon=True)
                   for _ in range(self.args.jobs)]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.05)
        finally:  # also where a signal ends this
            self.stopped = True
            with self.lock:
                alive = list(self.alive)
            for process in alive:
                process.end("out of time")
            for thread in threads:
                thread.join(5)
            self.write()

    def counts(self, name):
        found = collections.Counter(result[0] for test, result in self.tests.items()
                                    if test.startswith(name + ": "))
        group = self.groups[name]
        return {"passed": found["passed"], "failed": found["failed"], "skipped": found["skipped"],
                "did_not_run": group["expected"] - sum(found.values()),
                "seconds": round(group["seconds"], 1), "processes": group["processes"]}

    def write(self):
        with self.lock:
            failed = [test for test, result in self.tests.items() if result[0] == "failed"]
            slowest = sorted(self.tests, key=lambda test: -self.tests[test][1])[:15]
            results = {"groups": {name: self.counts(name) for name in self.groups}, "failed": failed,
                       "troubles": [f"{where}: {what}" for where, what, _ in self.troubles],
                       "slowest_ms": {test: self.tests[test][1] for test in slowest},
                       "tests": {test: [result[0], result[1]] for test, result in self.tests.items()}}
            write_whole(self.args.results, json.dumps(results, indent=1))
            lines = []
            for where, what, more in self.troubles:
                lines += [f"## {where}: {what}", *more[:40], ""]
            for test in failed:
                lines += [f"## {test}", *self.tests[test][2][:25], ""]
            write_whole(self.args.failures, "\n".join(lines))

    def finish(self):
        """The table of groups, and the exit status."""
        total = collections.Counter()
        print(f"\n{'group':18} passed failed skipped did-not-run  seconds", flush=True)
        for name in self.groups:
            counts = self.counts(name)
            total.update(counts)
            print(f"{name:18} {counts['passed']:6} {counts['failed']:6} {counts['skipped']:7} "
                  f"{counts['did_not_run']:11} {counts['seconds']:8}")
        for where, what, _ in self.troubles:
            print(f"{where}: {what}")
        for test, result in self.tests.items():
            if result[0] == "failed":
                print(f"failed: {test}")
        print(f"total: {total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped, "
              f"{total['did_not_run']} did not run")
        if total["failed"] or total["did_not_run"] or self.troubles:
            return 1
        if total["skipped"] and not total["passed"]:
            reasons = (line for result in self.tests.values() for line in result[2]
                       if line.strip() and not line.endswith("Skipped"))
            print(f"skipped: all {total['skipped']} tests: {next(reasons, 'without a reason')}")
            return 3
        return 0


def write_whole(path, text):
    """A reader, or a sudden end, sees the old text or the new one."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)


def stop(number, _):
    raise SystemExit(128 + number)


def main():
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--results", required=True)
    made.add_argument("--failures", required=True)
    made.add_argument("--seconds", type=float, default=300)
    made.add_argument("--test-seconds", type=float, default=120)
    made.add_argument("--jobs", type=int, default=4)
    made.add_argument("--tool", type=shlex.split, default=[])
    made.add_argument("--group", nargs=3, action="append", required=True,
                      metavar=("NAME", "PROGRAM", "FILTER"))
    run = Run(made.parse_args())
    signal.signal(signal.SIGTERM, stop)
    run.run()
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
