"""ds config check, and how the other subcommands read configurations: a corpus in the manner of
published documents against an independent account of what DeepSpeed would train with."""
import json
import unittest

import deepspeed_rules
from cli_case import CONFIG, SOURCE, CliCase, run

CORPUS = SOURCE / "tests/data/config/corpus"
SAID = ["--resolve-auto", "--lenient", "--auto", "lr=5e-5", "--auto", "precision=bf16",
        "--auto", "stage=2", "--auto", "offload_optimizer=none", "--auto", "offload_param=none",
        "--micro-batch", 8, "--steps", 1000]


def trained(config):
    """What a resolved document trains with, in the words of deepspeed_rules."""
    params = config["optimizer"]["params"]
    kind = config["optimizer"]["type"].lower()
    optimizer = {"type": kind}
    if kind in ("adam", "adamw"):
        optimizer["decoupled"] = kind == "adamw" or params["adam_w_mode"]
    for name in deepspeed_rules.DEFAULTS[kind]:
        optimizer[name] = params[name]
    precision = [name for name in ("fp16", "bf16") if config[name]["enabled"]]
    return {"precision": precision[0] if precision else "fp32", "optimizer": optimizer,
            "clipping": config["gradient_clipping"],
            "batch": [config["train_batch_size"], config["train_micro_batch_size_per_gpu"],
                      config["gradient_accumulation_steps"]],
            "stage": config["zero_optimization"]["stage"]}


class Corpus(CliCase):
    def check(self, path, *arguments, status=0):
        return json.loads(self.ds("config", "check", path, "--json", *arguments,
                                  status=status).text)

    def test_documents_as_people_publish_them(self):
        manifest = json.loads((CORPUS / "manifest.json").read_text())
        self.assertGreaterEqual(len(manifest), 100)
        self.assertEqual(set(manifest), {p.stem for p in CORPUS.glob("*.json")} - {"manifest"})
        accepted = 0
        for name, facts in manifest.items():
            with self.subTest(document=name):
                path = CORPUS / f"{name}.json"
                world = facts["world"]
                check = self.check(path, *SAID, "--world", world,
                                   status=1 if "lacks" in facts else 0)
                if "lacks" in facts:
                    refusals = [p for p in check["problems"] if p["kind"] != "ignored"]
                    self.assertEqual({p["kind"] for p in refusals}, {"missing_feature"})
                    self.assertIn(facts["lacks"], json.dumps(refusals))
                    continue
                given = deepspeed_rules.Arguments(5e-5, 8, "bf16", 2, world)
                wanted = deepspeed_rules.training(deepspeed_rules.read(path.read_text()), given)
                self.assertEqual(trained(check["config"]), wanted)
                # What is printed for strict reading means the same without any option.
                self.write("again.json", check["document"])
                again = self.check("again.json", "--world", world)
                self.assertEqual(again["config"], check["config"])
                accepted += 1
        self.assertGreaterEqual(accepted, 0.95 * len(manifest))

    def test_strict_reading_trains_nothing_else(self):
        """Without the options a document is refused, or means what it says."""
        refused = 0
        for path in sorted(CORPUS.glob("*.json")):
            if path.stem == "manifest":
                continue
            with self.subTest(document=path.stem):
                done = run(self.folder, ["config", "check", path, "--json"])
                check = json.loads(done.text)
                refused += not check["accepted"]
                if not check["accepted"]:
                    continue
                document = deepspeed_rules.read(path.read_text())
                given = deepspeed_rules.Arguments(None, None, None, None, check["world"])
                self.assertEqual(trained(check["config"]),
                                 deepspeed_rules.training(document, given))
        self.assertGreater(refused, 40)

