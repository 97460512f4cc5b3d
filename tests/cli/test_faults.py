"""ds train when something beside it fails: signals, readers that go away, full disks, damaged data,
a second run in the same folder."""
import json
import os
import resource
import signal
import subprocess
import time
import unittest

from cli_case import PROGRAM, CliCase, train_arguments


class FaultCase(CliCase):
    def start(self, steps, *more, **popen):
        popen.setdefault("stderr", subprocess.PIPE)
        run = subprocess.Popen([PROGRAM, *map(str, train_arguments(steps, *more))], cwd=self.folder,
                               stdout=subprocess.DEVNULL, **popen)

        def end():
            run.kill()
            run.wait()
            if run.stderr is not None:
                run.stderr.close()
        self.addCleanup(end)
        return run

    def wait_for(self, condition, run):
        deadline = time.monotonic() + 60
        while not condition():
            self.assertLess(time.monotonic(), deadline, "nothing happens")
            self.assertIsNone(run.poll(), "the run has ended")
            time.sleep(0.02)

    def wait_for_steps(self, run, steps, metrics="m.jsonl"):
        path = self.folder / metrics
        self.wait_for(lambda: path.exists() and path.read_bytes().count(b"\n") >= steps, run)

    def saved_step(self, folder="out"):
        found = json.loads(self.ds("inspect", folder, "--json", "--verify").text)
        return found["counters"]["global_steps"]

    def last_step(self):
        return self.metrics("m.jsonl")[-1]["step"]


class Signals(FaultCase):
    def test_save_and_end(self):
        for number in (signal.SIGHUP, signal.SIGXCPU):
            with self.subTest(number.name):
                run = self.start(100000, "--save", number.name, "--metrics", "m.jsonl")
                self.wait_for_steps(run, 1)
                run.send_signal(number)
                time.sleep(0.01)
                run.send_signal(number)  # a terminal sends two: the second must not end the save
                _, error = run.communicate(timeout=60)
                self.assertEqual(run.returncode, 128 + number, error.decode())
                self.assertEqual(self.saved_step(number.name), self.last_step())
                (self.folder / "m.jsonl").unlink()

    def test_save_and_go_on(self):
        run = self.start(100000, "--save", "out", "--metrics", "m.jsonl")
        self.wait_for_steps(run, 1)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            before = {path.name for path in (self.folder / "out").iterdir()}
            run.send_signal(number)
            self.wait_for(lambda: any(path.name.startswith("global_step")
                                      for path in (self.folder / "out").iterdir()
                                      if path.name not in before), run)
            self.wait_for_steps(run, self.last_step() + 2)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(60), 128 + signal.SIGTERM)
        self.assertEqual(self.saved_step(), self.last_step())

    def test_a_hang_up_that_nohup_ignores(self):
        run = self.start(100000, "--save", "out", "--metrics", "m.jsonl",
                         preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_steps(run, 1)
        run.send_signal(signal.SIGHUP)
        self.wait_for_steps(run, self.last_step() + 5)
        run.send_signal(signal.SIGTERM)
        self.assertEqual(run.wait(60), 128 + signal.SIGTERM)

    def test_a_reader_that_goes_away(self):
        # Python ignores SIGPIPE; a shell's children do not.
        run = self.start(40, "--save", "out", "--metrics", "m.jsonl", "--log-interval", 1,
                         preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_DFL))
        run.stderr.readline()
        run.stderr.close()
        run.stderr = None
        self.assertEqual(run.wait(60), 0)
        self.assertEqual(self.saved_step(), 40)


# A process that counts lines writes its counters at the end, which a limit of file sizes does not let it.
counts_no_lines = unittest.skipIf(os.environ.get("DS_COUNTS_LINES"), "counters of lines are larger files")


