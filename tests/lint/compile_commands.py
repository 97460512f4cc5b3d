#!/usr/bin/env python3
"""The commands of a build for every source, for tools and editors: cmake joins several sources into one translation
unit, whose command its compile_commands.json has.

Usage: compile_commands.py BUILD           writes BUILD/sources/compile_commands.json, which has the sources in place
                                           of the units that include them, and prints its folder
       compile_commands.py --check BUILD   fails when a source of src, kernels or tools is in none of them, nor in
                                           the tests that compile it for emulated GPUs: its CMakeLists.txt forgot it
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A unit that joins sources: pragmas for gcc, then the sources.
UNIT = re.compile(r'(#(if|pragma|endif)\b.*\n)*(#include "[^"]+"\n)+')


def joined_sources(unit, root):
    """The sources of a translation unit that cmake has written; none where it is a source itself."""
    text = unit.read_text(encoding="utf-8") if unit.exists() else ""
    if not UNIT.fullmatch(text):
        return []
    names = re.findall(r'#include "([^"]+)"', text)
    return [root / name for name in names] if all(name.endswith(".cc") for name in names) else []


def commands_of_sources(build, root=ROOT):
    """The entries of compile_commands.json, one for each source."""
    entries = []
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        unit = pathlib.Path(entry["file"])
        sources = joined_sources(unit, root) if unit.is_relative_to(build) else []
        entries += [{**entry, "file": str(source), "command": entry["command"].replace(str(unit), str(source))}
                    for source in sources] or [entry]
    return entries


def forgotten(build):
    known = {pathlib.Path(entry["file"]).resolve() for entry in commands_of_sources(build)}
    return sorted(str(path.relative_to(ROOT)) for folder in ("src", "kernels", "tools")
                  for path in (ROOT / folder).rglob("*.cc") if path not in known)


def main(argv):
    build = pathlib.Path(argv[-1]).resolve()
    if argv[1] == "--check":
        names = forgotten(build)
        for name in names:
            print(f"{name}: no target compiles it")
        return 1 if names else 0
    out = build / "sources/compile_commands.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(commands_of_sources(build), indent=1), encoding="utf-8")
    print(out.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
