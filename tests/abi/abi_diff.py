#!/usr/bin/env python3
"""Compares the ABI with that of the last release, by libabigail (Debian: abigail-tools).

abi_diff.py check INCLUDE BASELINES CC      fails when a function of the newest baseline is gone or has
                                            changed, unless the version has grown enough
abi_diff.py baseline INCLUDE BASELINES CC   writes the baseline of this version: BASELINES/VERSION.abi
abi_diff.py dump INCLUDE FILE CC            writes the description of an ABI to a file

The ABI is what the headers in INCLUDE declare: a library of empty functions is compiled from them, and
abidw describes that. That libds.so exports exactly these functions is the subject of another test
(abi.exported_symbols). So no debug information of the library is read, and a check takes a second.

Before 1.0 a minor version may change anything; from 1.0 on a major version may. Functions marked
DS_EXPERIMENTAL are left out. A struct that begins with struct_size may grow at its end.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

# Constants have no place in a compiled program; as members of one enumeration they are compared too.
CONSTANTS = "ds_abi_constants"


def fail(text):
    sys.exit(f"abi_diff: {text}")


def run(command, **options):
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, **options)
    except FileNotFoundError:
        fail(f"{command[0]} was not found: run scripts/setup --test")


def preprocess(include, cc, *options):
    done = run([cc, "-std=c11", "-E", *options, f"-I{include}", f"{include}/ds.h"])
    if done.returncode:
        fail(f"{cc} does not read {include}/ds.h")
    return done.stdout


def version_of(include, cc):
    macros = preprocess(include, cc, "-dM")
    found = [re.search(rf"#define DS_VERSION_{part} (\d+)", macros)
             for part in ("MAJOR", "MINOR", "PATCH")]
    if not all(found):
        fail(f"{include}/ds.h does not define DS_VERSION_MAJOR, _MINOR and _PATCH")
    return tuple(int(match.group(1)) for match in found)


def experimental(include):
    """Names of the functions that promise nothing."""
    names = set()
    for path in sorted(pathlib.Path(include).rglob("*.h")):
        names.update(re.findall(r"^DS_API\s+DS_EXPERIMENTAL\b[^;(]*?\b(ds_\w+)\s*\(",
                                path.read_text(), re.M))
    return names


def statements(text):
    """The top-level statements of preprocessed C."""
    depth, current = 0, ""
    for c in text:
        depth += (c in "{(") - (c in "})")
        if c == ";" and depth == 0:
            yield re.sub(r"\s+", " ", current).strip()
            current = ""
        else:
            current += c


def functions(text):
    """(name, declaration) of the functions that preprocessed headers declare."""
    for statement in statements(text):
        if statement.startswith(("typedef", "struct", "enum")) or "{" in statement:
            continue
        match = re.search(r"\b(ds_\w+)\s*\((?!\()", statement)
        if match:
            yield match.group(1), statement


def constants(include, cc, text):
    """Names of enumerators and of macros that are whole numbers, but for the version."""
    names = set()
    for body in re.findall(r"\benum\b[^{;]*\{([^}]*)\}", text):
        names.update(re.findall(r"\b(DS_\w+)\b\s*(?:=|,|$)", body))
    number = r"[-+~|<>()\s\d]|0x[0-9a-fA-F]+|\b(?:U?INT\d+_C|u?int\d+_t|ds_\w+|DS_\w+)\b"
    for name, value in re.findall(r"^#define (DS_[A-Z0-9_]+) (.+)$",
                                  preprocess(include, cc, "-dM"), re.M):
        if re.search(r"\d", value) and re.fullmatch(rf"(?:{number})+", value):
            names.add(name)
    return sorted(n for n in names if not n.startswith("DS_VERSION_"))


def sized_structs(tree):
    """The structs of a description that begin with struct_size: name to (element, members)."""
    found = {}
    for element in tree.iter("class-decl"):
        members = sorted(element.findall("data-member"),
                         key=lambda member: int(member.get("layout-offset-in-bits")))
        if members and members[0].find("var-decl").get("name") == "struct_size":
            found[element.get("name")] = (element, members)
    return found


def without_growth(old, new, out):
    """Writes `new` with the sized structs as short as in `old`, so that the rest can be compared. What
    lies in the padding of the old struct stays: its size does not tell whether a caller has it."""
    tree = xml.etree.ElementTree.parse(new)
    older = sized_structs(xml.etree.ElementTree.parse(old))
    for name, (element, members) in sized_structs(tree).items():
        if name not in older:
            continue
        old_element, old_members = older[name]
        size = old_element.get("size-in-bits")
        added = members[len(old_members):]
        if added and all(int(m.get("layout-offset-in-bits")) >= int(size) for m in added):
            for member in added:
                element.remove(member)
            element.set("size-in-bits", size)
    tree.write(out)


def dump(include, cc, out):
    """Writes the description of what the headers declare."""
    text = preprocess(include, cc, "-P")
    left_out = experimental(include)
    declared = {name: line for name, line in functions(text) if name not in left_out}
    if not declared:
        fail(f"{include}/ds.h declares no function that begins with ds_")
    lines = ['#include "ds.h"', f"enum {CONSTANTS} {{"]
    lines += [f"  {name}_AS_A_NUMBER = {name}," for name in constants(include, cc, text)]
    lines += [f"  {CONSTANTS}_end = 0x7fffffff", "};",
              f"void {CONSTANTS}_are(enum {CONSTANTS} all);",
              f"void {CONSTANTS}_are(enum {CONSTANTS} all) {{ (void)all; }}"]
    for _, line in sorted(declared.items()):
        # Never called, so that what they would return does not matter.
        lines.append(f"{line} {{ __builtin_unreachable(); }}")
    with tempfile.TemporaryDirectory() as folder:
        source, library = f"{folder}/abi.c", f"{folder}/libabi.so"
        pathlib.Path(source).write_text("\n".join(lines) + "\n")
        if run([cc, "-std=c11", "-w", "-g", "-O0", "-fPIC", "-shared", f"-I{include}", source,
                "-o", library]).returncode:
            fail(f"a library of empty functions cannot be compiled from {include}/ds.h")
        done = run(["abidw", "--no-show-locs", "--no-corpus-path", "--no-comp-dir-path",
                    "--no-parameter-names", "--no-elf-needed", library])
    if done.returncode:
        fail("abidw failed")
    pathlib.Path(out).write_text(done.stdout)


def compare(old, new):
    """What abidiff says of two descriptions: (whether old programs still work, report)."""
    with tempfile.NamedTemporaryFile(suffix=".abi") as shortened:
        without_growth(old, new, shortened.name)
        done = run(["abidiff", "--no-show-locs", str(old), shortened.name])
    # Bits: 1 error, 2 usage, 4 some change, 8 a change that breaks programs.
    if done.returncode & 3:
        fail(f"abidiff failed with status {done.returncode}")
    summary = re.search(r"Functions changes summary: (\d+) Removed, (\d+) Changed", done.stdout)
    symbols = re.search(r"Function symbols changes summary: (\d+) Removed", done.stdout)
    if done.returncode and not summary:
        fail(f"the report of abidiff is not understood:\n{done.stdout}")
    broken = sum(int(n) for found in (summary, symbols) if found for n in found.groups())
    return broken == 0 and not done.returncode & 8, done.stdout


def version_text(version):
    return ".".join(str(part) for part in version)


def may_break(old, new):
    """Whether the version has grown so far that the ABI may change."""
    parts = 2 if new[0] == 0 else 1
    return new[:parts] > old[:parts]


def newest(baselines):
    found = []
    for path in pathlib.Path(baselines).glob("*.abi"):
        match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", path.stem)
        if not match:
            fail(f"{path}: a baseline is named by its version, such as 1.2.3.abi")
        found.append((tuple(int(part) for part in match.groups()), path))
    return max(found, default=None)


def check(include, baselines, cc):
    last = newest(baselines)
    if last is None:
        print(f"skipped: {baselines} holds no baseline; scripts/abi-check --release writes one")
        return 0
    old_version, old = last
    version = version_of(include, cc)
    if version < old_version:
        fail(f"this is version {version_text(version)}, older than the baseline {old}")
    with tempfile.NamedTemporaryFile(suffix=".abi") as new:
        dump(include, cc, new.name)
        works, report = compare(old, new.name)
    print(report, end="")
    names = f"{version_text(old_version)} to {version_text(version)}"
    if works:
        print(f"{names}: programs that were compiled with the older header still work")
    elif may_break(old_version, version):
        print(f"{names}: the ABI has changed, as the version says")
    else:
        fail(f"{names}: the changes above break compiled programs. Keep what was there, or raise "
             f"the {'minor' if version[0] == 0 else 'major'} version")
    return 0


def main(argv):
    if len(argv) != 5 or argv[1] not in ("check", "baseline", "dump"):
        sys.exit(__doc__)
    command, include, place, cc = argv[1:]
    if command == "check":
        return check(include, place, cc)
    if command == "baseline":
        place = pathlib.Path(place) / f"{version_text(version_of(include, cc))}.abi"
        place.parent.mkdir(exist_ok=True)
    dump(include, cc, place)
    print(f"{place}: {pathlib.Path(place).stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
