"""ds train with adapters, frozen parameters and data specifications; runs that go on bit for bit."""
import json
import os
import unittest

import safetensors_file
from cli_case import CONFIG, MODEL, CliCase, run
from test_convert import LLAMA
from test_train import comparable

LORA = ["--lora", "4:8", "--lora-targets", "c_attn,c_proj", "--lora-dropout", "0.1"]


class FineTune(CliCase):
    def setUp(self):
        super().setUp()
        self.train(3, "--save", "pretrained", "--eval-interval", 0)
        self.ds("convert", "pretrained", "base", "--to", "safetensors")

    def tune(self, steps, *more, status=0, model="base", data=("--data", "text.txt")):
        start = ["--model", model] if model else []
        return self.ds("train", *start, "--config", "config.json", *data, "--steps", steps,
                       "--eval-interval", 0, *more, status=status)

    def masters(self, checkpoint):
        document = json.loads(self.ds("inspect", checkpoint, "--json").text)
        return {t["name"]: t for t in document["tensors"] if t["kind"] == "master"}


class Lora(FineTune):
    def test_ten_and_ten_steps_are_twenty(self):
        self.tune(10, *LORA, "--seed", 5, "--save", "whole", "--metrics", "whole.jsonl",
                  "--adapter-out", "whole-peft")
        self.tune(5, *LORA, "--seed", 5, "--save", "half", "--metrics", "half.jsonl")
        self.tune(10, "--load", "half", "--save", "half", "--metrics", "half.jsonl",
                  "--adapter-out", "half-peft", model=None)
        whole, half = self.metrics("whole.jsonl"), self.metrics("half.jsonl")
        self.assertEqual(comparable(half), comparable(whole))
        self.assertLess(whole[-1]["loss"], whole[0]["loss"])
        self.assertEqual((self.folder / "half-peft/adapter_model.safetensors").read_bytes(),
                         (self.folder / "whole-peft/adapter_model.safetensors").read_bytes())

    def test_only_the_adapters_train(self):
        done = self.tune(6, *LORA, "--save", "out", "--adapter-out", "peft")
        self.assertRegex(done.error, r"parameters, [\d.]+ k of them trained; ")
        masters = self.masters("out")
        for name, tensor in masters.items():
            self.assertEqual("lora_" in name, tensor.get("trainable", False), name)
            self.assertNotEqual(tensor.get("trainable", False), tensor.get("frozen", False))
        self.assertRegex(self.ds("inspect", "out").text, r"parameters, [\d.]+ k of them frozen\n\Z")
        base, _ = safetensors_file.read_folder(self.folder / "base")
        adapter = safetensors_file.read(self.folder / "peft/adapter_model.safetensors")
        self.assertEqual(len(adapter), 2 * 3 * 2)  # c_attn and two c_proj of two layers
        self.ds("export", "out", "merged")
        merged, _ = safetensors_file.read_folder(self.folder / "merged")
        for name in base:
            self.assertEqual(merged[name] == base[name], not any(
                end in name for end in ("c_attn.weight", "c_proj.weight")), name)

    def test_without_the_frozen_parameters(self):
        self.write("config.json", dict(CONFIG, checkpoint={"exclude_frozen_parameters": True}))
        self.tune(6, *LORA, "--seed", 5, "--save", "whole", "--metrics", "whole.jsonl")
        self.tune(3, *LORA, "--seed", 5, "--save", "half", "--metrics", "half.jsonl")
        self.assertTrue(all("lora_" in name for name in self.masters("half")))
        done = self.tune(6, "--load", "half", model=None, status=1)
        self.assertIn("repeat --model", done.error)
        done = self.tune(6, "--load", "half", status=1)
        self.assertIn("--lora", done.error)
        self.tune(6, *LORA, "--load", "half", "--metrics", "half.jsonl", "--save", "half")
        self.assertEqual(comparable(self.metrics("half.jsonl")),
                         comparable(self.metrics("whole.jsonl")))
        done = self.tune(7, "--lora", "4:16", *LORA[2:], "--load", "half", status=1)
        self.assertIn('"lora_alpha":16', done.error)

    def test_going_on_from_an_adapter(self):
        self.tune(3, *LORA, "--adapter-out", "first", "--metrics", "a.jsonl")
        self.tune(3, "--adapter", "first", "--adapter-out", "second", "--metrics", "b.jsonl")
        first, second = (safetensors_file.read(self.folder / name / "adapter_model.safetensors")
                         for name in ("first", "second"))
        self.assertEqual(sorted(first), sorted(second))
        self.assertNotEqual(first, second)
        self.assertLess(self.metrics("b.jsonl")[0]["loss"], self.metrics("a.jsonl")[0]["loss"])

    def test_another_family_and_bf16(self):
        self.write("model.json", LLAMA)
        self.write("config.json", dict(CONFIG, bf16={"enabled": True}))
        self.tune(3, "--lora", 2, "--save", "out", "--adapter-out", "peft", model="model.json")
        names = safetensors_file.read(self.folder / "peft/adapter_model.safetensors")
        self.assertIn("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", names)
        self.ds("convert", "out", "again", "--to", "adapter")
        self.assertEqual((self.folder / "again/adapter_model.safetensors").read_bytes(),
                         (self.folder / "peft/adapter_model.safetensors").read_bytes())
        self.tune(4, "--load", "out", model=None)

    def test_what_cannot_be(self):
        for options, status, words in [
                (["--lora", "0"], 2, ["--lora", "'0'"]),
                (["--lora", "4:"], 2, ["--lora"]),
                (["--lora", "4:-1"], 2, ["--lora"]),
                (["--lora-targets", "c_attn"], 2, ["--lora"]),
                (["--lora", "4", "--lora-targets", "c_atn"], 1, ["c_atn", "did you mean c_attn", "the linear layers are c_attn, c_fc, c_proj"]),
                (["--lora", "4", "--adapter", "x"], 2, ["--adapter"]),
                (["--adapter", "nowhere"], 1, ["nowhere"]),
                (["--adapter-out", "x"], 2, ["--adapter-out", "--lora"]),
                (["--freeze", "nothing*"], 1, ["--freeze", "nothing*"]),
                (["--freeze", "*"], 1, ["nothing would train", "--unfreeze"])]:
            with self.subTest(options=options):
                done = self.tune(1, *options, status=status)
                self.assertRegex(done.error, r"(?m)^ds: error: (?!ds_)")
                for word in words:
                    self.assertIn(word, done.error)


