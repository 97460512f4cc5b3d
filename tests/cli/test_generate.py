"""ds generate, inspect, export and report on one small checkpoint."""
import json
import re
import shutil
import unittest

from cli_case import CliCase, new_folder, run, train_arguments


class OneCheckpoint(CliCase):
    """The checkpoint is trained once for all tests of a class: self.checkpoint."""

    @classmethod
    def setUpClass(cls):
        kept = new_folder()
        cls.addClassCleanup(shutil.rmtree, kept, ignore_errors=True)
        cls.checkpoint = kept / "out"
        done = run(kept, train_arguments(30, "--save", "out"))
        if done.returncode != 0:
            raise RuntimeError(done.error)

    def generate(self, *options, **more):
        return self.ds("generate", "--model", self.checkpoint, *options, **more)


class Generate(OneCheckpoint):
    def test_same_seed_same_text(self):
        options = ["--prompt", "The ", "--max-tokens", 60, "--temperature", 1, "--seed", 5]
        first = self.generate(*options).stdout
        self.assertEqual(first, self.generate(*options).stdout)
        self.assertTrue(first.startswith(b"The "))
        self.assertNotEqual(first, self.generate(*options[:-1], 6).stdout)

    def test_greedy_needs_no_seed(self):
        texts = {self.generate("--prompt", "The ", "--temperature", 0, "--seed", seed).stdout
                 for seed in range(3)}
        self.assertEqual(len(texts), 1)
        only = self.generate("--prompt", "The ", "--top-k", 1, "--temperature", 2).stdout
        self.assertEqual(texts, {only})

    def test_texts_that_end_it(self):
        options = ["--prompt", "The ", "--temperature", 0, "--max-tokens", 60, "--no-prompt"]
        whole = self.generate(*options).stdout.decode()
        self.assertGreater(len(whole.rstrip("\n")), 30)
        # One token is a byte here: these are words of several.
        for stop in (whole[12:18], whole[7:9]):
            ended = self.generate(*options, "--stop", stop).stdout.decode()
            self.assertEqual(ended, whole[:whole.find(stop)] + "\n")
        first, second = whole[20:24], whole[10:14]
        ended = self.generate(*options, "--stop", first, "--stop", second).stdout.decode()
        self.assertEqual(ended, whole[:min(whole.find(first), whole.find(second))] + "\n")
        # What only begins as a stop is text, at the end of it too.
        for stop in (whole[12:18] + "\x01", whole.rstrip("\n")[-3:] + "\x01"):
            self.assertEqual(self.generate(*options, "--stop", stop).stdout.decode(), whole)
        self.generate(*options, "--stop", "", status=2)

    def test_prompt_from_standard_input(self):
        direct = self.generate("--prompt", "The ", "--seed", 1).stdout
        self.assertEqual(self.generate("--prompt", "-", "--seed", 1, text="The ").stdout, direct)
        alone = self.generate("--prompt", "The ", "--seed", 1, "--no-prompt").stdout
        self.assertEqual(b"The " + alone, direct)
        self.assertEqual(
            self.generate("--prompt", "The ", "--seed", 1, "--no-graphs").stdout, direct)

    def test_output_is_utf8(self):
        # A hot byte model makes broken characters: they must arrive as U+FFFD, once each.
        done = self.generate("--prompt", "€ ", "--max-tokens", 300, "--temperature", 5)
        text = done.stdout.decode("utf-8")  # throws when a character is cut
        self.assertTrue(text.startswith("€ "))

    def test_beyond_the_models_positions(self):
        done = self.generate("--prompt", "The ", "--max-tokens", 100, "--stats")
        self.assertRegex(done.error, r"(?m)^100 tokens in ")
        self.assertEqual(done.error.count("the text fills the model's 32 positions"), 1)
        done = self.generate("--prompt", "The ", "--max-tokens", 20)
        self.assertNotIn("positions", done.error)

    def test_weight_forms(self):
        options = ["--prompt", "The ", "--max-tokens", 40, "--temperature", 0]
        plain = self.generate(*options).stdout
        for threads in (1, 2):
            fp32 = self.generate(*options, "--weights", "fp32", "--threads", threads).stdout
            self.assertEqual(fp32, plain)
        for form in ("bf16", "int8", "int4"):
            text = self.generate(*options, "--weights", form, "--group-size", 32).stdout
            self.assertTrue(text.startswith(b"The "))
            self.assertGreaterEqual(len(text.decode("utf-8", "replace")), 20)
        for rounded in ("--int8-activations", "--int8-activations=all"):
            text = self.generate(*options, "--weights", "int8", rounded).stdout
            self.assertTrue(text.startswith(b"The "))
        self.assertIn("all", self.generate(*options, "--weights", "int8", "--int8-activations=some",
                                           status=2).error)
        refused = self.generate(*options, "--int8-activations", status=1)
        self.assertIn("int8_activations", refused.error)
        self.assertIn("int3", self.generate(*options, "--weights", "int3", status=2).error)
        refused = self.generate(*options, "--weights", "int4", "--group-size", 12, status=1)
        self.assertIn("group_size", refused.error)

    def test_keys_and_values_in_blocks(self):
        options = ["--prompt", "The ", "--max-tokens", 20, "--temperature", 1, "--seed", 3,
                   "--ignore-end", "--stats"]
        whole = self.generate(*options)
        kept = re.search(r"(?m)^keys and values in ([\d.]+ \w+) at most$", whole.error)
        self.assertTrue(kept, whole.error)
        for size in (1, 16):
            for form in ([], ["--weights", "bf16"]):
                expected = self.generate(*options, *form).stdout
                done = self.generate(*options, *form, "--kv-block-tokens", size)
                self.assertEqual(done.stdout, expected)
        # A text that ends early has taken less.
        short = self.generate(*options, "--kv-block-tokens", 2, "--stop", whole.text[6:9])
        self.assertNotEqual(
            re.search(r"keys and values in ([\d.]+ \w+) at most", short.error)[1], kept[1])
        done = self.generate(*options, "--kv-block-tokens", 2, "--kv-pool-tokens", 8, status=1)
        self.assertIn("a larger kv_pool_tokens makes room", done.error)
        done = self.generate(*options, "--kv-pool-tokens", 8, status=1)
        self.assertIn("needs kv_block_tokens", done.error)
        self.generate(*options, "--kv-block-tokens", -1, status=2)

    def test_keys_and_values_in_codes(self):
        options = ["--prompt", "The ", "--max-tokens", 20, "--temperature", 1, "--seed", 3,
                   "--ignore-end", "--stats", "--weights", "bf16"]
        kept = {}
        for cache in ("auto", "int8"):
            done = self.generate(*options, "--kv-cache", cache)
            kept[cache] = re.search(r"keys and values in ([\d.]+ \w+) at most", done.error)[1]
        self.assertNotEqual(kept["auto"], kept["int8"])
        blocks = self.generate(*options, "--kv-cache", "int8", "--kv-block-tokens", 4)
        self.assertEqual(blocks.stdout, done.stdout)
        self.assertIn("--kv-cache", self.generate(*options, "--kv-cache", "int4", status=2).error)

    def test_several_prompts(self):
        prompts = ["The ", "A", "It was the best of times, it was ", "B\u00e9", "The "]
        shared = ["--max-tokens", 25, "--temperature", 1]
        self.write("prompts.txt", "\n".join(prompts) + "\r\n")
        expected = []
        for i, prompt in enumerate(prompts):
            text = self.generate("--prompt", prompt, *shared, "--seed", 4 + i, "--no-prompt").stdout
            expected.append({"prompt": prompt, "text": text.decode()[:-1], "tokens": 25})
        for options in ([], ["--at-once", 1], ["--at-once", 4, "--kv-block-tokens", 8]):
            done = self.generate("--prompts", "prompts.txt", *shared, "--seed", 4, *options)
            self.assertEqual([json.loads(line) for line in done.stdout.splitlines()], expected)
        done = self.generate("--prompts", "-", *shared, "--seed", 4, "--no-prompt", "--stats",
                             text="The \nA")
        self.assertEqual([json.loads(line) for line in done.stdout.splitlines()],
                         [{"text": one["text"], "tokens": 25} for one in expected[:2]])
        self.assertRegex(done.error, r"50 tokens in [0-9.]+ s")
        # A text that ends one leaves the others as they are.
        stop = expected[2]["text"][9:14]
        done = self.generate("--prompts", "prompts.txt", *shared, "--seed", 4, "--stop", stop)
        texts = [json.loads(line)["text"] for line in done.stdout.splitlines()]
        self.assertEqual(texts, [one["text"].partition(stop)[0] for one in expected])

    def test_prompts_that_are_refused(self):
        self.write("prompts.txt", "The \n")
        both = self.generate("--prompt", "A", "--prompts", "prompts.txt", status=2)
        self.assertIn("--prompts", both.error)
        self.assertIn("--prompt", self.generate(status=2).error)
        self.generate("--prompt", "A", "--at-once", 3, status=2)
        self.assertIn("missing.txt", self.generate("--prompts", "missing.txt", status=1).error)
        self.write("prompts.txt", "The \n\nA\n")
        self.assertIn("line 2 of prompts.txt is empty",
                      self.generate("--prompts", "prompts.txt", status=1).error)

    def test_empty_prompt(self):
        self.assertIn("prompt is empty", self.generate("--prompt", "", status=1).error)


