"""The published pyramids with residual experts and mixtures of students at toy size, by the example's
documents: a teacher is trained, then a student with fewer layers learns from it until a step."""
import json
import unittest

from cli_case import SOURCE, CliCase

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

    def test_what_does_not_fit_is_said(self):
        missing = self.ds("train", "--model", "student.json", "--config", "distillation.json",
                          "--data", "text.txt", "--steps", 1, status=1)
        self.assertIn("/distillation/teacher", missing.error)


if __name__ == "__main__":
    unittest.main()
