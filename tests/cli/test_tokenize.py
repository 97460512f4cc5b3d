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


class Merge(CliCase):
    def bytes_of(self, prefix):
        return [(self.folder / f"{prefix}.{ending}").read_bytes() for ending in ("bin", "idx")]

    def setUp(self):
        super().setUp()
        self.write("one.jsonl", '{"text": "abc"}\n{"text": "de"}\n')
        self.write("two.jsonl", '{"text": "fghi"}\n')
        self.write("both.jsonl", '{"text": "abc"}\n{"text": "de"}\n{"text": "fghi"}\n')
        (self.folder / "parts").mkdir()
        for name, prefix in (("one", "parts/a"), ("two", "parts/b"), ("both", "both")):
            self.ds("tokenize", "--file", f"{name}.jsonl", "--build", prefix)

    def test_prefixes_and_folders_are_the_whole(self):
        done = self.ds("merge", "parts/a", "parts/b", "--output", "merged")
        self.assertIn("from 2 data sets", done.text)
        self.assertEqual(self.bytes_of("merged"), self.bytes_of("both"))
        self.ds("merge", "parts", "--output", "of_folder")
        self.assertEqual(self.bytes_of("of_folder"), self.bytes_of("both"))

    def test_the_older_index_becomes_the_newer(self):
        tokens, _ = self.bytes_of("both")
        sizes, begins = [3, 2, 4], [0, 3, 5, 9]
        numbers = [1, 8, 2, 3, 3, 4, 0, 1, 2, 3, *begins, *sizes, 0, 1, 2, 3]
        (self.folder / "old.bin").write_bytes(tokens)
        (self.folder / "old.idx").write_bytes(b"TNTIDX\0\0" +
                                              struct.pack(f"<{len(numbers)}q", *numbers))
        self.ds("merge", "old", "--output", "new")
        self.assertEqual(self.bytes_of("new"), self.bytes_of("both"))

    def test_failures(self):
        (self.folder / "empty").mkdir()
        (self.folder / "half").mkdir()
        (self.folder / "half/x.idx").write_bytes(b"")
        for inputs, words in ((["empty"], "holds no .bin"), (["half"], "has no .bin"),
                              (["none"], "none.idx"), (["both", "parts"], None)):
            with self.subTest(inputs=inputs):
                output = "both" if words is None else "out"
                done = self.ds("merge", *inputs, "--output", output, status=1)
                self.assertIn(words or "cannot be its output", done.error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