class Freeze(FineTune):
    def test_frozen_parameters_stay_and_runs_go_on(self):
        choice = ["--freeze", "*", "--unfreeze", "*.h.1.*", "--seed", 5]
        self.tune(8, *choice, "--save", "whole", "--metrics", "whole.jsonl")
        self.tune(4, *choice, "--save", "half", "--metrics", "half.jsonl")
        self.tune(8, "--load", "half", "--save", "half", "--metrics", "half.jsonl", model=None)
        self.assertEqual(comparable(self.metrics("half.jsonl")),
                         comparable(self.metrics("whole.jsonl")))
        self.assertEqual(self.weights("half"), self.weights("whole"))
        before, _ = safetensors_file.read_folder(self.folder / "base")
        after, _ = safetensors_file.read_folder(self.folder / "whole-exported")
        for name in before:
            self.assertEqual(before[name] == after[name], ".h.1." not in name, name)
        done = self.tune(9, *choice[2:], "--load", "half", status=1)
        self.assertIn("freeze", done.error)

    def test_patterns_may_be_repeated(self):
        self.tune(1, "--freeze", "*wte*", "--freeze", "*wpe*", "--save", "out")
        self.assertEqual({n for n, t in self.masters("out").items() if t.get("frozen")},
                         {n for n in self.masters("out") if "wte" in n or "wpe" in n})