class Check(CliCase):
    def test_for_people(self):
        self.write("auto.json", """{
  "train_micro_batch_size_per_gpu": "auto", # from the command line
  "bf16": {"enabled": "auto"}, "optimzer": {}, "gradient_clipping": -1,
  "optimizer": {"type": "AdamW", "params": {"lr": "auto"}, "legacy_fusion": true}
}""")
        done = self.ds("config", "check", "auto.json", status=1)
        for words in ["errors\n", "\"auto\" that nobody resolves\n", "not in this build\n",
                      "/optimzer: unknown key; did you mean \"optimizer\"?",
                      "line 2, column 45: a comment that begins with #",
                      "/bf16/enabled: \"auto\" leaves the choice to the program",
                      "/gradient_clipping: -1 is out of range", "asks for the legacy fused path"]:
            self.assertIn(words, done.text)
        self.assertIn("auto.json is refused", done.error)
        done = self.ds("config", "check", "auto.json", "--lenient", "--auto", "lr=1e-4", "--auto",
                       "precision=bf16", "--micro-batch", 4, "--set", "optimizer.legacy_fusion="
                       "false", "--set", "gradient_clipping=0.5", status=1)
        self.assertNotIn("nobody resolves", done.text)
        self.write("good.json", (self.folder / "auto.json").read_text()
                   .replace('"optimzer": {}, ', "").replace("-1", "1"))
        done = self.ds("config", "check", "good.json", "--lenient", "--auto", "lr=1e-4", "--auto",
                       "precision=bf16", "--micro-batch", 4, "--set",
                       "/optimizer/legacy_fusion=false")
        for words in ["passed over\n", "\"auto\" became\n", "/optimizer/params/lr: 0.0001",
                      "accepted for 1 rank"]:
            self.assertIn(words, done.text)

    def test_the_world_that_fits(self):
        self.write("world.json", dict(CONFIG, train_batch_size=256))
        self.assertIn("accepted for 64 ranks", self.ds("config", "check", "world.json").text)
        done = self.ds("config", "check", "world.json", "--world", 8, status=1)
        self.assertIn("these sizes fit 64 ranks", done.text)

    def test_sizes_of_the_model(self):
        self.write("zero.json", dict(CONFIG, zero_optimization={
            "stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}))
        check = json.loads(self.ds("config", "check", "zero.json", "--resolve-auto", "--model",
                                   "model.json", "--json").text)
        self.assertEqual(check["config"]["zero_optimization"]["reduce_bucket_size"], 32 * 32)
        self.assertEqual(check["config"]["zero_optimization"]["stage3_prefetch_bucket_size"], 921)


class Train(CliCase):
    def test_all_problems_at_once(self):
        self.write("config.json", {"train_batch_size": 0, "gradient_clipping": -1,
                                   "optimizer": {"type": "AdamW"}})
        error = self.train(1, status=1).error
        self.assertIn("config.json: configuration: 2 problems", error)
        self.assertIn("/train_batch_size: 0 is out of range", error)
        self.assertIn("/gradient_clipping: -1 is out of range", error)

    def test_without_optimizer(self):
        self.write("config.json", {"train_batch_size": 2})
        self.assertIn("/optimizer: missing", self.train(1, status=1).error)

    def test_set_and_auto(self):
        self.write("config.json", """{
  // comments are read, and so is what follows
  "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto",
    "warmup_num_steps": 0, "warmup_max_lr": "auto", "warmup_type": "linear"}}, # so far
}""")
        self.assertIn("\"auto\"", self.train(2, status=1).error)
        done = self.train(4, "--lenient", "--auto", "lr=0.01", "--auto", "precision=fp32",
                          "--auto", "train_micro_batch_size_per_gpu=2", "--set",
                          "optimizer.params.weight_decay=0.25", "--metrics", "out.jsonl")
        for words in ["AdamW lr 0.01", "weight_decay 0.25", "WarmupDecayLR", "total_num_steps 4",
                      "fp32, micro batch 2 x 1 passes, clipping 1, dropout 0.1 embd_pdrop"]:
            self.assertIn(words, done.error)
        self.assertEqual(len(self.metrics("out.jsonl")), 4)

    def test_set_wins_and_is_remembered(self):
        done = self.train(1, "--set", "optimizer.params.lr=0.125", "--set", "scheduler=null")
        self.assertIn("AdamW lr 0.125", done.error)
        self.assertIn("constant rate", done.error)
        self.assertIn("KEY=VALUE", self.train(1, "--set", "lr", status=2).error)

    def test_plan_reads_as_training_does(self):
        text = json.dumps(CONFIG)
        self.write("twice.json", text[:-1] + ', "gradient_clipping": 2}')
        for arguments in [[], ["--micro-batch", 4]]:
            error = self.ds("plan", "model.json", "twice.json", *arguments, status=1).error
            self.assertIn("duplicate key /gradient_clipping", error)
        self.write("remark.json", "// tuned\n" + text)
        self.ds("plan", "model.json", "remark.json", "--micro-batch", 4)


class NearestNames(CliCase):
    def test_hints(self):
        for arguments, words in [
                (["train", "--sav", "x"], "did you mean --save?"),
                (["train", "--modle", "x"], "did you mean --model?"),
                (["generat"], "did you mean 'generate'?"),
                (["config", "chek", "x"], "did you mean 'check'?"),
                (["train", "--lr", "1"], "use --set optimizer.params.lr="),
                (["train", "--learning_rate", "1"], "use --set optimizer.params.lr="),
                (["train", "--bf16"], "use --set bf16.enabled=true")]:
            with self.subTest(arguments=arguments):
                self.assertIn(words, self.ds(*arguments, status=2).error)
        self.assertNotIn("did you mean", self.ds("train", "--zzzzzz", status=2).error)


class Schema(CliCase):
    """ds config schema accepts what the strict reader accepts, and refuses what is wrong by itself."""

    def setUp(self):
        super().setUp()
        try:
            import jsonschema
        except ImportError:
            self.skipTest("the package jsonschema is not installed")
        schema = json.loads(self.ds("config", "schema").text)
        jsonschema.Draft202012Validator.check_schema(schema)
        self.validator = jsonschema.Draft202012Validator(schema)

    def test_accepted_documents_of_the_corpus(self):
        manifest = json.loads((CORPUS / "manifest.json").read_text())
        checked = 0
        for name in manifest:
            result = run(self.folder, ["config", "check", CORPUS / f"{name}.json", "--json", *SAID])
            check = json.loads(result.text)
            if not check["accepted"]:
                continue
            for document in (check["document"], check["config"]):
                errors = [f"{e.json_path}: {e.message}" for e in
                          self.validator.iter_errors(document)]
                self.assertEqual(errors[:3], [], name)
            checked += 1
        self.assertGreaterEqual(checked, 90)

    def test_what_is_wrong(self):
        for document in ({"train_batch_sise": 1}, {"train_batch_size": "many"},
                         {"train_batch_size": 0}, {"zero_optimization": {"stage": 7}},
                         {"zero_optimization": {"no_such_key": 1}}, {"gradient_clipping": -1},
                         {"optimizer": {"type": 3}}, {"fp16": {"enabled": [True]}}, []):
            self.assertTrue(list(self.validator.iter_errors(document)), document)


if __name__ == "__main__":
    unittest.main(verbosity=2)
