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

    def test_failures_are_told(self):
        for variable in ("DS_EXAMPLE_C", "DS_EXAMPLE_CPP"):
            self.assertEqual(run(self.folder, [], program=os.environ[variable]).returncode, 2)
            done = run(self.folder, ["none.txt", 1, "out"], program=os.environ[variable])
            self.assertEqual(done.returncode, 1)
            self.assertIn("none.txt", done.error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
