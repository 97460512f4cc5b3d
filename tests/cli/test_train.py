"""ds train: resuming, records, interruption, output on pipes and terminals."""
import json
import os
import pty
import re
import signal
import subprocess
import time
import unittest

from cli_case import MODEL, PROGRAM, CliCase, train_arguments

SAME = ("step", "loss", "lr", "grad_norm", "loss_scale", "applied", "tokens", "samples")


def comparable(lines):
    return [{key: line[key] for key in SAME} for line in lines]


class Resume(CliCase):
    def test_ten_and_ten_steps_are_twenty(self):
        self.train(20, "--save", "whole", "--metrics", "whole.jsonl")
        self.train(10, "--save", "half", "--metrics", "half.jsonl")
        self.ds("train", "--load", "half", "--config", "config.json", "--data", "text.txt",
                "--steps", 20, "--save", "half", "--metrics", "half.jsonl")
        whole, half = self.metrics("whole.jsonl"), self.metrics("half.jsonl")
        self.assertEqual([line["step"] for line in whole], list(range(1, 21)))
        self.assertEqual(comparable(half), comparable(whole))
        self.assertEqual(half[-1]["valid_loss"], whole[-1]["valid_loss"])
        self.assertEqual(self.weights("half"), self.weights("whole"))
        self.assertLess(whole[-1]["loss"], whole[0]["loss"] - 0.5)

    def test_a_tag_can_be_loaded(self):
        self.train(6, "--save", "out", "--save-interval", 2, "--metrics", "a.jsonl")
        tags = json.loads(self.ds("inspect", "out", "--json").text)["tags"]
        self.assertEqual(sorted(tags), ["global_step2", "global_step4", "global_step6"])
        self.train(6, "--load", "out", "--tag", "global_step4", "--metrics", "b.jsonl")
        self.assertEqual(comparable(self.metrics("b.jsonl")), comparable(self.metrics("a.jsonl")[4:]))

        self.train(6, "--load", "out/global_step4", "--metrics", "c.jsonl")
        self.assertEqual(comparable(self.metrics("c.jsonl")), comparable(self.metrics("b.jsonl")))

    def test_nothing_to_do(self):
        self.train(3, "--save", "out")
        done = self.train(3, "--load", "out")
        self.assertIn("nothing to do", done.text)

    def test_seed_and_threads(self):
        # The last --seed of a command line would be an error: the options are written out.
        common = ["train", "--model", "model.json", "--config", "config.json", "--data", "text.txt",
                  "--steps", 3]
        for name, options in {"a": ["--seed", 7], "b": ["--seed", 7, "--threads", 1],
                              "c": ["--seed", 7, "--threads", 3], "d": ["--seed", 8]}.items():
            self.ds(*common, *options, "--metrics", f"{name}.jsonl")
        a, b, c, d = (comparable(self.metrics(f"{name}.jsonl")) for name in "abcd")
        self.assertEqual(a, b)
        self.assertEqual(a, c)
        self.assertNotEqual(a[0]["loss"], d[0]["loss"])


class Records(CliCase):
    def test_metrics(self):
        self.train(4, "--metrics", "m.jsonl", "--eval-interval", 2)
        lines = self.metrics("m.jsonl")
        for line in lines:
            self.assertTrue({"step", "loss", "lr", "grad_norm", "loss_scale", "applied", "tokens",
                             "tokens_per_s"} <= set(line))
            self.assertIs(line["applied"], True)
            self.assertEqual(line["tokens"], 2 * 2 * 32)
            self.assertGreater(line["tokens_per_s"], 0)
        self.assertEqual(["valid_loss" in line for line in lines], [False, True, False, True])
        self.train(2, "--metrics", "m.jsonl")
        self.assertEqual(len(self.metrics("m.jsonl")), 2, "a new run begins the file anew")

    def test_tensorboard_and_csv(self):
        self.train(3, "--tensorboard", "runs/board", "--csv", "runs/table")
        events = [p for p in (self.folder / "runs/board").rglob("*") if "tfevents" in p.name]
        tables = list((self.folder / "runs/table").rglob("*.csv"))
        self.assertTrue(events and events[0].stat().st_size > 0)
        self.assertTrue(tables)

    def test_default_configuration(self):
        done = self.ds("train", "--model", "model.json", "--data", "text.txt", "--steps", 2)
        self.assertIn("batch 8", done.error)

    def test_validation_data_of_its_own(self):
        self.write("valid.txt", "some quite different words, again and again. " * 100)
        self.train(2, "--valid-data", "valid.txt", "--metrics", "m.jsonl", "--eval-interval", 1)
        self.assertTrue(all("valid_loss" in line for line in self.metrics("m.jsonl")))

    def test_quiet(self):
        done = self.train(2, "--quiet")
        self.assertEqual((done.text, done.error), ("", ""))


