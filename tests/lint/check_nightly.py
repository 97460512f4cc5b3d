"""Each pattern of tests/nightly.txt matches a test of the build, and no two the same one.

usage: check_nightly.py NIGHTLY_TXT BUILD
"""
import collections
import json
import re
import subprocess
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        patterns = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    shown = subprocess.run(["ctest", "--show-only=json-v1"], cwd=sys.argv[2], capture_output=True,
                           text=True, check=True)
    names = [test["name"] for test in json.loads(shown.stdout)["tests"]]
    if not any(name.startswith("emulated_") for name in names):
        print("skipped: this build has no emulated GPUs")
        return 77
    status = 0
    matched = collections.defaultdict(list)
    for pattern in patterns:
        found = [name for name in names if re.search(pattern, name)]
        for name in found:
            matched[name].append(pattern)
        if not found:
            print(f"{pattern} matches no test")
            status = 1
    for name, by in matched.items():
        if len(by) > 1:
            print(f"{name} is matched by {' and '.join(by)}")
            status = 1
    print(f"{len(matched)} of {len(names)} tests are for scripts/nightly")
    return status


if __name__ == "__main__":
    sys.exit(main())
