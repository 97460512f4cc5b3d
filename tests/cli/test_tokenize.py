"""ds tokenize and ds tokenizer-train."""
import json
import random
import struct
import unittest

from cli_case import CliCase


class Tokenize(CliCase):
    def test_bytes(self):
        self.assertEqual(self.ds("tokenize", "Aé").text, "65 195 169\n")
        self.assertEqual(self.ds("tokenize", "--json", text="AB").text, "[65,66]\n")
        self.assertEqual(self.ds("tokenize", "--count", "-", text="four").text, "4\n")
        self.assertEqual(self.ds("tokenize", "--decode", "65", "195", "169").text, "Aé\n")
        self.assertEqual(self.ds("tokenize", "--decode", text="[65, 195,169]").text, "Aé\n")

    def test_words_are_joined_by_one_blank(self):
        self.assertEqual(self.ds("tokenize", "a", "b").text, "97 32 98\n")

    def test_trained_tokenizer_goes_back_and_forth(self):
        done = self.ds("tokenizer-train", "text.txt", "--vocab-size", 400, "--output", "tok.json")
        self.assertIn("400 tokens", done.text)
        first = (self.folder / "tok.json").read_bytes()
        self.ds("tokenizer-train", "text.txt", "--vocab-size", 400, "--output", "tok.json")
        self.assertEqual(first, (self.folder / "tok.json").read_bytes())
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        text = "".join(rng.choice(["the ", "License", " é", "日本", "\t", "🙂", "x1"])
                       for _ in range(200))
        ids = self.ds("tokenize", "--tokenizer", "tok.json", text=text).text
        back = self.ds("tokenize", "--tokenizer", "tok.json", "--decode", text=ids).text
        self.assertEqual(back, text + "\n", f"seed {seed}")
        self.assertLess(len(ids.split()), len(text.encode()))

    def test_special_tokens(self):
        self.ds("tokenizer-train", "text.txt", "--vocab-size", 300, "--output", "tok.json",
                "--special", "<a>", "--special", "<b>")
        names = {token["content"] for token in
                 json.loads((self.folder / "tok.json").read_text())["added_tokens"]}
        self.assertEqual(names, {"<a>", "<b>"})
        self.ds("tokenizer-train", "text.txt", "--vocab-size", 300, "--output", "none.json",
                "--no-special")
        self.assertEqual(json.loads((self.folder / "none.json").read_text())["added_tokens"], [])

    def test_jsonl(self):
        self.write("docs.jsonl", '{"text": "one one one"}\n\n{"text": "two two"}\n')
        self.ds("tokenizer-train", "docs.jsonl", "--vocab-size", 260, "--output", "tok.json")
        self.write("bad.jsonl", '{"text": "fine"}\n{"body": 1}\n')
        done = self.ds("tokenizer-train", "bad.jsonl", "--output", "x.json", status=1)
        self.assertIn("bad.jsonl, line 2", done.error)

    def test_build(self):
        self.write("docs.jsonl", '{"text": "abc"}\n{"text": "de"}\n')
        done = self.ds("tokenize", "--file", "docs.jsonl", "--build", "corpus")
        self.assertIn("corpus.bin", done.text)
        raw = (self.folder / "corpus.bin").read_bytes()
        self.assertEqual(struct.unpack("<5H", raw), tuple(b"abcde"))
        self.assertEqual((self.folder / "corpus.idx").read_bytes()[:9], b"MMIDIDX\0\0")


if __name__ == "__main__":
    unittest.main(verbosity=2)
