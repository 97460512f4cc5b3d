"""Gives a wheel the tag of the systems that it runs on.

    tag_wheel.py WHEEL

Looks at what the libraries in the wheel ask the system for: nothing but the C library makes it a wheel for
every Linux with a C library of that age (PEP 600: manylinux_2_N). Anything else is an error that names it.
Replaces the wheel by one with the tag and prints its path. Needs objdump and the package wheel.
"""

import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# Parts of the C library; the dynamic loader has the machine's name.
OF_THE_C_LIBRARY = re.compile(r"^(lib(c|m|dl|pthread|rt)\.so\.\d+|ld-linux.*\.so\.\d+)$")


def objdump(option: str, library: Path) -> str:
    return subprocess.run(
        ["objdump", option, str(library)], capture_output=True, text=True, check=True
    ).stdout


def c_library_version(folder: Path) -> int:
    """The N of the newest symbol version GLIBC_2.N that a library of the folder needs."""
    libraries = sorted(file for file in folder.rglob("*.so*") if file.is_file())
    inside = {library.name for library in libraries}
    newest = 17
    for library in libraries:
        for needed in re.findall(r"NEEDED\s+(\S+)", objdump("-p", library)):
            if needed not in inside and not OF_THE_C_LIBRARY.match(needed):
                raise SystemExit(
                    f"tag_wheel: {library.name} needs {needed}, which is neither in the wheel nor part of the "
                    "C library: build the wheel with the library of scripts/package"
                )
        versions = re.findall(r"\*UND\*.*GLIBC_2\.(\d+)", objdump("-T", library))
        newest = max([newest, *map(int, versions)])
    return newest


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    wheel = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as content:
        content.extractall(folder)
        tag = f"manylinux_2_{c_library_version(Path(folder))}_{platform.machine()}"
    made = subprocess.run(
        [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, str(wheel)],
        capture_output=True,
        text=True,
        check=True,
    )
    print(wheel.parent / made.stdout.strip().splitlines()[-1])


main()
