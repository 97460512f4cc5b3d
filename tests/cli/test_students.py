"""The published pyramids with residual experts and mixtures of students at toy size, by the example's
documents: a teacher is trained, then a student with fewer layers learns from it until a step."""
import json
import unittest

import safetensors_file
from cli_case import PROGRAM, SOURCE, CliCase

EXAMPLE = SOURCE / "examples/students"


class Students(CliCase):
    def setUp(self):
        super().setUp()
        for name in ("teacher", "student"):
            model = json.loads((EXAMPLE / f"{name}.json").read_text())
            model.update(vocab_size=256, n_embd=32, n_positions=32)
            self.write(f"{name}.json", model)
        self.write("plain.json", self.shorter("ds_config.json"))
        self.write("distillation.json", self.shorter("distillation.json", stop_step=6))

    def shorter(self, name, **distillation):
        config = json.loads((EXAMPLE / name).read_text())
        config["train_micro_batch_size_per_gpu"] = 2
        config["scheduler"]["params"].update(total_num_steps=40, warmup_num_steps=2)
        if distillation:
            config["distillation"].update(distillation)
        return config

    def student(self, name, steps):
        self.ds("train", "--model", "student.json", "--config", "distillation.json", "--data",
                "text.txt", "--steps", steps, "--seed", 7, "--metrics", f"{name}.jsonl", "--save",
                name)
        return self.metrics(f"{name}.jsonl")

    def test_a_student_learns_from_its_teacher_until_a_step(self):
        self.ds("train", "--model", "teacher.json", "--config", "plain.json", "--data", "text.txt",
                "--steps", 10, "--seed", 7, "--save", "teacher")
        lines = self.student("whole", 8)
        for line in lines[:6]:
            # The balancing loss of the routers is the rest.
            rest = line["loss"] - line["label_loss"] - line["teacher_loss"]
            self.assertGreater(line["teacher_loss"], 0)
            self.assertTrue(0 < rest < 0.2, line)
        for line in lines[6:]:
            self.assertNotIn("teacher_loss", line)
        # Resumed in the middle: the same bits.
        self.student("half", 4)
        self.ds("train", "--load", "half", "--data", "text.txt", "--steps", 8, "--metrics",
                "rest.jsonl", "--save", "half")
        self.assertEqual([line["loss"] for line in self.metrics("rest.jsonl")],
                         [line["loss"] for line in lines[-4:]])
        self.assertEqual(self.weights("half"), self.weights("whole"))
        # The plan counts the teacher.
        plans = [json.loads(self.ds("plan", "student.json", config, "--json").text)
                 for config in ("plain.json", "distillation.json")]
        more = [plan["memory_per_rank"]["parameters"] for plan in plans]
        self.assertEqual(more[1] - more[0], plans[1]["teacher"]["bytes"])
        self.assertIn("teacher", self.ds("plan", "student.json", "distillation.json").text)

    def test_a_student_begins_with_layers_of_its_teacher(self):
        dense = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 32,
                 "n_head": 2}
        self.write("large.json", {**dense, "n_layer": 4})
        self.write("small.json", {**dense, "n_layer": 2})
        self.ds("train", "--model", "large.json", "--config", "plain.json", "--data", "text.txt",
                "--steps", 3, "--seed", 7, "--save", "large")
        config = self.shorter("distillation.json", teacher="large")
        config["compression_training"] = {"layer_reduction": {
            "enabled": True, "keep_number_layer": 2, "module_name_prefix": "transformer.h",
            "teacher_layer": [1, 3],
            "other_module_name": ["transformer.wte", "transformer.wpe", "transformer.ln_f"]}}
        still = json.loads(json.dumps(config))
        still["optimizer"]["params"].update(lr=0.0, weight_decay=0.0)
        still.pop("scheduler")
        self.write("still.json", still)
        arguments = ["train", "--model", "small.json", "--data", "text.txt", "--seed", 7]
        self.ds(*arguments, "--config", "still.json", "--steps", 1, "--save", "still")
        self.ds("launch", "-n", 2, "--", PROGRAM, *arguments, "--config", "still.json", "--set",
                "zero_optimization.stage=3", "--steps", 1, "--save", "ranks")
        for name in ("large", "still", "ranks"):
            self.ds("export", name, f"{name}-folder")
        large, still, ranks = (safetensors_file.read_folder(self.folder / f"{name}-folder")[0]
                               for name in ("large", "still", "ranks"))
        self.assertEqual(still, ranks)
        for name, tensor in still.items():
            there = name.replace(".h.1.", ".h.3.").replace(".h.0.", ".h.1.")
            self.assertEqual(tensor, large[there], name)
        # A run that goes on keeps what it has learnt.
        self.write("reduced.json", config)
        for name, steps in (("whole", (6,)), ("half", (3, 6))):
            self.ds(*arguments, "--config", "reduced.json", "--steps", steps[0], "--save", name)
            for more in steps[1:]:
                done = self.ds("train", "--load", name, "--data", "text.txt", "--steps", more,
                               "--save", name)
                self.assertNotIn("warning", done.error)
        self.assertEqual(self.weights("half"), self.weights("whole"))

    def test_layers_that_do_not_fit_are_said(self):
        self.ds("train", "--model", "teacher.json", "--config", "plain.json", "--data", "text.txt",
                "--steps", 1, "--seed", 7, "--save", "teacher")
        reduction = {"enabled": True, "teacher_layer": [0, 1]}

        def refused(text, **changes):
            config = self.shorter("ds_config.json")
            config["compression_training"] = {"layer_reduction": {**reduction, **changes}}
            config["distillation"] = {"teacher": "teacher"}
            self.write("reduced.json", config)
            done = self.ds("train", "--model", "student.json", "--config", "reduced.json", "--data",
                           "text.txt", "--steps", 1, status=1)
            self.assertIn("/compression_training/layer_reduction", done.error)
            self.assertIn(text, done.error)

        layers = json.loads((self.folder / "student.json").read_text())["n_layer"]
        refused("teacher_layer names 2", keep_number_layer=3)
        refused("2 layers are named", teacher_layer=[0, 1])
        refused("missing", teacher_layer=[])
        refused("no layer 99", teacher_layer=[99] * layers)
        self.write("reduced.json", {**self.shorter("ds_config.json"), "compression_training": {
            "layer_reduction": {**reduction, "teacher_layer": list(range(layers))}}})
        done = self.ds("train", "--model", "student.json", "--config", "reduced.json", "--data",
                       "text.txt", "--steps", 1, status=1)
        self.assertIn("Name the teacher's folder in /distillation/teacher", done.error)

    def test_what_does_not_fit_is_said(self):
        missing = self.ds("train", "--model", "student.json", "--config", "distillation.json",
                          "--data", "text.txt", "--steps", 1, status=1)
        self.assertIn("/distillation/teacher", missing.error)


if __name__ == "__main__":
    unittest.main()