class Skips(CliCase):
    def test_a_step_that_is_not_finite_is_skipped_and_told(self):
        self.write("config.json", {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 0,
                                   "optimizer": {"type": "AdamW", "params": {"lr": 1e30}}})
        done = self.train(3, "--metrics", "m.jsonl")
        first, *rest = self.metrics("m.jsonl")
        self.assertIs(first["applied"], True)
        for line in rest:
            self.assertEqual((line["applied"], line["loss"], line["grad_norm"], line["skip_reason"]),
                             (False, None, None, "non_finite"))
            self.assertTrue(line["first_bad_tensor"])
        self.assertRegex(done.error, "step 2: not applied, the gradient is not finite, first in ")

    def test_too_little_text_to_validate(self):
        self.write("text.txt", "ten words. " * 60)
        done = self.train(2)
        self.assertIn("ds: note: no validation: ", done.error)


class Tokens(CliCase):
    def test_tokenizer_prefix_checkpoint_generate(self):
        self.ds("tokenizer-train", "text.txt", "--vocab-size", 320, "--output", "tok.json")
        self.ds("tokenize", "--tokenizer", "tok.json", "--file", "text.txt", "--build", "corpus",
                "--append-end")
        self.write("model.json", dict(MODEL, vocab_size=320))
        self.train(3, "--tokenizer", "tok.json", "--metrics", "text.jsonl", "--save", "out")
        self.ds("train", "--model", "model.json", "--config", "config.json", "--data", "corpus",
                "--tokenizer", "tok.json", "--steps", 3, "--metrics", "prefix.jsonl")
        self.assertEqual(len(self.metrics("prefix.jsonl")), 3)
        # The checkpoint carries the tokenizer: neither of these names it.
        self.ds("train", "--load", "out", "--config", "config.json", "--data", "text.txt",
                "--steps", 4)
        self.assertTrue(self.ds("generate", "--model", "out", "--prompt", "The License").text
                        .startswith("The License"))
        self.ds("export", "out", "exported", "--dtype", "bfloat16")
        self.assertEqual(json.loads((self.folder / "exported/tokenizer.json").read_text())["model"],
                         json.loads((self.folder / "tok.json").read_text())["model"])
        self.ds("train", "--model", "exported", "--tokenizer", "exported", "--config",
                "config.json", "--data", "text.txt", "--steps", 1)

    def test_weights_without_their_tokenizer(self):
        """Weights of a vocabulary that is not bytes are not trained on bytes by accident."""
        self.write("model.json", dict(MODEL, vocab_size=512))
        self.train(1, "--save", "out", "--eval-interval", 0)
        self.ds("export", "out", "folder")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (self.folder / "folder" / name).unlink(missing_ok=True)
        train = ["train", "--model", "folder", "--config", "config.json", "--data", "text.txt",
                 "--steps", 1, "--eval-interval", 0]
        done = self.ds(*train, status=1)
        self.assertIn("folder holds no tokenizer and its vocabulary is 512", done.error)
        self.assertIn("--tokenizer bytes", done.error)
        refused = self.ds("generate", "--model", "folder", "--prompt", "x", status=1)
        self.assertIn("folder holds no tokenizer and its vocabulary is 512", refused.error)
        self.ds(*train, "--tokenizer", "bytes", "--save", "more")
        # What was trained so says so.
        self.assertTrue(self.ds("generate", "--model", "more", "--prompt", "x", "--max-tokens", 1,
                                "--temperature", 0).text.startswith("x"))
        self.assertEqual(self.ds("tokenize", "--tokenizer", "bytes", "ab").text, "97 98\n")

    def test_vocabulary_too_small(self):
        self.write("model.json", dict(MODEL, vocab_size=100))
        done = self.train(2, status=1)
        self.assertRegex(done.error, r"vocab_size is 100, but the tokenizer \(bytes\) has 256")


