#!/usr/bin/env python3
"""Checks that sources are formatted as .clang-format says. Usage: check_format.py CLANG_FORMAT ROOT [KNOWN]

KNOWN is a file of digests of what a run has found to be formatted; these are not looked at again.

include/ds.h keeps its own layout (documentation columns), and the headers of earlier releases stay as they
were (tests/abi/old_client), so these are not formatted.
"""

import hashlib
import pathlib
import re
import subprocess
import sys

FOLDERS = ("src", "kernels", "include", "tools", "examples", "bench", "tests")
SUFFIXES = {".h", ".hpp", ".c", ".cc", ".cu", ".cuh"}
SKIP = {"include/ds.h"}
EARLIER_RELEASES = "tests/abi/old_client/"


def digests(clang_format, root, files):
    """What the answer for each file follows from: its text and name, the rules and the program."""
    version = subprocess.run([clang_format, "--version"], stdout=subprocess.PIPE, check=True).stdout
    rules = version + (root / ".clang-format").read_bytes()
    return {path: hashlib.sha256(rules + str(path.relative_to(root)).encode() + path.read_bytes()).hexdigest()
            for path in files}


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
    known = pathlib.Path(argv[3]) if len(argv) > 3 else None
    of = digests(clang_format, root, files)
    formatted = set(known.read_text(encoding="ascii").split()) if known and known.exists() else set()
    unknown = [path for path in files if of[path] not in formatted]
    # Many files at once: most of the time of one file is the start of the process.
    done = subprocess.run(
        [clang_format, "--style=file", "--dry-run", "-Werror", "--ferror-limit=0", *(unknown or files[:1])],
        stderr=subprocess.PIPE, text=True, check=False, cwd=root)
    found = sorted(set(re.findall(r"^(.+?):\d+:\d+: error: ", done.stderr, re.MULTILINE)))
    for path in found:
        print(f"{pathlib.Path(path).relative_to(root)}: not formatted; run clang-format -i")
    bad = len(found)
    if done.returncode != 0 and bad == 0:
        print(done.stderr)
        return 1
    print(f"{len(files)} files, {bad} not formatted")
    if known and not bad:
        known.write_text("\n".join(sorted(of.values())), encoding="ascii")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
