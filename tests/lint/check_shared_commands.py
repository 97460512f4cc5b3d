#!/usr/bin/env python3
"""Checks that the builds with and without CUDA compile what they share by the same commands, so that the
compiler cache of one serves the other. Usage: check_shared_commands.py BUILD_FOLDER CUDA_BUILD_FOLDER

Only where both are configured (exit status 77 otherwise). Sources that may differ are those that know of
CUDA by a definition.
"""
import json
import pathlib
import sys

MAY_DIFFER = ("src/ops/", "src/capi/report.cc", "tests/unit/device/cuda_absent_test.cc")


def commands(folder):
    """By object file: the source and its command, without the folder's name."""
    entries = json.loads((folder / "compile_commands.json").read_text(encoding="utf-8"))
    found = {}
    for entry in entries:
        words = entry["command"].replace(str(folder), "BUILD").split()
        found[words[words.index("-o") + 1]] = (entry["file"], words)
    return found


def main(argv):
    plain, cuda = (pathlib.Path(argument).resolve() for argument in argv[1:3])
    built = [folder / "build.ninja" for folder in (plain, cuda)]
    if not all(path.exists() for path in built) or built[1].stat().st_mtime < built[0].stat().st_mtime:
        print("skipped: both builds must be configured, the one with CUDA last")
        return 77
    root = pathlib.Path(__file__).resolve().parents[2]
    of_plain, of_cuda = commands(plain), commands(cuda)
    shared = [name for name in of_plain if name in of_cuda]
    bad = 0
    for name in shared:
        (source, words), (_, other) = of_plain[name], of_cuda[name]
        path = pathlib.Path(source).as_posix().removeprefix(f"{plain.as_posix()}/").removeprefix(f"{root.as_posix()}/")
        if words != other and not path.startswith(MAY_DIFFER):
            bad += 1
            print(f"{path}: with CUDA also {[w for w in other if w not in words]}, "
                  f"without {[w for w in words if w not in other]}")
    print(f"{len(shared)} objects, {bad} compiled by other commands in {cuda}")
    return 1 if bad or not shared else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