class Interruption(CliCase):
    def interrupted(self, number):
        run = subprocess.Popen([PROGRAM, *map(str, train_arguments(
            100000, "--save", "out", "--metrics", "m.jsonl"))], cwd=self.folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            path = self.folder / "m.jsonl"
            deadline = time.monotonic() + 60
            while not (path.exists() and path.stat().st_size) and time.monotonic() < deadline:
                time.sleep(0.02)
            run.send_signal(number)
            _, error = run.communicate(timeout=60)
        finally:
            run.kill()
        self.assertEqual(run.returncode, 128 + number, error.decode())
        lines = self.metrics("m.jsonl")
        saved = json.loads(self.ds("inspect", "out", "--json", "--verify").text)
        self.assertEqual(saved["counters"]["global_steps"], lines[-1]["step"])
        self.assertIn("interrupted", error.decode())

    def test_ctrl_c_saves_and_ends_130(self):
        self.interrupted(signal.SIGINT)

    def test_a_second_ctrl_c_ends_at_once(self):
        # A step of this model takes seconds: the run cannot end between the two signals.
        self.write("model.json", dict(MODEL, n_positions=512, n_embd=768, n_layer=6, n_head=12))
        self.write("config.json", {"train_micro_batch_size_per_gpu": 8,
                                   "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})
        arguments = train_arguments(9, "--save", "out", "--split", "1")
        run = subprocess.Popen([PROGRAM, *map(str, arguments)], cwd=self.folder,
                               stderr=subprocess.PIPE)
        try:
            shown = b""
            while b"training samples" not in shown:  # the steps begin after this line
                shown = run.stderr.readline()
                self.assertTrue(shown)
            time.sleep(0.3)
            # A busy machine makes one of two that come before the process runs again.
            for _ in range(200):
                run.send_signal(signal.SIGINT)
                time.sleep(0.1)
                if run.poll() is not None:
                    break
            _, rest = run.communicate(timeout=60)
        finally:
            run.kill()
        self.assertEqual(run.returncode, 130)
        self.assertNotIn(b"interrupted after", rest)  # nobody waited for the step

    def test_terminate_saves_and_ends_143(self):
        self.interrupted(signal.SIGTERM)


class Output(CliCase):
    def test_plain_lines_on_a_pipe(self):
        done = self.train(20)
        self.assertIsNone(re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.text + done.error))
        steps = re.findall(r"^step (\d+)/20  loss [\d.]+ ", done.error, re.MULTILINE)
        self.assertEqual(steps, ["1", "10", "20"])

    def test_a_bar_on_a_terminal(self):
        master, slave = pty.openpty()
        run = subprocess.Popen([PROGRAM, *map(str, train_arguments(5))], cwd=self.folder,
                               stdout=subprocess.DEVNULL, stderr=slave)
        os.close(slave)
        shown = b""
        while True:
            try:
                chunk = os.read(master, 4096)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            shown += chunk
        os.close(master)
        self.assertEqual(run.wait(60), 0)
        self.assertRegex(shown.decode(), r"\r\x1b\[Kstep 5/5 \[#{24}\] loss [\d.]+  lr ")


if __name__ == "__main__":
    unittest.main(verbosity=2)
