"""Sums up a JSON summary of gcovr by folder: by_folder.py REPORT.json"""
import collections
import json
import pathlib
import sys


def main():
    report = json.loads(pathlib.Path(sys.argv[1]).read_text())
    sums = collections.defaultdict(collections.Counter)
    for entry in report["files"]:
        parts = pathlib.PurePath(entry["filename"]).parts
        for folder in ("/".join(parts[:2]), parts[0]):
            for key in ("line_total", "line_covered", "branch_total", "branch_covered"):
                sums[folder][key] += entry[key]
    print(f"{'folder':24} {'lines':>7} {'covered':>8} {'branches':>9} {'covered':>8}")
    for folder, s in sorted(sums.items()):
        line, branch = (100 * s[f"{k}_covered"] / max(s[f"{k}_total"], 1) for k in ("line", "branch"))
        print(f"{folder:24} {s['line_total']:7} {line:7.1f}% {s['branch_total']:9} {branch:7.1f}%")


if __name__ == "__main__":
    main()
