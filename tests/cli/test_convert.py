"""ds export and ds convert: types, shards, adapters; what is there already stays."""
import json
import unittest

import safetensors_file
from cli_case import MODEL, CliCase

LLAMA = {"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 32, "rms_norm_eps": 1e-5}


class Folders(CliCase):
    def setUp(self):
        super().setUp()
        self.train(3, "--save", "out", "--eval-interval", 0)

    def tensors(self, folder):
        return safetensors_file.read_folder(self.folder / folder)

    def assert_close(self, left, right, relative):
        self.assertEqual(sorted(left), sorted(right))
        for name, (_, shape, values) in left.items():
            self.assertEqual(shape, right[name][1])
            for a, b in zip(values, right[name][2]):
                self.assertLessEqual(abs(a - b), relative * abs(b) + 1e-7, name)


class Export(Folders):
    def test_types(self):
        exact, _ = (self.ds("export", "out", "f32"), self.tensors("f32"))[1]
        self.assertEqual({dtype for dtype, _, _ in exact.values()}, {"F32"})
        for name, code, relative in [("bfloat16", "BF16", 2**-8), ("float16", "F16", 2**-11)]:
            done = self.ds("export", "out", name, "--dtype", name)
            self.assertRegex(done.text, rf"\Awrote {name}: config.json \(.*\), model.safetensors \(")
            tensors, _ = self.tensors(name)
            self.assertEqual({dtype for dtype, _, _ in tensors.values()}, {code})
            self.assert_close(tensors, exact, relative)
            config = json.loads((self.folder / name / "config.json").read_text())
            self.assertEqual(config["torch_dtype"], name)

    def test_shards(self):
        self.ds("export", "out", "one")
        whole, _ = self.tensors("one")
        done = self.ds("export", "out", "many", "--max-shard-size", "20KB")
        parts, names = self.tensors("many")
        self.assertEqual(parts, whole)
        self.assertGreater(len(names), 2)
        for name in names:
            self.assertIn(name, done.text)
            tensors = safetensors_file.read(self.folder / "many" / name)
            size = sum(4 * len(values) for _, _, values in tensors.values())
            self.assertTrue(size <= 20000 or len(tensors) == 1, name)
        self.assertEqual(self.ds("export", "many", "again").returncode, 0)
        self.assertEqual(self.tensors("again")[0], whole)
        # A limit that all fits in is one file again, and no index is left.
        self.ds("export", "out", "many", "--max-shard-size", "5GB", "--force")
        self.assertFalse((self.folder / "many/model.safetensors.index.json").exists())

    def test_sizes_that_are_none(self):
        for text in ("0", "-1GB", "five", "5 parsec", "1e30TB", ""):
            done = self.ds("export", "out", "x", "--max-shard-size", text, status=2)
            self.assertIn("--max-shard-size", done.error)

    def test_the_tokenizer_goes_along(self):
        self.ds("tokenizer-train", "text.txt", "--vocab-size", 300, "--output", "tok.json")
        self.write("model.json", dict(MODEL, vocab_size=300))
        self.train(1, "--tokenizer", "tok.json", "--save", "tok", "--eval-interval", 0)
        done = self.ds("export", "tok", "folder")
        self.assertRegex(done.text, r", tokenizer\.json \([^)]*\)\n\Z")
        self.assertEqual(json.loads((self.folder / "folder/tokenizer.json").read_text())["model"],
                         json.loads((self.folder / "tok.json").read_text())["model"])


    def test_a_folder_of_another_model_stays(self):
        self.ds("export", "out", "folder")
        before = (self.folder / "folder/model.safetensors").read_bytes()
        self.train(6, "--save", "more", "--eval-interval", 0)
        self.assertIn("--force", self.ds("export", "more", "folder", status=1).error)
        self.assertEqual((self.folder / "folder/model.safetensors").read_bytes(), before)
        self.ds("export", "more", "folder", "--force")
        # The same command by its other name.
        self.ds("convert", "more", "other")
        for name in ("model.safetensors", "config.json"):
            self.assertEqual((self.folder / "folder" / name).read_bytes(),
                             (self.folder / "other" / name).read_bytes())
        self.assertNotEqual((self.folder / "folder/model.safetensors").read_bytes(), before)

    def test_settings_go_along(self):
        """What Transformers reads beside weights: through a run, and from folder to folder."""
        self.ds("tokenizer-train", "text.txt", "--vocab-size", 300, "--output", "tok.json")
        self.write("model.json", dict(MODEL, vocab_size=300))
        self.train(1, "--tokenizer", "tok.json", "--save", "tok", "--eval-interval", 0)
        self.ds("export", "tok", "base")
        self.assertFalse((self.folder / "base/generation_config.json").exists())
        settings = {"generation_config.json": '{"temperature": 0.6}\n',
                    "tokenizer_config.json": '{"chat_template": "{{ messages }}"}\n',
                    "chat_template.jinja": "{{ messages }}"}
        for name, text in settings.items():
            self.write(f"base/{name}", text)
        self.ds("train", "--model", "base", "--config", "config.json", "--data", "text.txt",
                "--steps", 1, "--save", "run", "--eval-interval", 0)
        self.ds("train", "--load", "run", "--config", "config.json", "--data", "text.txt",
                "--steps", 2, "--save", "next", "--eval-interval", 0)
        self.ds("convert", "base", "weights", "--to", "checkpoint")
        for number, (source, more) in enumerate([("base", []), ("run", []), ("next", []),
                                                 ("next", ["--tag", "global_step2"]),
                                                 ("weights", [])]):
            done = self.ds("export", source, f"e{number}", *more)
            for name, text in settings.items():
                with self.subTest(source=source, name=name):
                    self.assertIn(name, done.text)
                    self.assertEqual((self.folder / f"e{number}" / name).read_text(), text)


class Adapters(Folders):
    def setUp(self):
        super().setUp()
        self.ds("export", "out", "base")
        self.ds("train", "--model", "base", "--config", "config.json", "--data", "text.txt",
                "--steps", 5, "--lora", "4:8", "--lora-targets", "c_attn", "--adapter-out", "peft",
                "--save", "tuned", "--eval-interval", 0)

    def merged_by_hand(self):
        """W + 8/4 B A, as sums of Python's own."""
        base, _ = self.tensors("base")
        adapter = safetensors_file.read(self.folder / "peft/adapter_model.safetensors")
        scale = 8 / 4
        out = dict(base)
        for key, (_, (rank, inputs), a) in adapter.items():
            if ".lora_A." not in key:
                continue
            _, (outputs, _), b = adapter[key.replace("lora_A", "lora_B")]
            name = key.removeprefix("base_model.model.").replace(".lora_A", "")
            dtype, shape, values = base[name]
            self.assertEqual(shape, [inputs, outputs])  # GPT-2 keeps them transposed
            values = list(values)
            for i in range(inputs):
                for o in range(outputs):
                    values[i * outputs + o] += scale * sum(
                        b[o * rank + r] * a[r * inputs + i] for r in range(rank))
            out[name] = (dtype, shape, values)
        return out

    def test_merged_is_the_weight_and_the_product(self):
        expected = self.merged_by_hand()
        base, _ = self.tensors("base")
        self.assertNotEqual(expected, base)
        config = json.loads((self.folder / "peft/adapter_config.json").read_text())
        self.assertEqual((config["peft_type"], config["r"], config["lora_alpha"],
                          config["target_modules"]), ("LORA", 4, 8, ["c_attn"]))
        self.assertEqual(config["base_model_name_or_path"], "base")
        done = self.ds("export", "tuned", "a")
        self.assertIn("merged the adapters of tuned\n", done.text)
        self.ds("export", "base", "b", "--merge-adapter", "peft")
        self.ds("convert", "base", "c", "--to", "safetensors", "--adapter", "peft")
        self.ds("convert", "tuned", "merged", "--to", "checkpoint", "--merge")
        self.ds("convert", "merged", "d", "--to", "safetensors")
        for folder in "abcd":
            with self.subTest(folder=folder):
                self.assert_close(self.tensors(folder)[0], expected, 1e-5)

    def test_adapters_alone_there_and_back(self):
        first = (self.folder / "peft/adapter_model.safetensors").read_bytes()
        self.ds("convert", "tuned", "again", "--to", "adapter")
        self.assertEqual((self.folder / "again/adapter_model.safetensors").read_bytes(), first)
        # The checkpoint remembers what it was made from.
        config = json.loads((self.folder / "again/adapter_config.json").read_text())
        self.assertEqual(config["base_model_name_or_path"], "base")
        self.ds("convert", "base", "carrying", "--to", "checkpoint", "--adapter", "peft")
        self.ds("convert", "carrying", "back", "--to", "adapter")
        self.assertEqual((self.folder / "back/adapter_model.safetensors").read_bytes(), first)
        self.ds("convert", "tuned", "half", "--to", "adapter", "--dtype", "float16")
        half = safetensors_file.read(self.folder / "half/adapter_model.safetensors")
        self.assertEqual({dtype for dtype, _, _ in half.values()}, {"F16"})
        size = (self.folder / "peft/adapter_model.safetensors").stat().st_size
        self.assertLess(size, 2 * (4 * 32 + 4 * 96) * 4 + 2000)  # as small as its tensors

    def test_what_cannot_be(self):
        for arguments, status, words in [
                (["out", "x", "--to", "adapter"], 1, ["carries no adapters"]),
                (["out", "x", "--to", "checkpoint", "--merge"], 1, ["no adapters to merge"]),
                (["tuned", "x", "--to", "checkpoint", "--adapter", "peft"], 1, ["--merge"]),
                (["tuned", "x", "--to", "adapter", "--merge"], 2, ["--merge"]),
                (["out", "x", "--to", "checkpoint", "--dtype", "float16"], 2, ["--dtype"]),
                (["out", "x", "--to", "checkpoint", "--max-shard-size", "1GB"], 2,
                 ["--max-shard-size"]),
                (["out", "x", "--to", "onnx"], 2, ["onnx"]),
                (["out", "x", "--to"], 2, ["--to"]),
                (["none", "x", "--to", "safetensors"], 1, ["none"])]:
            with self.subTest(arguments=arguments):
                done = self.ds("convert", *arguments, status=status)
                for word in words:
                    self.assertIn(word, done.error)
                self.assertFalse((self.folder / "x").exists())


class Convert(Folders):
    def test_there_and_back_is_the_same(self):
        self.ds("export", "out", "exported")
        self.ds("convert", "out", "folder", "--to", "safetensors")
        self.ds("convert", "folder", "checkpoint", "--to", "checkpoint")
        self.ds("convert", "checkpoint", "back", "--to", "safetensors")
        expected = (self.folder / "exported/model.safetensors").read_bytes()
        for name in ("folder", "back"):
            self.assertEqual((self.folder / name / "model.safetensors").read_bytes(), expected)
        self.assertIn("verified", self.ds("inspect", "checkpoint", "--verify").text)
        options = ["--prompt", "The ", "--temperature", 0]
        texts = {self.ds("generate", "--model", name, *options).text
                 for name in ("out", "folder", "checkpoint", "back")}
        self.assertEqual(len(texts), 1)

    def test_a_checkpoint_keeps_the_tokenizer(self):
        self.ds("tokenizer-train", "text.txt", "--vocab-size", 300, "--output", "tok.json")
        self.write("model.json", dict(MODEL, vocab_size=300))
        self.train(1, "--tokenizer", "tok.json", "--save", "tok", "--eval-interval", 0)
        done = self.ds("convert", "tok", "weights", "--to", "checkpoint")
        self.assertIn("tokenizer.json", done.text)
        self.assertTrue(self.ds("generate", "--model", "weights", "--prompt", "The").text)

    def test_what_is_there_stays(self):
        self.ds("convert", "out", "folder", "--to", "safetensors")
        before = (self.folder / "folder/model.safetensors").read_bytes()
        self.train(6, "--save", "more", "--eval-interval", 0)
        done = self.ds("convert", "more", "folder", "--to", "safetensors", status=1)
        self.assertIn("--force", done.error)
        self.assertEqual((self.folder / "folder/model.safetensors").read_bytes(), before)
        self.write("file", "in the way")
        self.assertIn("no folder", self.ds("convert", "more", "file", "--to", "safetensors",
                                           "--force", status=1).error)
        self.ds("convert", "more", "folder", "--to", "safetensors", "--force")
        self.assertNotEqual((self.folder / "folder/model.safetensors").read_bytes(), before)
        (self.folder / "empty").mkdir()
        self.ds("convert", "out", "empty", "--to", "safetensors")

    def test_another_family_in_half_precision_and_shards(self):
        self.write("model.json", LLAMA)
        self.train(2, "--save", "llama", "--eval-interval", 0)
        self.ds("convert", "llama", "folder", "--to", "safetensors", "--dtype", "bfloat16",
                "--max-shard-size", "10KiB")
        tensors, names = self.tensors("folder")
        self.assertGreater(len(names), 1)
        self.assertEqual({dtype for dtype, _, _ in tensors.values()}, {"BF16"})
        self.assertIn("model.layers.0.self_attn.k_proj.weight", tensors)
        self.ds("train", "--model", "folder", "--config", "config.json", "--data", "text.txt",
                "--steps", 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