class Saves(FaultCase):
    def limited(self, *more, status=1, files=20000):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (files, files))
        run = subprocess.run([PROGRAM, *map(str, train_arguments(4, *more))], cwd=self.folder,
                             preexec_fn=limit, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             timeout=120)
        self.assertEqual(run.returncode, status, run.stderr.decode())
        return run.stderr.decode()

    def decouple(self):
        config = json.loads((self.folder / "config.json").read_text())
        self.write("config.json", dict(config, checkpoint={"writer": {"decoupled": True}}))

    @counts_no_lines
    def test_a_last_save_that_fails_is_an_error(self):
        for kind in ("plain", "decoupled"):
            with self.subTest(kind):
                error = self.limited("--save", f"out-{kind}", "--save-interval", 2, "--metrics",
                                     f"{kind}.jsonl")
                # The save between two steps is a warning, and the run goes on.
                self.assertRegex(error, "ds: warning: cannot save .* at step 2: .*File too large")
                self.assertRegex(error, "ds: error: cannot save .* at step 4: .*File too large")
                self.assertNotIn("saved out", error)
                self.assertNotIn("done:", error)
                self.assertEqual(len(self.metrics(f"{kind}.jsonl")), 4)
                self.assertEqual(list((self.folder / f"out-{kind}").iterdir()), [])
            self.decouple()

    def test_decoupled_saves_are_told_when_they_are_there(self):
        self.decouple()
        done = self.train(6, "--save", "out", "--save-interval", 2)
        for step in (2, 4, 6):
            self.assertIn(f"saved out at step {step}\n", done.error)
        self.assertEqual(self.saved_step(), 6)

    def test_a_save_that_fails_is_tried_again(self):
        # A folder that is no checkpoint is in the way of the first one.
        (self.folder / "out/global_step2").mkdir(parents=True)
        self.write("out/global_step2/data-00000.bin", "mine")
        done = self.train(4, "--save", "out", "--save-interval", 2)
        self.assertRegex(done.error, "ds: warning: cannot save out at step 2: .*no checkpoint.*"
                                     "the next save is in 2 steps")
        self.assertEqual(self.saved_step(), 4)
        self.assertEqual((self.folder / "out/global_step2/data-00000.bin").read_text(), "mine")

    def test_a_folder_that_cannot_be_written_is_told_before_the_first_step(self):
        self.write("file", "x")
        done = self.train(100000, "--save", "file", status=1)
        self.assertIn("file", done.error)
        # A link in the place of the lock is not followed.
        (self.folder / "out").mkdir()
        os.symlink(self.folder / "victim", self.folder / "out/.ds-lock")
        done = self.train(100000, "--save", "out", status=1)
        self.assertIn("cannot write to the folder out that --save names", done.error)
        self.assertFalse((self.folder / "victim").exists())


