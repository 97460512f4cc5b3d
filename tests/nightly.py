"""Which tests of a build tests/nightly.txt leaves to scripts/nightly.

usage: nightly.py BUILD          checks that each pattern matches a test, and no two the same one
       nightly.py BUILD OUTPUT   writes the numbers of the other tests, as ctest -I reads them
"""
import collections
import json
import pathlib
import re
import subprocess
import sys


def patterns():
    text = (pathlib.Path(__file__).parent / "nightly.txt").read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]


def test_names(build):
    shown = subprocess.run(["ctest", "--show-only=json-v1"], cwd=build, capture_output=True, text=True,
                           check=True)
    return [test["name"] for test in json.loads(shown.stdout)["tests"]]


def check(names):
    if not any(name.startswith("emulated_") for name in names):
        print("skipped: this build has no emulated GPUs")
        return 77
    errors = []
    matched = collections.defaultdict(list)
    for pattern in patterns():
        found = [name for name in names if re.search(pattern, name)]
        for name in found:
            matched[name].append(pattern)
        if not found:
            errors.append(f"{pattern} matches no test")
    errors += [f"{name} is matched by {' and '.join(by)}" for name, by in matched.items()
               if len(by) > 1]
    print("\n".join(errors + [f"{len(matched)} of {len(names)} tests are for scripts/nightly"]))
    return 1 if errors else 0


def main():
    names = test_names(sys.argv[1])
    if len(sys.argv) == 2:
        return check(names)
    left_out = re.compile("|".join(patterns()))
    numbers = [str(i + 1) for i, name in enumerate(names) if not left_out.search(name)]
    pathlib.Path(sys.argv[2]).write_text("0,0,0," + ",".join(numbers) + ",\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