class Specifications(FineTune):
    def test_a_plain_specification_is_the_same_as_data(self):
        self.write("spec.json", {"path": "text.txt", "sequence_length": 16})
        self.tune(3, "--sequence-length", 16, "--seed", 5, "--metrics", "a.jsonl")
        self.tune(3, "--seed", 5, "--metrics", "b.jsonl", data=("--data-spec", "spec.json"))
        self.assertEqual(comparable(self.metrics("a.jsonl")), comparable(self.metrics("b.jsonl")))

    def test_a_blend_goes_on(self):
        self.write("other.txt", "some quite different words, again and again. " * 100)
        self.write("blend.json", {"kind": "blend", "samples": 200, "weights": [0.25, 0.75],
                                  "members": [{"path": "text.txt"}, {"path": "other.txt"}]})
        data = ("--data-spec", "blend.json")
        self.tune(6, "--seed", 5, "--save", "whole", "--metrics", "whole.jsonl", data=data)
        self.tune(3, "--seed", 5, "--save", "half", "--metrics", "half.jsonl", data=data)
        self.tune(6, "--load", "half", "--metrics", "half.jsonl", model=None, data=data)
        self.assertEqual(comparable(self.metrics("half.jsonl")),
                         comparable(self.metrics("whole.jsonl")))
        self.write("blend.json", {"kind": "blend", "samples": 200, "weights": [0.5, 0.5],
                                  "members": [{"path": "text.txt"}, {"path": "other.txt"}]})
        done = self.tune(4, "--load", "half", model=None, data=data)
        self.assertIn("the loaded run used data_spec", done.error)

    def test_packed_examples(self):
        self.write("chat.jsonl", "".join(json.dumps(
            {"prompt": f"{n} and one is ", "completion": f"{n + 1}"}) + "\n" for n in range(200)))
        self.write("spec.json", {"kind": "packed", "path": "chat.jsonl", "sequence_length": 32,
                                 "append_end": False})
        self.tune(30, "--lora", 8, "--metrics", "m.jsonl", "--adapter-out", "peft",
                  data=("--data-spec", "spec.json"))
        lines = self.metrics("m.jsonl")
        self.assertLess(lines[-1]["loss"], lines[0]["loss"])

    def test_masked_text_for_bert(self):
        words = sorted(set((self.folder / "text.txt").read_text().lower().split()))[:200]
        vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
        ids = {token: i for i, token in enumerate(vocabulary)}
        self.write("tok.json", {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": i, "content": vocabulary[i], "single_word": False,
                              "lstrip": False, "rstrip": False, "normalized": False,
                              "special": True} for i in range(5)],
            "normalizer": {"type": "BertNormalizer", "clean_text": True,
                           "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
            "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": None,
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {"type": "WordPiece", "unk_token": "[UNK]",
                      "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                      "vocab": ids}})
        self.write("docs.jsonl", "".join(json.dumps({"text": part}) + "\n" for part in
                                         (self.folder / "text.txt").read_text().split("\n\n")))
        self.write("bert.json", {"model_type": "bert", "architectures": ["BertModel"],
                                 "vocab_size": len(vocabulary), "hidden_size": 32,
                                 "num_hidden_layers": 1, "num_attention_heads": 2,
                                 "intermediate_size": 64, "max_position_embeddings": 64})
        self.write("spec.json", {"kind": "mlm", "path": "docs.jsonl", "sequence_length": 32})
        data = ("--data-spec", "spec.json")
        self.tune(5, "--head", "BertForMaskedLM", "--tokenizer", "tok.json", "--save", "out",
                  "--metrics", "m.jsonl", model="bert.json", data=data)
        self.assertEqual(len(self.metrics("m.jsonl")), 5)
        self.ds("export", "out", "folder")
        self.assertEqual(json.loads((self.folder / "folder/config.json").read_text())
                         ["architectures"], ["BertForMaskedLM"])
        # The order of two texts by the head that is pretrained beside the masked LM.
        self.tune(5, "--head", "BertForNextSentencePrediction", "--tokenizer", "tok.json",
                  "--metrics", "order.jsonl", model="bert.json", data=data)
        self.assertAlmostEqual(self.metrics("order.jsonl")[0]["loss"], 0.693, delta=0.2)
        self.write("single.json", {"kind": "mlm", "path": "docs.jsonl", "sequence_length": 32,
                                   "pairs": False})
        done = self.tune(1, "--head", "BertForNextSentencePrediction", "--tokenizer", "tok.json",
                         model="bert.json", data=("--data-spec", "single.json"), status=1)
        self.assertIn("the data set's labels are tokens", done.error)
        done = self.ds("eval", "out", "--data", "text.txt", status=1)
        self.assertIn("bert", done.error)

    def test_what_cannot_be(self):
        self.write("part.json", {"path": "text.txt", "part": "test"})
        self.write("key.json", {"path": "text.txt", "chunk": 1})
        self.write("list.json", [1])
        for data, status, words in [
                (("--data-spec", "part.json"), 1, ["part.json", "/part"]),
                (("--data-spec", "key.json"), 1, ["key.json", "chunk"]),
                (("--data-spec", "list.json"), 1, ["list.json"]),
                (("--data-spec", "none.json"), 1, ["none.json"]),
                (("--data-spec", "key.json", "--data", "text.txt"), 2, ["--data"]),
                ((), 2, ["--data"])]:
            with self.subTest(data=data):
                done = self.tune(1, status=status, data=data)
                for word in words:
                    self.assertIn(word, done.error)


class OwnParameters(CliCase):
    """A checkpoint of a program that computes its own gradients, made through the C interface."""

    def setUp(self):
        super().setUp()
        done = run(self.folder, ["30", "own"], program=os.environ["DS_EXAMPLE_OWN"])
        self.assertEqual(done.returncode, 0, done.error)

    def test_inspect_and_export(self):
        text = self.ds("inspect", "own", "--verify").text
        self.assertRegex(text, r"(?m)^ *\S+ +master +float32 ")
        self.assertIn("verified", text)
        done = self.ds("export", "own", "folder")
        self.assertNotIn("config.json", done.text)
        tensors, _ = safetensors_file.read_folder(self.folder / "folder")
        document = json.loads(self.ds("inspect", "own", "--json").text)
        self.assertEqual(sorted(tensors), sorted(t["name"] for t in document["tensors"]
                                                 if t["kind"] == "master"))

    def test_what_needs_a_forward_pass_says_so(self):
        for arguments in (["eval", "own", "--data", "text.txt"],
                          ["bench", "--model", "own"],
                          ["train", "--model", "own", "--data", "text.txt", "--steps", 1],
                          ["generate", "--model", "own", "--prompt", "x"]):
            with self.subTest(arguments=arguments):
                done = self.ds(*arguments, status=1)
                self.assertRegex(done.error, r"own")


if __name__ == "__main__":
    unittest.main(verbosity=2)
