"""docs/three-ways.md: its programs compile as C99 without a warning, learn, and the last two, which do
the same in different memory, say the same; checkpoints of one way resume in the other."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["DS_SOURCE"])
LIBRARY = pathlib.Path(os.environ["DS_LIBRARY_FOLDER"])
COMPILER = os.environ["DS_CC"]


def programs():
    page = (SOURCE / "docs/three-ways.md").read_text()
    return re.findall(r"(?ms)^```c\n(.*?)^```", page)


class ThreeWays(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ds-ways-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_program(self, text, *arguments):
        (self.folder / "way.c").write_text(text)
        done = subprocess.run(
            [COMPILER, "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "way.c", "-o", "way",
             f"-I{SOURCE / 'include'}", f"-L{LIBRARY}", "-lds", f"-Wl,-rpath,{LIBRARY}"],
            cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = subprocess.run([self.folder / "way", *arguments], cwd=self.folder, capture_output=True,
                              text=True, timeout=120)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def test_the_programs(self):
        self.assertEqual(len(programs()), 3)
        outputs = [self.run_program(text, *([SOURCE / "LICENSE"] if "argv" in text else []))
                   for text in programs()]
        for text in outputs:
            first, last = map(float, text.split())
            self.assertLess(last, 0.8 * first)
        self.assertEqual(outputs[1], outputs[2])

    def test_checkpoints_of_either_way_resume_in_the_other(self):
        lending, viewing = programs()[1:]
        saves = '  TRY(ds_engine_save(engine, "out", NULL));\n  ds_engine_destroy(engine);'
        loads = '  TRY(ds_engine_create(config, NULL, model, NULL, &engine));\n' \
                '  TRY(ds_engine_load(engine, "out", NULL, NULL));'
        for one, other in ((lending, viewing), (viewing, lending)):
            before = self.run_program(one.replace("  ds_engine_destroy(engine);", saves))
            resumed = other.replace(loads.splitlines()[0], loads)
            self.assertNotEqual(resumed, other)
            after = self.run_program(resumed)
            self.assertLess(float(after.split()[0]), float(before.split()[0]) / 10)
            shutil.rmtree(self.folder / "out")


if __name__ == "__main__":
    unittest.main(verbosity=2)
