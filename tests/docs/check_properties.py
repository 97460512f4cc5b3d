"""docs/properties: every test that a page names exists, every row says what holds, and the counts at
the head of each page, and in the index, are those of its rows."""
import os
import pathlib
import re
import subprocess
import unittest

SOURCE = pathlib.Path(os.environ["DS_SOURCE"])
BUILD = os.environ["DS_BUILD"]
PAGES = SOURCE / "docs/properties"
HEADER = ["Property", "Asserted in", "Here", "By"]
KINDS = ["tested", "refused", "not offered"]
TEST = re.compile(r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)\s*\)")
COUNTS = re.compile(r"^Tested: (\d+)\. Refused: (\d+)\. Not offered: (\d+)\.$", re.M)


def gtest_names():
    """Of the sources, so that tests of builds other than this one count too."""
    return {".".join(match) for path in (SOURCE / "tests").rglob("*.cc")
            for match in TEST.findall(path.read_text())}


def ctest_names():
    listing = subprocess.run(["ctest", "--test-dir", BUILD, "-N"], check=True, capture_output=True,
                             text=True).stdout
    return set(re.findall(r"(?m)^\s*Test\s+#\d+: (\S+)$", listing))


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def rows(text):
    """Of all tables with the header of these pages."""
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
        elif cells(line) == HEADER:
            inside = True
        elif inside and not set(line) <= set("|- "):
            yield cells(line)


def counted(text):
    kinds = [row[2] for row in rows(text)]
    return [kinds.count(kind) for kind in KINDS]


class Properties(unittest.TestCase):
    def setUp(self):
        self.pages = {path.name: path.read_text() for path in sorted(PAGES.glob("*.md"))
                      if path.name != "index.md"}
        self.assertTrue(self.pages)

    def test_rows(self):
        known = gtest_names() | ctest_names()
        for name, text in self.pages.items():
            for row in rows(text):
                with self.subTest(page=name, row=row[0]):
                    self.assertEqual(len(row), 4, "a cell with a '|' in it?")
                    self.assertTrue(row[0] and row[1] and row[3], "an empty cell")
                    self.assertIn(row[2], KINDS)
                    if row[2] != "tested":
                        continue
                    # Names of functions have no dot, those of tests do.
                    tests = [name for name in re.findall(r"`([^`]+)`", row[3]) if "." in name]
                    self.assertTrue(tests, "names no test")
                    for test in tests:
                        self.assertTrue(test in known, f"there is no test {test}")

    def test_links(self):
        for path in PAGES.glob("*.md"):
            for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
                if "://" not in link:
                    self.assertTrue((PAGES / link).exists(), f"{path.name}: {link}")

    def test_counts(self):
        index = (PAGES / "index.md").read_text()
        total = [0, 0, 0]
        for name, text in self.pages.items():
            with self.subTest(page=name):
                number = counted(text)
                self.assertGreater(sum(number), 0, "no rows")
                head = COUNTS.findall(text)
                self.assertEqual([[int(n) for n in one] for one in head], [number],
                                 "the line 'Tested: N. Refused: N. Not offered: N.'")
                row = rf"(?m)^\| \[[^]]+\]\({re.escape(name)}\) \| (\d+) \| (\d+) \| (\d+) \|$"
                self.assertEqual([[int(n) for n in one] for one in re.findall(row, index)],
                                 [number], "its row of index.md")
                total = [a + b for a, b in zip(total, number)]
        self.assertEqual(re.findall(r"(?m)^\| all \| (\d+) \| (\d+) \| (\d+) \|$", index),
                         [tuple(str(n) for n in total)], "the row 'all' of index.md")


if __name__ == "__main__":
    unittest.main()
