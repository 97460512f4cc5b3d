#!/usr/bin/env python3
"""Runs the program of every language and compares the weights bit for bit.

compare.py BUILD_TREE

C and C++ are built with the tests; Python, Rust and Java by the tests of the bindings, which run
before. A language whose program is not there is named; fewer than C and C++ is a failure.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HERE = pathlib.Path(__file__).resolve().parent


def programs(build):
    """Language and command, None where the program was not built."""
    python = ROOT / "build" / "python-tests" / "env" / "bin" / "python"
    rust = build / "rust" / "debug" / "same_run"
    java = build / "bindings" / "java"
    jars = [jar for jar in java.glob("ds-*.jar")
            if not jar.name.endswith(("-sources.jar", "-javadoc.jar"))]
    has_java = jars and (java / "programs" / "SameRun.class").exists() and shutil.which("java")
    return {
        "c": [build / "tests" / "same_run" / "same_run_c"],
        "c++": [build / "tests" / "same_run" / "same_run_cpp"],
        "python": [python, HERE / "python" / "same_run.py"] if python.exists() else None,
        "rust": [rust] if rust.exists() else None,
        "java": ["java", "-cp", f"{jars[0]}:{java / 'programs'}", "SameRun"] if has_java else None,
    }


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    environment = dict(os.environ)
    environment["LD_LIBRARY_PATH"] = str(build / "src" / "capi")
    failed = False
    for kind in ("built_in", "external"):
        sums = {}
        for language, command in programs(build).items():
            if command is None:
                print(f"{kind}: {language}: not compared, its program is not built")
                continue
            with tempfile.TemporaryDirectory() as folder:
                output = pathlib.Path(folder, "weights")
                subprocess.run([str(part) for part in command] +
                               [str(HERE / "run.json"), str(ROOT / "LICENSE"), kind, str(output)],
                               check=True, env=environment, timeout=300)
                data = output.read_bytes()
                sums[language] = (len(data), hashlib.sha256(data).hexdigest()[:16])
                print(f"{kind}: {language}: {len(data)} bytes, sha256 {sums[language][1]}...")
        if len(set(sums.values())) != 1 or next(iter(sums.values()))[0] == 0:
            print(f"{kind}: the weights differ")
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