class Checkpoints(OneCheckpoint):
    def test_inspect(self):
        text = self.ds("inspect", self.checkpoint).text
        self.assertRegex(text, r"global_steps +30\b")
        self.assertRegex(text, r"(?m)^ *transformer\.wte\.weight +master +float32 +256, 32|"
                               r"^ *wte\.weight +master +float32 +256, 32")
        document = json.loads(self.ds("inspect", self.checkpoint, "--json").text)
        self.assertEqual(document["counters"]["global_steps"], 30)
        self.assertEqual(document["tags"], ["global_step30"])
        self.assertIn("verified", self.ds("inspect", self.checkpoint, "--verify").text)

    def test_one_flipped_byte_is_found_and_named(self):
        shutil.copytree(self.checkpoint, self.folder / "out")
        largest = max((p for p in (self.folder / "out").rglob("*") if p.is_file()),
                      key=lambda p: p.stat().st_size)
        content = bytearray(largest.read_bytes())
        place = len(content) // 3
        content[place] ^= 0x10
        largest.write_bytes(content)
        done = self.ds("inspect", "out", "--verify", status=1)
        self.assertIn(largest.name, done.error)
        self.assertRegex(done.error, "^ds: error: ")
        # The prompt is there already when the weights are read: the message has its own line.
        for place in range(0, len(content), 997):
            content[place] ^= 0x10
        largest.write_bytes(content)
        done = self.ds("generate", "--model", "out", "--prompt", "The ", status=1)
        self.assertEqual(done.text, "The \n")
        self.assertRegex(done.error, "^ds: error: ")

    def test_export_opens_again(self):
        self.ds("export", self.checkpoint, "folder")
        config = json.loads((self.folder / "folder/config.json").read_text())
        self.assertEqual((config["model_type"], config["n_embd"]), ("gpt2", 32))
        options = ["--prompt", "The ", "--temperature", 0]
        self.assertEqual(self.ds("generate", "--model", "folder", *options).stdout,
                         self.generate(*options).stdout)


class Report(CliCase):
    def test_report(self):
        document = json.loads(self.ds("report", "--json").text)
        text = self.ds("report").text
        for key in document:
            self.assertIn(key, text)
        self.assertNotIn("{", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
