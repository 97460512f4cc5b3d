#!/usr/bin/env python3
"""Checks that sources are formatted as .clang-format says. Usage: check_format.py CLANG_FORMAT ROOT

include/ds.h keeps its own layout (documentation columns), and the headers of earlier releases stay as they
were (tests/abi/old_client), so these are not formatted.
"""

import pathlib
import re
import subprocess
import sys

FOLDERS = ("src", "kernels", "include", "tools", "examples", "bench", "tests")
SUFFIXES = {".h", ".hpp", ".c", ".cc", ".cu", ".cuh"}
SKIP = {"include/ds.h"}
EARLIER_RELEASES = "tests/abi/old_client/"


def main(argv):
    clang_format, root = argv[1], pathlib.Path(argv[2])
    files = [
        path for folder in FOLDERS if (root / folder).is_dir()
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in SUFFIXES and path.relative_to(root).as_posix() not in SKIP
        and not path.relative_to(root).as_posix().startswith(EARLIER_RELEASES)
    ]
    if not files:
        print("no sources found")
        return 1
    # Many files at once: most of the time of one file is the start of the process.
    done = subprocess.run([clang_format, "--style=file", "--dry-run", "-Werror", "--ferror-limit=0", *files],
                          stderr=subprocess.PIPE, text=True, check=False, cwd=root)
    found = sorted(set(re.findall(r"^(.+?):\d+:\d+: error: ", done.stderr, re.MULTILINE)))
    for path in found:
        print(f"{pathlib.Path(path).relative_to(root)}: not formatted; run clang-format -i")
    bad = len(found)
    if done.returncode != 0 and bad == 0:
        print(done.stderr)
        return 1
    print(f"{len(files)} files, {bad} not formatted")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
