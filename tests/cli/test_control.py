"""ds train: batches that grow, what ends a run early, and the line of Megatron's training."""
import json
import re
import signal
import subprocess
import time
import unittest

from cli_case import CONFIG, MODEL, PROGRAM, CliCase, run, train_arguments

LINE = re.compile(
    r"^ iteration +(?P<step>\d+)/ +(?P<total>\d+) \| consumed samples: +(?P<samples>\d+) \|"
    r" consumed tokens: +(?P<tokens>\d+) \| elapsed time per iteration \(ms\): (?P<ms>[\d.]+) \|"
    r" learning rate: (?P<lr>[\d.]+E[+-]\d+) \| global batch size: +(?P<batch>\d+) \|"
    r"(?: lm loss: (?P<loss>[\d.]+E[+-]\d+) \|)? loss scale: (?P<scale>[\d.]+) \|"
    r"(?: grad norm: (?P<norm>[\d.]+) \|)? actual seqlen: +(?P<length>\d+) \|"
    r" number of skipped iterations: +(?P<skipped>\d+) \|"
    r" number of nan iterations: +(?P<nan>\d+) \| samples per second: (?P<rate>[\d.]+) \|"
    r" tokens per gpu per second \(tgs\): (?P<tgs>[\d.]+) \| TFLOPs: (?P<tflops>[\d.]+) \|$",
    re.MULTILINE)


class MegatronLine(CliCase):
    def lines(self, done):
        return [found.groupdict() for found in LINE.finditer(done.error)]

    def test_every_field(self):
        done = self.train(6, "--megatron-log", "--log-interval", 3, "--metrics", "m.jsonl",
                          "--eval-interval", 0, "--rampup-batch-size", "2,2,6")
        steps = self.metrics("m.jsonl")
        lines = self.lines(done)
        self.assertEqual([line["step"] for line in lines], ["3", "6"], done.error)
        for line, part in zip(lines, (steps[:3], steps[3:])):
            last = part[-1]
            before = steps[last["step"] - 2]["samples"]
            batch = last["samples"] - before
            seconds = sum(step["seconds"] for step in part) / 3
            self.assertEqual(int(line["total"]), 6)
            self.assertEqual(int(line["samples"]), last["samples"])
            self.assertEqual(int(line["tokens"]), last["samples"] * 32)
            self.assertAlmostEqual(float(line["ms"]), seconds * 1e3, delta=0.051)
            self.assertAlmostEqual(float(line["lr"]), last["lr"], delta=last["lr"] * 5.1e-4)
            self.assertEqual(int(line["batch"]), batch)
            loss = sum(step["loss"] for step in part) / 3
            self.assertAlmostEqual(float(line["loss"]), loss, delta=loss * 5.1e-7)
            self.assertEqual(float(line["scale"]), 1)
            self.assertAlmostEqual(float(line["norm"]), last["grad_norm"], delta=5.1e-4)
            self.assertEqual((line["length"], line["skipped"], line["nan"]), ("32", "0", "0"))
            self.assertAlmostEqual(float(line["rate"]), batch / seconds, delta=1e-3)
            self.assertAlmostEqual(float(line["tgs"]), batch * 32 / seconds, delta=1e-2)
        self.assertNotIn("  eta ", done.error)

    def test_rate_of_arithmetic(self):
        # Large enough for two digits.
        self.write("model.json", {**MODEL, "n_positions": 128, "n_embd": 256, "n_head": 4})
        self.write("config.json", {**CONFIG, "train_micro_batch_size_per_gpu": 8,
                                   "gradient_accumulation_steps": 1})
        done = self.train(2, "--megatron-log", "--log-interval", 2, "--metrics", "m.jsonl",
                          "--eval-interval", 0)
        seconds = sum(step["seconds"] for step in self.metrics("m.jsonl")) / 2
        # 24 B S L H^2 (1 + S / 6H + V / 12LH), and twice that backward.
        flops = 72 * 8 * 128 * 2 * 256**2 * (1 + 128 / (6 * 256) + 256 / (12 * 2 * 256))
        line, = self.lines(done)
        self.assertAlmostEqual(float(line["tflops"]), flops / seconds / 1e12, delta=0.0051)

    def test_skipped_steps(self):
        self.write("config.json", {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0,
                                   "optimizer": {"type": "AdamW", "params": {"lr": 1e30}}})
        done = self.train(4, "--megatron-log", "--log-interval", 4, "--metrics", "m.jsonl",
                          "--eval-interval", 0)
        line, = self.lines(done)
        self.assertEqual((line["skipped"], line["nan"], line["norm"]), ("3", "3", None))
        # The mean of the steps that were applied.
        self.assertAlmostEqual(float(line["loss"]), self.metrics("m.jsonl")[0]["loss"], delta=1e-5)


