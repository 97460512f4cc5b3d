#!/usr/bin/env python3
"""run_shards.py on a program that behaves as a GoogleTest program does, and dies where it is told to."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

RUNNER = pathlib.Path(__file__).with_name("run_shards.py")
FAKE = '''\
#!{python}
import fnmatch, os, signal, sys, time
TESTS = {tests!r}  # name -> what it does
options = sys.argv[1:]
for option in sys.argv[1:]:
    if option.startswith("--gtest_flagfile="):
        options += open(option.split("=", 1)[1]).read().splitlines()
wanted = next((o.split("=", 1)[1] for o in options if o.startswith("--gtest_filter=")), "*")
positive, _, negative = wanted.partition("-")
def selected(name):
    return (any(fnmatch.fnmatchcase(name, p) for p in (positive or "*").split(":")) and
            not any(fnmatch.fnmatchcase(name, p) for p in negative.split(":")))
names = [name for name in TESTS if selected(name)]
if "--gtest_list_tests" in options:
    suite = ""
    for name in names:
        if name.split(".")[0] != suite:
            suite = name.split(".")[0]
            print(suite + ".")
        print("  " + name.split(".")[1])
    sys.exit()
count, index = (int(os.environ.get(n, d)) for n, d in (("GTEST_TOTAL_SHARDS", 1), ("GTEST_SHARD_INDEX", 0)))
names = [name for name in names if "DISABLED_" not in name]
failed = False
for name in names[index::count]:
    print(f"[ RUN      ] {{name}}", flush=True)
    what, _, more = TESTS[name].partition(" ")
    result = "OK"
    if what == "rows":
        for row in more.split():
            kind, _, row = row.rpartition("!")
            if row in os.environ.get("DS_TEST_SKIP_CASES", "").split(","):
                continue
            print(f"[ row      ] {{row}}", flush=True)
            if kind == "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "fatal":
        print("CUDA: a kernel failed; the process must be restarted to use the GPU again", flush=True)
        for other in [name, *names[index::count]]:  # all that follow fail, and quickly
            if other != name:
                print(f"[ RUN      ] {{other}}")
            print(f"[  FAILED  ] {{other}} (0 ms)", flush=True)
        sys.exit(1)
    elif what == "hang":
        time.sleep(60)
    elif what == "exit":
        sys.exit(int(more))
    elif what == "fail":
        print("file.cc:12: Failure\\nExpected equality", flush=True)
        result, failed = "FAILED", True
    elif what == "skip":
        print("file.cc:9: Skipped\\nneeds a GPU: there is none", flush=True)
        result = "SKIPPED"
    elif what == "chat":
        print("a line without its end", end="", flush=True)
    elif what == "sleep":
        time.sleep(float(more))
    print(f"[ {{result:>8}} ] {{name}} (3 ms)" if result != "OK" else f"[       OK ] {{name}} (3 ms)", flush=True)
print(f"[==========] {{len(names)}} tests ran.")
sys.exit({status} or failed)
'''


class RunShards(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def program(self, tests, status=0):
        path = os.path.join(self.folder.name, "program")
        with open(path, "w", encoding="utf-8") as file:
            file.write(FAKE.format(python=sys.executable, tests=tests, status=status))
        os.chmod(path, 0o755)
        return path

    def run_tests(self, tests, *options, status=0, groups=(("all", "*"),)):
        program = tests if isinstance(tests, str) else self.program(tests, status)
        results, failures = (os.path.join(self.folder.name, name) for name in ("results.json", "failures.txt"))
        command = [sys.executable, str(RUNNER), "--results", results, "--failures", failures, *options]
        for name, wanted in groups:
            command += ["--group", name, program, wanted]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        with open(results, encoding="utf-8") as file:
            found = json.load(file)
        with open(failures, encoding="utf-8") as file:
            return done.returncode, found, file.read(), done.stdout

    def assert_counts(self, found, group="all", **expected):
        counts = found["groups"][group]
        for name in ("passed", "failed", "skipped", "did_not_run"):
            self.assertEqual(counts[name], expected.get(name, 0), f"{name}: {found}")

    def test_every_test_runs_once(self):
        status, found, failures, _ = self.run_tests({f"A.t{i}": "ok" for i in range(11)})
        self.assertEqual((status, failures), (0, ""))
        self.assert_counts(found, passed=11)
        self.assertEqual(found["groups"]["all"]["processes"], 4)

    def test_what_tests_print_does_not_hide_results(self):
        status, found, failures, _ = self.run_tests({"A.a": "chat", "A.b": "chat", "A.c": "ok"}, "--jobs", "1")
        self.assertEqual((status, failures), (0, ""))
        self.assert_counts(found, passed=3)

    def test_groups_share_a_program(self):
        tests = {"A.a": "ok", "B.b": "fail", "C/D.c/1": "ok", "A.DISABLED_d": "crash"}
        status, found, failures, _ = self.run_tests(tests, groups=(("first", "A.*"), ("rest", "*-A.*")))
        self.assertEqual(status, 1)
        self.assert_counts(found, "first", passed=1)
        self.assert_counts(found, "rest", passed=1, failed=1)
        self.assertEqual(found["failed"], ["rest: B.b"])
        self.assertIn("Expected equality", failures)

    def test_a_crash_costs_one_test(self):
        for how in ("crash", "fatal", "exit 0", "exit 3"):
            with self.subTest(how):
                tests = {f"A.t{i}": "ok" for i in range(9)}
                tests["A.t4"] = how
                status, found, failures, said = self.run_tests(tests, "--jobs", "2")
                self.assertEqual(status, 1)
                self.assert_counts(found, passed=8, failed=1)
                self.assertEqual(found["failed"], ["all: A.t4"])
                self.assertIn("the test that ran last: A.t4; 2 others did not run yet", failures + said)

    def test_a_row_that_crashes_is_left_out(self):
        tests = {"A.rows": "rows a/1 crash!b/2 c/3 crash!d/4 e/5", "A.z": "ok"}
        status, found, failures, said = self.run_tests(tests, "--jobs", "1")
        self.assertEqual(status, 1)
        self.assertIn("row b/2", failures)
        self.assertIn("row d/4", failures)
        self.assertIn("[ row      ] e/5", said)
        self.assert_counts(found, passed=1, failed=1)
        self.assertEqual(len(found["troubles"]), 2)

    def test_a_hang_costs_one_test(self):
        tests = {"A.a": "ok", "A.b": "hang", "A.c": "ok"}
        # Long enough for a process to start on a busy machine; the test that hangs never ends.
        status, found, failures, _ = self.run_tests(tests, "--jobs", "1", "--test-seconds", "8")
        self.assertEqual(status, 1)
        self.assert_counts(found, passed=2, failed=1)
        self.assertIn("longer than 8 s", failures)

    def test_what_does_not_fit_the_time_is_counted(self):
        tests = {f"A.t{i}": "sleep 0.8" for i in range(8)}
        status, found, failures, _ = self.run_tests(tests, "--jobs", "1", "--seconds", "2")
        self.assertEqual(status, 1)
        counts = found["groups"]["all"]
        self.assertGreater(counts["did_not_run"], 3)
        self.assertEqual(counts["failed"], 0)
        self.assertEqual(counts["passed"] + counts["did_not_run"], 8)
        self.assertIn("out of time", failures)

    def test_all_skipped_says_why(self):
        status, found, _, said = self.run_tests({"A.a": "skip", "A.b": "skip"})
        self.assertEqual(status, 3)
        self.assert_counts(found, skipped=2)
        self.assertIn("skipped: all 2 tests: needs a GPU: there is none", said)

    def test_errors_of_a_tool_fail(self):
        tool = os.path.join(self.folder.name, "tool")
        with open(tool, "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\n"$@"\necho "========= ERROR SUMMARY: 1 error"\nexit 9\n')
        os.chmod(tool, 0o755)
        status, found, failures, _ = self.run_tests({"A.a": "ok"}, "--tool", tool)
        self.assertEqual(status, 1)
        self.assert_counts(found, passed=1)
        self.assertIn("========= ERROR SUMMARY: 1 error", failures)

    def test_a_program_that_cannot_start(self):
        for program in (os.path.join(self.folder.name, "none"), "/bin/false"):
            with self.subTest(program):
                status, found, failures, _ = self.run_tests(program)
                self.assertEqual(status, 1)
                self.assertIn("cannot list its tests", failures)

    def test_a_filter_that_selects_nothing(self):
        status, _, failures, _ = self.run_tests({"A.a": "ok"}, groups=(("gone", "B.*"),))
        self.assertEqual(status, 1)
        self.assertIn("no test that B.* selects", failures)

    def test_the_end_of_the_runner_ends_what_it_started(self):
        program = self.program({"A.a": "ok", "A.b": "hang"})
        results, failures = (os.path.join(self.folder.name, name) for name in ("results.json", "failures.txt"))
        runner = subprocess.Popen([sys.executable, str(RUNNER), "--results", results, "--failures", failures,
                                   "--jobs", "2", "--group", "all", program, "*"], stdout=subprocess.DEVNULL)
        for _ in range(1200):
            time.sleep(0.05)
            if os.path.exists(results):
                break
        time.sleep(0.3)
        runner.terminate()
        self.assertEqual(runner.wait(100), 128 + 15)
        with open(results, encoding="utf-8") as file:
            self.assert_counts(json.load(file), passed=1, did_not_run=1)
        left = subprocess.run(["pgrep", "-f", program], capture_output=True, text=True).stdout
        self.assertEqual(left, "")


if __name__ == "__main__":
    unittest.main()
