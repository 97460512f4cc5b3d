#!/usr/bin/env python3
"""check_library.py LIBRARY SYMBOLS [PROGRAM]: a self-contained libds.so asks the system for the C library
alone, of an age that Debian 12 has, exports exactly the listed symbols, and needs no text relocations. A
program beside it needs libds.so and the C library."""

import pathlib
import re
import subprocess
import sys

# The C library and the loader, which is part of it.
ALLOWED = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
NEWEST = {"GLIBC": (2, 36)}  # that of Debian 12


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *arguments], check=True, stdout=subprocess.PIPE,
                          text=True).stdout


def dynamic(file, tag):
    return re.findall(rf"\({tag}\).*\[(.*)\]", readelf("-d", file))


def check_needed(file, allowed):
    needed = dynamic(file, "NEEDED")
    errors = [f"it needs {name}" for name in needed if name not in allowed]
    return errors if needed else ["it needs no library at all, which is not what was built here"]


def check_flags(library):
    text = readelf("-d", library)
    return [f"it has {flag}" for flag in ("TEXTREL", "RPATH", "RUNPATH") if f"({flag})" in text]


def check_versions(library):
    errors = []
    for family, numbers in set(re.findall(r"\b([A-Z]\w*?)_(\d[\d.]*)\b", readelf("-V", library))):
        version = tuple(int(part) for part in numbers.strip(".").split("."))
        if family not in NEWEST:
            errors.append(f"it asks for {family}_{numbers}")
        elif version > NEWEST[family]:
            errors.append(f"it asks for {family}_{numbers}, which Debian 12 does not have")
    return errors


def check_symbols(library, listed):
    found = {}
    for line in readelf("--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[0].rstrip(":").isdigit() and fields[6] != "UND":
            found[fields[7].split("@")[0]] = (fields[3], fields[4])
    errors = [f"it exports {name}, which is not listed" for name in sorted(set(found) - listed)]
    errors += [f"it does not export {name}" for name in sorted(listed - set(found))]
    errors += [f"{name} is {kind} {binding}, not an ordinary function"
               for name, (kind, binding) in sorted(found.items()) if (kind, binding) != ("FUNC", "GLOBAL")]
    return errors


def main(library, symbols, program=None):
    errors = check_needed(library, ALLOWED) + check_flags(library) + check_versions(library)
    errors += check_symbols(library, set(pathlib.Path(symbols).read_text().split()))
    errors = [f"{library}: {error}" for error in errors]
    if program:
        allowed = ALLOWED | set(dynamic(library, "SONAME"))
        errors += [f"{program}: {error}"
                   for error in check_needed(program, allowed) + check_versions(program)]
    print("\n".join(errors), end="\n" if errors else "")
    return 1 if errors else 0


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