class Records(FaultCase):
    def test_a_full_disk_ends_no_training(self):
        done = self.train(4, "--metrics", "/dev/full", "--save", "out")
        self.assertEqual(done.error.count("ds: warning: cannot write the metrics file /dev/full"), 1)
        self.assertEqual(self.saved_step(), 4)

    def test_lines_wait_until_they_can_be_written(self):
        # A limit in the middle of a line, which is lifted later.
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (3001, resource.RLIM_INFINITY))
        run = self.start(100000, "--metrics", "m.jsonl", "--quiet", preexec_fn=limit)
        self.assertIn(b"the run's description is not kept: cannot write m.run.json",
                      run.stderr.readline())
        self.assertIn(b"cannot write the metrics file m.jsonl: File too large",
                      run.stderr.readline())
        self.assertEqual([path.name for path in self.folder.iterdir() if "run.json" in path.name], [])
        self.assertEqual((self.folder / "m.jsonl").stat().st_size, 3001)
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE,
                         (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        self.assertIn(b"can be written again", run.stderr.readline())
        run.send_signal(signal.SIGTERM)
        run.communicate(timeout=60)
        steps = [line["step"] for line in self.metrics("m.jsonl")]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_a_resumed_run_repeats_no_step(self):
        self.train(6, "--save", "out", "--save-interval", 4, "--metrics", "m.jsonl")
        subprocess.run(["rm", "-r", self.folder / "out/global_step6"], check=True)
        with open(self.folder / "m.jsonl", "a") as record:
            record.write('{"step": 7, "lo')  # as a crash leaves it
        self.ds("train", "--load", "out", "--tag", "global_step4", "--config", "config.json",
                "--data", "text.txt", "--steps", 8, "--metrics", "m.jsonl")
        self.assertEqual([line["step"] for line in self.metrics("m.jsonl")], list(range(1, 9)))

    @counts_no_lines
    def test_a_full_disk_of_a_monitor(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
        run = subprocess.run([PROGRAM, *map(str, train_arguments(60, "--csv", "table",
                                                                 "--tensorboard", "board"))],
                             cwd=self.folder, preexec_fn=limit, stderr=subprocess.PIPE, timeout=120)
        self.assertEqual(run.returncode, 0, run.stderr.decode())
        self.assertIn(b"done: step 60", run.stderr)


class Locks(FaultCase):
    def test_one_run_per_folder(self):
        first = self.start(100000, "--save", "out", "--metrics", "m.jsonl")
        self.wait_for_steps(first, 1)
        second = self.train(3, "--save", "out", status=1)
        self.assertIn(f"another run saves to out: process {first.pid} on {os.uname().nodename}",
                      second.error)
        third = self.train(3, "--save", "elsewhere", "--metrics", "m.jsonl", status=1)
        self.assertIn("m.jsonl for writing: another run is writing it", third.error)
        # A run that was killed holds nothing.
        first.kill()
        first.wait()
        self.train(3, "--save", "out", "--metrics", "m.jsonl")
        self.assertEqual(sorted(path.name for path in (self.folder / "out").iterdir()),
                         ["global_step3", "latest"])

    def test_ranks_are_refused_together(self):
        first = self.start(100000, "--save", "out", "--metrics", "m.jsonl")
        self.wait_for_steps(first, 1)
        done = self.ds("launch", "-n", 2, "--", PROGRAM, *train_arguments(3, "--save", "out"),
                       status=1)
        self.assertIn(f"another run saves to out: process {first.pid}", done.error)


class Data(FaultCase):
    def tokens(self, change=None):
        self.ds("tokenize", "--file", "text.txt", "--build", "p")
        if change:
            with open(self.folder / "p.bin", "r+b") as file:
                change(file)

    def run_on(self, data, steps, *more, status=0):
        return self.ds("train", "--model", "model.json", "--config", "config.json", "--data", data,
                       "--steps", steps, "--seed", 7, "--split", "1", *more, status=status)

    def test_an_id_beyond_the_vocabulary_is_named_before_the_first_step(self):
        def put(file):
            file.seek(2 * 3000)
            file.write((511).to_bytes(2, "little"))
        self.tokens(put)
        done = self.run_on("p", 5, "--save", "out", status=1)
        self.assertRegex(done.error, r"p\.bin: byte 6000 \(token 3000 of sequence 0, document 0\) "
                                     r"holds the token id 511, outside the model's vocabulary of 256")
        self.assertEqual(list((self.folder / "out").iterdir()), [])

    def test_an_id_that_is_met_later_ends_the_run_after_a_save(self):
        def put(file):
            file.seek(2 * 20)
            file.write((300).to_bytes(2, "little"))
        self.tokens(put)
        done = self.train(4, "--valid-data", "p", "--eval-interval", 2, "--eval-batches", 0,
                          "--save", "out", status=1)
        self.assertRegex(done.error, r"p\.bin: byte 40 \(token 20 of .* holds the token id 300")
        self.assertEqual(self.saved_step(), 2)

    def test_a_file_that_shrinks_is_an_error_and_what_was_trained_is_saved(self):
        self.tokens()
        run = subprocess.Popen(
            [PROGRAM, "train", "--model", "model.json", "--config", "config.json", "--data", "p",
             "--split", "1", "--steps", "100000", "--save", "out", "--metrics", "m.jsonl"],
            cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(run.kill)
        self.wait_for_steps(run, 2)
        os.truncate(self.folder / "p.bin", 64)
        _, error = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 1, error.decode())
        self.assertRegex(error.decode(), r"ds: error: .*p\.bin has 64 bytes, but .* truncated")
        self.assertEqual(self.saved_step(), self.last_step())

    def test_a_name_that_is_not_utf8(self):
        name = b"text-\xff.txt"
        os.link(self.folder / "text.txt", os.fsencode(self.folder) + b"/" + name)
        run = subprocess.run([PROGRAM, b"train", b"--model", b"model.json", b"--steps", b"1",
                              b"--data", name], cwd=self.folder, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(run.returncode, 1)
        self.assertIn(b"is not UTF-8", run.stderr)


class Leftovers(FaultCase):
    def test_files_of_killed_builds_go_with_the_next(self):
        self.write("big.txt", (self.folder / "text.txt").read_text() * 200)
        for _ in range(3):
            run = subprocess.Popen([PROGRAM, "tokenize", "--file", "big.txt", "--build", "p"],
                                   cwd=self.folder, stderr=subprocess.DEVNULL)
            time.sleep(0.05)
            run.kill()
            run.wait()
        self.write("p.bin.tmp.99999999", "of an earlier version")
        self.ds("tokenize", "--file", "text.txt", "--build", "p")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()
                                if path.name.startswith("p.")), ["p.bin", "p.idx"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
