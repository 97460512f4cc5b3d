"""ds train --load: which checkpoint and how much of it, the loaded run's settings, other runs'
folders, records that a crash left, and how many checkpoints stay."""
import json
import os
import shutil
import unittest

from cli_case import CONFIG, CliCase
from test_train import comparable

DATA_FILE = "data-00000.bin"


class ResumeCase(CliCase):
    def resume(self, steps, *more, status=0):
        """From the folder "out", with nothing but the data and the steps."""
        return self.ds("train", "--load", "out", "--data", "text.txt", "--steps", steps, *more,
                       status=status)

    def tags(self, folder="out"):
        return json.loads(self.ds("inspect", folder, "--json").text)["tags"]

    def flip(self, path, part):
        file = self.folder / path
        data = bytearray(file.read_bytes())
        data[int(part * (len(data) - 1))] ^= 1
        file.write_bytes(data)


class Settings(ResumeCase):
    def test_the_loaded_run_s_configuration_is_the_default(self):
        self.train(8, "--metrics", "whole.jsonl")
        self.train(4, "--save", "out", "--metrics", "half.jsonl")
        done = self.resume(8, "--metrics", "half.jsonl")
        self.assertEqual(comparable(self.metrics("half.jsonl")),
                         comparable(self.metrics("whole.jsonl")))
        self.assertNotIn("warning", done.error)

    def test_what_differs_is_told(self):
        self.train(2, "--save", "out")
        config = json.loads(json.dumps(CONFIG))
        config["scheduler"]["params"]["warmup_max_lr"] = 1e-3
        self.write("other.json", config)
        done = self.resume(3, "--config", "other.json")
        self.assertIn("/scheduler/params/warmup_max_lr was 0.003, is 0.001", done.error)
        done = self.resume(3, "--config", "other.json", "--load-strict", status=1)
        self.assertIn("/scheduler/params/warmup_max_lr was 0.003, is 0.001", done.error)
        done = self.resume(3, "--load-strict")
        self.assertNotIn("warning", done.error)

    def test_another_data_file_is_told(self):
        self.train(2, "--save", "out")
        text = (self.folder / "text.txt").read_text()
        self.write("text.txt", text.upper())
        self.assertIn("the data set was another one", self.resume(3).error)
        self.assertIn("the data set was another one", self.resume(3, "--load-strict", status=1).error)


class Beginnings(ResumeCase):
    def test_one_command_begins_and_goes_on(self):
        command = ("--save", "out", "--load", "out", "--load-or-begin", "--metrics", "steps.jsonl")
        self.train(2, *command)
        self.train(4, *command)
        self.assertEqual([row["step"] for row in self.metrics("steps.jsonl")], [1, 2, 3, 4])

    def test_damage_and_tags_are_no_beginning(self):
        self.train(2, "--save", "out")
        for tag in self.tags():
            (self.folder / "out" / tag / "manifest.dsm").write_bytes(b"damaged")
        self.assertIn("manifest.dsm", self.resume(4, "--load-or-begin", status=1).error)
        self.resume(4, "--load-or-begin", "--tag", "global_step2", status=2)


class Parts(ResumeCase):
    def test_weights_only_is_another_run(self):
        self.train(4, "--save", "out")
        run = json.loads(self.ds("inspect", "out", "--json").text)["run"]
        done = self.resume(2, "--load-weights-only", "--save", "out", status=1)
        self.assertIn("another run", done.error)
        self.resume(2, "--load-weights-only", "--save", "new", "--metrics", "m.jsonl")
        self.assertEqual([line["step"] for line in self.metrics("m.jsonl")], [1, 2])
        self.assertNotEqual(json.loads(self.ds("inspect", "new", "--json").text)["run"], run)

    def test_without_optimizer_and_without_schedule(self):
        self.train(4, "--save", "out", "--metrics", "whole.jsonl")
        self.train(6, "--metrics", "whole.jsonl")
        whole = self.metrics("whole.jsonl")
        self.resume(6, "--load-no-optimizer", "--metrics", "a.jsonl")
        a = self.metrics("a.jsonl")
        self.assertEqual([line["step"] for line in a], [5, 6])
        self.assertEqual(a[0]["loss"], whole[4]["loss"], "the same weights and data")
        self.assertNotEqual(a[1]["loss"], whole[5]["loss"], "other moments")
        self.assertEqual([line["lr"] for line in a], [line["lr"] for line in whole[4:]])
        self.resume(6, "--load-no-schedule", "--metrics", "b.jsonl")
        self.assertEqual([line["lr"] for line in self.metrics("b.jsonl")],
                         [line["lr"] for line in whole[:2]])

    def test_options_need_load(self):
        for option in ("--load-weights-only", "--load-no-optimizer", "--load-strict"):
            self.train(2, option, status=2)


