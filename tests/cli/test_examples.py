"""The example programs run as README shows them."""
import os
import re
import unittest

from cli_case import CliCase, run


class Examples(CliCase):
    def losses(self, variable, *arguments):
        done = run(self.folder, ["text.txt", 30, *arguments], program=os.environ[variable])
        self.assertEqual(done.returncode, 0, done.error)
        found = [float(x) for x in re.findall(r"(?m)^step \d+  loss ([0-9.]+)$", done.text)]
        self.assertEqual(len(found), 3, done.text)
        self.assertLess(found[-1], found[0])
        return done.text

    def test_c(self):
        self.losses("DS_EXAMPLE_C", "out")
        self.assertIn("global_step30", self.ds("inspect", "out", "--verify").text)

    def test_cpp(self):
        text = self.losses("DS_EXAMPLE_CPP", "The License")
        self.assertRegex(text, r"(?m)^The License")

    def zero3(self, ranks, steps, folder):
        """What the first process prints, as (steps before, processes, losses)."""
        done = self.ds("launch", "-n", ranks, "--", os.environ["DS_EXAMPLE_ZERO3"], "text.txt", steps, folder)
        begin = re.search(r"after step (\d+): (\d+) processes, ZeRO stage 3", done.text)
        self.assertIsNotNone(begin, done.text + done.error)
        return int(begin[1]), int(begin[2]), [float(x) for x in re.findall(r"loss ([0-9.]+)", done.text)]

    def test_zero3_goes_on_with_another_number_of_processes(self):
        self.assertEqual(self.zero3(3, 10, "out")[:2], (0, 3))
        self.assertEqual(self.zero3(2, 20, "out")[:2], (10, 2))
        before, ranks, losses = self.zero3(1, 30, "out")
        self.assertEqual((before, ranks), (20, 1))
        # The same samples make the same steps; the sums of ranks are rounded in another order.
        self.assertAlmostEqual(losses[-1], self.zero3(1, 30, "alone")[2][-1], delta=2e-3)

    def test_larger_than_memory_is_refused_and_then_trains_from_files(self):
        done = run(self.folder, ["text.txt", ".", 20], program=os.environ["DS_EXAMPLE_MEMORY"])
        self.assertEqual(done.returncode, 0, done.error)
        self.assertIn("training does not fit", done.text)
        self.assertIn("cheapest first", done.text)
        losses = [float(x) for x in re.findall(r"(?m)^step \d+  loss ([0-9.]+)$", done.text)]
        self.assertEqual(len(losses), 2, done.text)
        self.assertLess(max(losses), 5)  # chance is 5.5; of two samples a step, one is above another

    def test_failures_are_told(self):
        for variable in ("DS_EXAMPLE_C", "DS_EXAMPLE_CPP"):
            self.assertEqual(run(self.folder, [], program=os.environ[variable]).returncode, 2)
            done = run(self.folder, ["none.txt", 1, "out"], program=os.environ[variable])
            self.assertEqual(done.returncode, 1)
            self.assertIn("none.txt", done.error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
