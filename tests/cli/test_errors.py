"""Every wrong use ends with a status and one line that says what is wrong."""
import unittest

from cli_case import CONFIG, MODEL, CliCase

TRAIN = ["train", "--model", "model.json", "--data", "text.txt", "--steps", "2"]


class Usage(CliCase):
    """Status 2: the command line is wrong."""

    def check(self, arguments, *words):
        done = self.ds(*arguments, status=2)
        self.assertRegex(done.error, r"\Ads: error: [^\n]+\n\Z")
        for word in words:
            self.assertIn(word, done.error)

    def test_command_lines(self):
        for arguments, words in [
                (["frobnicate"], ["frobnicate", "ds --help"]),
                (["train", "--bogus", "x"], ["unknown argument --bogus", "ds train --help"]),
                ([*TRAIN, "--stepz", "3"], ["--stepz"]),
                (["train", "--data", "x", "--steps", "3"], ["--model", "--load"]),
                (["train", "--model", "x", "--steps", "3"], ["--data"]),
                (["train", "--model", "x", "--data", "y"], ["--steps"]),
                ([*TRAIN[:-1], "0"], ["--steps", "0 is below 1"]),
                ([*TRAIN[:-1], "ten"], ["--steps", "'ten' is not a whole number"]),
                ([*TRAIN[:-1], "1" + "0" * 30], ["--steps"]),
                ([*TRAIN, "--seed", "-1"], ["--seed"]),
                ([*TRAIN, "--save-interval", "2"], ["--save"]),
                ([*TRAIN, "--tag", "x"], ["--load"]),
                ([*TRAIN, "--split", "1,2,3,4"], ["more than three"]),
                ([*TRAIN, "--split", "all"], ["'all'"]),
                ([*TRAIN, "--split", "1,,2"], ["''"]),
                ([*TRAIN, "--split", "1,-2"], ["'-2'"]),
                (["generate", "--model", "x"], ["--prompt"]),
                (["generate", "--model", "x", "--prompt", "y", "--top-p", "1.5"], ["--top-p"]),
                (["generate", "--model", "x", "--prompt", "y", "--temperature", "-1"],
                 ["--temperature"]),
                (["tokenize", "--build", "p", "text"], ["--build", "--file"]),
                (["tokenize", "--json", "--count", "x"], ["--json"]),
                (["tokenizer-train", "--output", "x"], ["files"]),
                (["inspect"], ["checkpoint"]),
                (["export", "only-one"], ["output"]),
                (["export", "a", "b", "--dtype", "float8"], ["float8"]),
                (["eval"], ["model"]),
                (["eval", "x"], ["--data"]),
                (["eval", "x", "--data", "y", "--task", "next"], ["next"]),
                (["eval", "x", "--data", "y", "--overlap", "0"], ["--overlap", "0 is below 1"]),
                (["bench", "--steps", "0"], ["--steps", "0 is below 1"]),
                (["convert", "a"], ["output"]),
                (["launch", "-n", "2"], ["ds launch -n N -- COMMAND"]),
                (["launch", "-n", "2", "--"], ["ds launch -n N -- COMMAND"]),
                (["launch", "--", "true"], ["--ranks"]),
                (["launch", "-n", "2", "true"], ["'true' stands before '--'"]),
                (["launch", "-n", "0", "--", "true"], ["0 is below 1"]),
                (["launch", "-n", "1" + "0" * 30, "--", "true"], ["--ranks"]),
                (["launch", "-n", "10001", "--", "true"], ["10001 ranks are too many"]),
                (["launch", "-n", "2", "--bogus", "--", "true"], ["unknown argument --bogus"]),
                (["launch", "-n", "2", "--timeout", "0", "--", "true"], ["--timeout"]),
                (["launch", "-n", "2", "--timeout", "nan", "--", "true"], ["--timeout"]),
                (["launch", "-n", "2", "--master-port", "65536", "--", "true"],
                 ["--master-port"]),
                (["report", "surplus"], ["surplus"])]:
            with self.subTest(arguments=arguments):
                self.check(arguments, *words)


class Failures(CliCase):
    """Status 1: the run failed."""

    def check(self, arguments, *words, **more):
        done = self.ds(*arguments, status=1, **more)
        self.assertRegex(done.error, r"(?m)^ds: error: (?!ds_)")
        for word in words:
            self.assertIn(word, done.error)

    def test_files_that_are_missing_or_wrong(self):
        self.write("broken.json", '{"model_type": ')
        self.write("list.json", "[1]")
        self.write("t5.json", dict(MODEL, model_type="t5"))
        self.write("empty.txt", "")
        (self.folder / "folder").mkdir()
        replaced = {"--model": 2, "--data": 4}
        for option, value, words in [
                ("--model", "none.json", ["none.json"]),
                ("--model", "broken.json", ["broken.json", "line 1"]),
                ("--model", "list.json", []),
                ("--model", "t5.json", ["t5"]),
                ("--model", "folder", ["folder"]),
                ("--data", "none.txt", ["none.txt"]),
                ("--data", "empty.txt", ["empty.txt"]),
                ("--data", "folder", ["folder"])]:
            with self.subTest(option=option, value=value):
                arguments = list(TRAIN)
                arguments[replaced[option]] = value
                self.check(arguments, *words)

    def test_options_of_train(self):
        self.write("file", "in the way")
        for options, words in [
                (["--config", "none.json"], ["none.json"]),
                (["--tokenizer", "none.json"], ["none.json"]),
                (["--load", "nowhere"], ["nowhere"]),
                (["--save", "file"], ["file"]),
                (["--save", "file/below"], ["file/below"]),
                (["--metrics", "no/such/folder.jsonl"], ["no/such/folder.jsonl"]),
                (["--sequence-length", "33"], ["33", "32"]),
                (["--device", "gpu"], ["gpu", "cuda:0"]),
                (["--split", "0,0,0"], [])]:
            with self.subTest(options=options):
                self.check([*TRAIN, *options], *words)

    def test_configurations(self):
        for content, words in [
                ("{", []),
                ("[]", []),
                ('{"train_batch_size": 2, "train_batch_size": 4}', ["train_batch_size"]),
                (dict(CONFIG, gradient_cliping=1), ["gradient_cliping", "gradient_clipping"]),
                (dict(CONFIG, zero_optimization={"stage": 9}), ["stage"])]:
            with self.subTest(content=content):
                self.write("bad.json", content)
                self.check([*TRAIN, "--config", "bad.json"], "bad.json", *words)

    def test_other_subcommands(self):
        for arguments, words in [
                (["generate", "--model", "none", "--prompt", "x"], ["none"]),
                (["inspect", "none"], ["none"]),
                (["export", "none", "out"], ["none"]),
                (["tokenize", "--tokenizer", "none.json", "x"], ["none.json"]),
                (["tokenize", "--file", "none.txt"], ["none.txt"]),
                (["tokenize", "--decode", "12", "dozen"], ["dozen"]),
                (["tokenize", "--decode", "256"], ["256"]),
                (["tokenizer-train", "none.txt", "--output", "x"], ["none.txt"]),
                (["tokenizer-train", "text.txt", "--output", "no/x"], ["no/x"]),
                (["tokenizer-train", "text.txt", "--vocab-size", "10", "--output", "x"], [])]:
            with self.subTest(arguments=arguments):
                self.check(arguments, *words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