class Damage(ResumeCase):
    def test_the_checkpoint_before_a_damaged_one_is_taken(self):
        self.train(6, "--save", "out", "--save-interval", 2, "--metrics", "whole.jsonl")
        # A moment, the first weights: whatever reads them first.
        for part in (0.0, 0.5, 1.0):
            self.flip(f"out/global_step6/{DATA_FILE}", part)
            done = self.resume(6, "--metrics", "m.jsonl")
            self.assertRegex(done.error, "warning: passing over .*global_step6: .*; going on from "
                                         ".*global_step4\n")
            self.assertEqual(comparable(self.metrics("m.jsonl")),
                             comparable(self.metrics("whole.jsonl")[4:]))
            (self.folder / "m.jsonl").unlink()
            done = self.resume(6, "--tag", "global_step6", status=1)
            self.assertIn(DATA_FILE, done.error)
            self.flip(f"out/global_step6/{DATA_FILE}", part)

    def test_none_left(self):
        self.train(2, "--save", "out")
        self.flip(f"out/global_step2/{DATA_FILE}", 0.5)
        self.assertIn(DATA_FILE, self.resume(3, status=1).error)


class Folders(ResumeCase):
    def test_another_run_s_folder_is_refused(self):
        self.train(4, "--save", "out", "--save-interval", 2)
        latest = (self.folder / "out/latest").read_text()
        done = self.train(3, "--save", "out", status=1)
        self.assertIn("out holds checkpoints of another run (global_step2, global_step4)",
                      done.error)
        self.assertIn("--force", done.error)
        self.assertEqual((self.folder / "out/latest").read_text(), latest)
        self.assertEqual(self.tags(), ["global_step2", "global_step4"])
        self.resume(5, "--save", "out")
        self.resume(6, "--save", "out", "--tag", "global_step2")
        done = self.train(3, "--save", "out", "--force")
        self.assertIn("another training run", done.error)
        self.assertEqual((self.folder / "out/latest").read_text().split("\n")[0], "global_step3")

    def test_keep(self):
        self.train(3, "--save", "out")
        self.train(12, "--save", "new", "--save-interval", 1, "--keep", 2)
        self.assertEqual(self.tags("new"), ["global_step11", "global_step12"])
        # Of this run alone.
        shutil.copytree(self.folder / "out/global_step3", self.folder / "new/global_step3")
        self.ds("train", "--load", "new", "--data", "text.txt", "--steps", 14, "--save", "new",
                "--save-interval", 1, "--keep", 1, "--force")
        self.assertEqual(self.tags("new"), ["global_step3", "global_step14"])

    def test_tags_by_step(self):
        self.train(10, "--save", "out", "--save-interval", 1)
        self.assertEqual(self.tags(), [f"global_step{step}" for step in range(1, 11)])


class Metrics(ResumeCase):
    def test_steps_after_the_loaded_one_are_written_once(self):
        self.train(6, "--save", "out", "--save-interval", 2, "--metrics", "whole.jsonl")
        path = self.folder / "m.jsonl"
        lines = (self.folder / "whole.jsonl").read_text().splitlines(keepends=True)
        # Steps 5 and 6 are not in the loaded checkpoint, and a crash cut the last line.
        path.write_text("a note of mine\n" + "".join(lines) + lines[-1][:20])
        os.chmod(path, 0o640)
        self.resume(6, "--tag", "global_step4", "--metrics", "m.jsonl")
        kept = path.read_text().splitlines()
        self.assertEqual(kept[0], "a note of mine")
        self.assertEqual([json.loads(line)["step"] for line in kept[1:]], [1, 2, 3, 4, 5, 6])
        self.assertEqual(kept[1:5], [line.rstrip("\n") for line in lines[:4]])
        self.assertEqual(path.stat().st_mode & 0o777, 0o640)
        self.assertEqual([p.name for p in self.folder.glob("m.jsonl*")], ["m.jsonl"])

    def test_what_is_no_file_is_left_alone(self):
        self.train(2, "--save", "out")
        self.resume(3, "--metrics", "/dev/null")


if __name__ == "__main__":
    unittest.main()