class BatchRampUp(CliCase):
    # Two ranks with micro batches of 2: 16 samples are 4 micro batches.
    SAMPLES = [4, 8, 12, 20, 32, 48, 64, 80]

    def setUp(self):
        super().setUp()
        self.write("config.json", {**CONFIG, "gradient_accumulation_steps": 4, "threads": 1})

    def launched(self, steps, *more):
        train = train_arguments(steps, "--eval-interval", 0, *more)
        return self.ds("launch", "-n", 2, "--", PROGRAM, *train)

    def test_ranks_and_a_resume(self):
        ramp = ("--rampup-batch-size", "4,4,30")
        self.launched(8, "--metrics", "whole.jsonl", "--save", "whole", *ramp)
        self.assertEqual([line["samples"] for line in self.metrics("whole.jsonl")], self.SAMPLES)
        self.launched(5, "--save", "part", *ramp)
        self.ds("launch", "-n", 2, "--", PROGRAM, "train", "--load", "part", "--data", "text.txt",
                "--steps", 8, "--eval-interval", 0, "--save", "part", "--metrics", "rest.jsonl")
        self.assertEqual([line["samples"] for line in self.metrics("rest.jsonl")], self.SAMPLES[5:])
        self.assertEqual(self.weights("part"), self.weights("whole"))

    def test_sizes_that_ranks_cannot_share(self):
        done = self.ds("launch", "-n", 2, "--", PROGRAM,
                       *train_arguments(2, "--rampup-batch-size", "2,2,30"), status=1)
        self.assertIn("/rampup_batch_size: 2 samples are no multiple", done.error)


class DataloaderTypes(CliCase):
    def test_single_ends_with_the_data(self):
        done = self.train(10000, "--dataloader-type", "single", "--save", "out", "--metrics",
                          "m.jsonl", "--eval-interval", 0)
        self.assertIn("by the end of the data", done.error)
        samples = int(re.search(r"; (\d+) training samples", done.error).group(1))
        self.assertEqual(self.metrics("m.jsonl")[-1]["samples"], samples // 4 * 4)

    def test_cyclic_is_another_order(self):
        for name in ("passes", "cyclic", "again"):
            kind = "cyclic" if name == "again" else name
            self.train(3, "--dataloader-type", kind, "--metrics", f"{name}.jsonl",
                       "--eval-interval", 0)
        losses = {name: [line["loss"] for line in self.metrics(f"{name}.jsonl")]
                  for name in ("passes", "cyclic", "again")}
        self.assertEqual(losses["cyclic"], losses["again"])
        self.assertNotEqual(losses["cyclic"], losses["passes"])


class ValidationBlend(CliCase):
    def test_a_blend_of_its_own(self):
        self.write("a.txt", "some quite different words, again and again. " * 60)
        self.write("b.txt", "0123456789" * 300)
        self.write("valid.json", {"kind": "blend", "samples": 20, "weights": [0.5, 0.5],
                                  "members": [{"path": "a.txt"}, {"path": "b.txt"}]})
        done = self.train(1, "--valid-data-spec", "valid.json", "--metrics", "m.jsonl",
                          "--eval-batches", 0)
        self.assertRegex(done.error, r"tokens, 2\d for validation")
        self.assertIn("valid_loss", self.metrics("m.jsonl")[0])

    def test_a_part_without_a_share(self):
        self.train(1, "--split", "1,0,0", "--metrics", "m.jsonl")
        self.assertNotIn("valid_loss", self.metrics("m.jsonl")[0])


class Exits(CliCase):
    def saved_step(self, folder="out"):
        found = json.loads(self.ds("inspect", folder, "--json", "--verify").text)
        return found["counters"]["global_steps"]

    def test_after_an_interval(self):
        done = self.train(100, "--exit-interval", 4, "--save", "out", "--eval-interval", 0)
        self.assertIn("ended after step 4 by --exit-interval", done.error)
        self.assertEqual(self.saved_step(), 4)
        # A resumed run does the next interval.
        self.ds("train", "--load", "out", "--data", "text.txt", "--steps", 100, "--save", "out",
                "--exit-interval", 4, "--eval-interval", 0)
        self.assertEqual(self.saved_step(), 8)

    def test_after_a_duration(self):
        done = self.train(100000, "--exit-duration-in-mins", 0.005, "--save", "out",
                          "--eval-interval", 0)
        self.assertRegex(done.error, r"ended after step \d+ by --exit-duration-in-mins")
        self.assertGreater(self.saved_step(), 0)

    def test_a_file(self):
        self.write("stop", "")
        done = self.train(100000, "--kill-switch-file", "stop", "--save", "out")
        self.assertIn("ended after step 0 by the file stop", done.error)
        self.assertFalse(any((self.folder / "out").glob("global_step*")))

    def test_a_signal_on_all_ranks(self):
        train = train_arguments(100000, "--exit-signal-handler", "--save", "out", "--metrics",
                                "m.jsonl", "--eval-interval", 0)
        launch = subprocess.Popen([PROGRAM, "launch", "-n", "2", "--", PROGRAM, *map(str, train)],
                                  cwd=self.folder, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE)
        try:
            path = self.folder / "m.jsonl"
            deadline = time.monotonic() + 60
            while not (path.exists() and path.stat().st_size) and time.monotonic() < deadline:
                time.sleep(0.02)
            launch.send_signal(signal.SIGTERM)  # to all ranks
            _, error = launch.communicate(timeout=60)
        finally:
            launch.kill()
        self.assertEqual(launch.returncode, 0, error.decode())
        self.assertIn("by SIGTERM", error.decode())
        step = self.metrics("m.jsonl")[-1]["step"]
        self.assertEqual(self.saved_step(), step)
        again = run(self.folder, ["train", "--load", "out", "--data", "text.txt", "--steps",
                                  step + 1, "--eval-interval", 0])
        self.assertEqual(again.returncode, 0, again.error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
