#!/usr/bin/env python3
"""The list of mutants that change nothing that can be seen (equivalent.txt).

Usage: equivalent_list.py ROOT   fails when a line of code that the list names is no longer there
"""
import pathlib
import sys

LIST = pathlib.Path(__file__).with_name("equivalent.txt")


def entries(list_of_them):
    for number, line in enumerate(pathlib.Path(list_of_them).read_text().splitlines(), 1):
        if line and not line.startswith("#"):
            file, what, source, _ = (part.strip() for part in line.split(" | "))
            yield number, file, what, source


def gone_lines(root, list_of_them):
    gone = []
    for number, file, _, source in entries(list_of_them):
        path = pathlib.Path(root) / file
        if not path.exists() or source not in (line.strip() for line in path.read_text().splitlines()):
            gone.append(f"{list_of_them}:{number}: {file} has no such line any more")
    return gone


def main(argv):
    gone = gone_lines(argv[1], LIST)
    print("\n".join(gone) or "every line is there")
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
