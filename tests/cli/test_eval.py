"""ds eval: perplexity against other computations of the same numbers, last words that are known."""
import json
import math
import random
import re
import struct
import unittest

from cli_case import CONFIG, MODEL, CliCase
from direct_gpt2 import Gpt2

LENGTH = MODEL["n_positions"]  # 32


class Eval(CliCase):
    def model(self, steps=20, *more):
        self.train(steps, "--save", "out", "--eval-interval", 0, *more)
        return "out"

    def eval(self, *options, model="out"):
        done = self.ds("eval", model, *options, "--json")
        return json.loads(done.text)

    def total(self, name, tokens=None):
        """Sum of the losses of a text's targets, or of those of its first tokens, in one window."""
        limit = [] if tokens is None else ["--limit", tokens]
        result = self.eval("--data", name, *limit)
        self.assertEqual(result["windows"], 1)
        return result["loss"] * result["targets"]


class Perplexity(Eval):
    def test_whole_windows_are_the_engines_validation(self):
        # With windows side by side, and a text that they fill, every target has the context that it
        # has in the samples of the data set: the engine's mean loss over them is the same number.
        text = (self.folder / "text.txt").read_text()[:40 * LENGTH + 1]
        self.write("part.txt", text)
        self.ds("tokenize", "--file", "part.txt", "--build", "one")  # one document, never cut
        self.train(20, "--save", "out", "--valid-data", "one", "--eval-batches", 0,
                   "--metrics", "m.jsonl")
        expected = self.metrics("m.jsonl")[-1]["valid_loss"]
        result = self.eval("--data", "part.txt", "--overlap", LENGTH)
        self.assertEqual((result["windows"], result["targets"]), (40, 40 * LENGTH))
        self.assertAlmostEqual(result["loss"], expected, delta=1e-5)
        self.assertAlmostEqual(result["ppl"], math.exp(expected), delta=1e-3)
        words = len(text.split())
        self.assertEqual(result["words"], words)
        ratio = (len(text) - 1) / (words - 1)
        self.assertAlmostEqual(result["token_ratio"], ratio, delta=1e-9)
        self.assertAlmostEqual(result["adjusted_ppl"], math.exp(min(20, expected * ratio)),
                               delta=1e-3 * math.exp(min(20, expected * ratio)))

    def test_sliding_windows_are_put_together_from_single_ones(self):
        self.model()
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        overlap = rng.choice([5, 8, 12, 31])
        count = LENGTH + 1 + 2 * overlap + rng.randrange(1, overlap)
        start = rng.randrange(5000)
        text = (self.folder / "text.txt").read_text()[start:start + count]
        self.write("part.txt", text)
        self.write("window.txt", text[:LENGTH + 1])
        expected = self.total("window.txt")
        begin = overlap
        while begin + LENGTH - overlap < count - 1:
            self.write("window.txt", text[begin:begin + LENGTH + 1])
            # What the window's last targets add to its first ones.
            expected += self.total("window.txt") - self.total("window.txt", LENGTH - overlap + 1)
            begin += overlap
        for batch in (1, 3):
            result = self.eval("--data", "part.txt", "--overlap", overlap, "--batch", batch)
            self.assertEqual(result["targets"], count - 1, f"seed {seed}")
            self.assertAlmostEqual(result["loss"] * (count - 1), expected, delta=1e-3,
                                   msg=f"seed {seed}, overlap {overlap}")

    def test_a_model_that_knows_nothing(self):
        # Weights of almost nothing: all tokens are equally likely, so the perplexity is their number.
        self.write("model.json", dict(MODEL, initializer_range=1e-9))
        self.write("config.json", {"train_micro_batch_size_per_gpu": 2, "optimizer": {
            "type": "AdamW", "params": {"lr": 0, "weight_decay": 0}}})
        self.model(1)
        result = self.eval("--data", "text.txt", "--limit", 100)
        self.assertAlmostEqual(result["ppl"], 256, delta=0.01)
        done = self.ds("eval", "out", "--data", "text.txt", "--limit", 100)
        self.assertRegex(done.text, r"\Atokens: 100 \| avg loss: 5\.545\d+ \| ppl: 25[56]\.\d+\n\Z")

    def test_the_same_tokens_as_text_lines_and_prefix(self):
        self.model()
        text = (self.folder / "text.txt").read_text()[:900]
        self.write("part.txt", text)
        self.write("part.jsonl", json.dumps({"text": text[:400]}) + "\n\n" +
                   json.dumps({"text": text[400:]}) + "\n")
        self.ds("tokenize", "--file", "part.jsonl", "--build", "part")
        results = [self.eval("--data", name) for name in ("part.txt", "part.jsonl", "part")]
        self.assertEqual(len({result["loss"] for result in results}), 1)
        self.assertEqual({result["tokens"] for result in results}, {900})
        words = len(text[:400].split()) + len(text[400:].split())
        self.assertEqual([result["words"] for result in results],
                         [len(text.split()), words, len(text.split())])

    def test_documents_are_parted_by_the_end_of_text(self):
        self.ds("tokenizer-train", "text.txt", "--vocab-size", 300, "--output", "tok.json")
        self.write("model.json", dict(MODEL, vocab_size=300))
        self.model(2, "--tokenizer", "tok.json")
        self.write("two.jsonl", '{"text": "one"}\n{"text": "one"}\n')
        self.write("one.txt", "one")
        one = int(self.ds("tokenize", "--tokenizer", "tok.json", "--count", "one").text)
        self.assertEqual(self.eval("--data", "two.jsonl")["tokens"], 2 * one + 1)

    def test_failures(self):
        self.model(1)
        self.write("short.txt", "a")
        self.write("bad.jsonl", '{"text": "a b"}\n{"body": 1}\n')
        (self.folder / "p.bin").write_bytes(b"\0" * 8)
        (self.folder / "p.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1 << 60, 1))
        (self.folder / "q.bin").write_bytes(struct.pack("<2H", 1, 999))
        (self.folder / "q.idx").write_bytes(b"MMIDIDX\0\0" + struct.pack(
            "<QBQQiqqq", 1, 8, 1, 2, 2, 0, 0, 1))
        for arguments, words in [
                (["--data", "short.txt"], ["less than two tokens"]),
                (["--data", "none.txt"], ["none.txt"]),
                (["--data", "bad.jsonl"], ["bad.jsonl, line 2"]),
                (["--data", "p"], ["p.idx ends too early"]),
                (["--data", "q"], ["999", "256"]),
                (["--data", "text.txt", "--sequence-length", 33], ["33", "32 positions"]),
                (["--data", "text.txt", "--task", "last-word"], ["text.txt, line "])]:
            with self.subTest(arguments=arguments):
                done = self.ds("eval", "out", *arguments, status=1)
                self.assertRegex(done.error, r"\Ads: error: [^\n]+\n\Z")
                for word in words:
                    self.assertIn(word, done.error)


class DirectScript(Eval):
    """The same numbers from the formulas of the model, in a few lines of Python."""

    def setUp(self):
        super().setUp()
        self.model(30)
        self.ds("export", "out", "exported")
        self.direct = Gpt2(self.folder / "exported", MODEL)

    def test_perplexity(self):
        ids = list((self.folder / "text.txt").read_bytes()[200:200 + 2 * LENGTH + 1])
        self.write("part.txt", bytes(ids).decode())
        # Windows side by side: the first has the tokens up to LENGTH, the second begins there.
        loss = self.direct.loss(ids[:LENGTH + 1], 1) + self.direct.loss(ids[LENGTH:], 1)
        result = self.eval("--data", "part.txt", "--overlap", LENGTH)
        self.assertEqual(result["targets"], 2 * LENGTH)
        self.assertAlmostEqual(result["loss"], loss / (2 * LENGTH), delta=2e-6)
        self.assertAlmostEqual(result["ppl"], math.exp(loss / (2 * LENGTH)), delta=1e-4)

    def test_accuracy_of_last_words(self):
        # What the model itself would write is right, a letter of another kind is not.
        texts, right = [], 0
        for start in ("In no event shall the", "You may add Your own", "of this License as"):
            ids = list(start.encode()) + [ord(" ")]
            row = self.direct.logits(ids)[-1]
            letters = sorted(range(97, 123), key=row.__getitem__)
            for letter in (letters[-1], letters[0]):
                texts.append(bytes(ids + [letter]).decode())
                right += self.direct.likeliest(ids + [letter], len(ids) - 1)
        self.write("words.jsonl", "".join(json.dumps({"text": t}) + "\n" for t in texts))
        result = self.eval("--data", "words.jsonl", "--task", "last-word")
        self.assertEqual((result["correct"], result["total"]), (right, 6))
        self.assertEqual(result["accuracy"], right / 6)


class WikiText(Eval):
    # As the corpus is published: headings, numbers and punctuation between blanks.
    TEXT = (" \n = Valkyria Chronicles III = \n \n Senjō no Valkyria 3 : Unrecorded ( Japanese : x ,"
            " lit . Valkyria ) is a game @-@ like work of 1 @,@ 200 @.@ 5 parts . \" It ' s \" [ sic ]"
            " { a b } the players ' choice ; he said ' no ' ! Really ? N units at 20 ° C , John 's .\n"
            " = = Gameplay = = \n \n = = = = Deep = = = = \n the end of the ( unfinished \n")

    def expected(self, text):
        text = text.replace("s '", "s'")
        for from_, to in ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", ".")):
            text = text.replace(from_, to)
        for mark in ":;.!?,":
            text = text.replace(f" {mark} ", f"{mark} ")
        for pattern, to in ((r"\(\s*([^)]*?)\s*\)", r"(\1)"), (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
                            (r"{\s*([^}]*?)\s*}", r"{\1}"), (r'"\s*([^"]*?)\s*"', r'"\1"'),
                            (r"'\s*([^']*?)\s*'", r"'\1'")):
            text = re.sub(pattern, to, text)
        for from_, to in (("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" ° ", "°"),
                          (" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s")):
            text = text.replace(from_, to)
        return text

    def test_the_detokenised_text_is_scored(self):
        self.model(2)
        rng = random.Random(11)
        pieces = self.TEXT.split(" ")
        for text in (self.TEXT, " ".join(rng.choice(pieces) for _ in range(300))):
            self.write("wiki.txt", text)
            self.write("plain.txt", self.expected(text))
            wiki = self.eval("--data", "wiki.txt", "--detokenize", "wikitext")
            plain = self.eval("--data", "plain.txt")
            self.assertEqual((wiki["tokens"], wiki["loss"]), (plain["tokens"], plain["loss"]))
            words = len(text.strip().split(" "))
            self.assertEqual(wiki["words"], words)
            self.assertAlmostEqual(wiki["token_ratio"], (wiki["tokens"] - 1) / (words - 1), places=9)

    def test_tokens_cannot_be_taken_back(self):
        self.model(1)
        self.ds("tokenize", "--file", "text.txt", "--build", "tokens")
        done = self.ds("eval", "out", "--data", "tokens", "--detokenize", "wikitext", status=1)
        self.assertIn("only text can be detokenised", done.error)


class LastWord(Eval):
    # Lines that differ from their first letter on: a model can know every last word by heart.
    LINES = ["Ann likes tea", "Bob likes coffee", "Cat likes fish", "Dog likes bones",
             "Eve likes apples", "Fox likes geese", "Gus likes pie"]

    def setUp(self):
        super().setUp()
        self.write("lines.jsonl", "".join(json.dumps({"text": line}) + "\n" for line in self.LINES))
        self.write("config.json", dict(CONFIG, scheduler={"type": "WarmupLR", "params": {
            "warmup_max_lr": 5e-3, "warmup_num_steps": 5}}, train_micro_batch_size_per_gpu=16,
            gradient_accumulation_steps=1))

    def test_learned_lines_and_fresh_weights(self):
        # Each line follows each other one, so that nothing but the line itself tells its last word.
        rng = random.Random(3)
        self.write("text.txt", "".join(rng.choice(self.LINES) + "\n" for _ in range(1500)))
        self.model(500, "--split", "1,0,0")
        result = self.eval("--data", "lines.jsonl", "--task", "last-word")
        self.assertEqual((result["correct"], result["total"], result["accuracy"]), (7, 7, 1.0))
        self.write("wrong.jsonl", '{"text": "Ann likes coffee"}\n{"text": "Bob likes coffee"}\n'
                   '{"text": "Cat likes fishes"}\n')
        done = self.ds("eval", "out", "--data", "wrong.jsonl", "--task", "last-word", "--batch", 2)
        self.assertEqual(done.text,
                         "number correct: 1 | total examples: 3 | avg accuracy: 0.333333\n")
        one = self.eval("--data", "wrong.jsonl", "--task", "last-word", "--limit", 1)
        self.assertEqual((one["correct"], one["total"]), (0, 1))

    def test_fresh_weights_know_no_words(self):
        self.write("config.json", {"train_micro_batch_size_per_gpu": 2, "optimizer": {
            "type": "AdamW", "params": {"lr": 0}}})
        self.model(1)
        result = self.eval("--data", "lines.jsonl", "--task", "last-word")
        self.assertEqual((result["correct"], result["total"]), (0, 7))

    def test_a_line_of_one_word(self):
        self.model(1)
        self.write("lines.jsonl", '{"text": "two words"}\n{"text": " one "}\n')
        done = self.ds("eval", "out", "--data", "lines.jsonl", "--task", "last-word", status=1)
        self.assertIn("text 2 has less than two words", done.error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
