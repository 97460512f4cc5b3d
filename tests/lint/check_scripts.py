#!/usr/bin/env python3
"""Checks the scripts without running what they are for: bash reads each of them, shellcheck (where it
is installed) finds nothing, Python reads those of bench/ and tests/, scripts/gpu-check knows its parts,
and it and scripts/gpu-pack tell their options.

Usage: check_scripts.py [SOURCE_ROOT]; prints what is wrong and fails if anything is.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def shell_problems(root):
    scripts = sorted(str(path) for path in (root / "scripts").iterdir() if path.is_file())
    found = [text for status, text in (run("bash", "-n", script) for script in scripts) if status]
    if shutil.which("shellcheck"):
        # SC2317: functions that are called by a name in a variable.
        status, text = run("shellcheck", "-x", "-P", str(root / "scripts"), "-e", "SC2317", *scripts)
        if status:
            found.append(text)
    return found


def python_problems(root):
    found = []
    for path in sorted([*(root / "bench").rglob("*.py"), *(root / "tests").rglob("*.py")]):
        try:
            compile(path.read_text(encoding="utf-8"), str(path), "exec")
        except SyntaxError as error:
            found.append(f"{path}: {error}")
    return found


def gpu_check_problems(root):
    """Each part has a function, help tells the options, and nonsense is refused."""
    script = str(root / "scripts" / "gpu-check")
    text = pathlib.Path(script).read_text(encoding="utf-8")
    status, listed = run(script, "--list")
    parts = [line.split()[1] for line in listed.splitlines()]
    found = [] if status == 0 and len(parts) == len(set(parts)) > 0 else [f"--list: {listed}"]
    for part in parts:
        if f"part_{part.replace('-', '_').replace('.', '_')}()" not in text:
            found.append(f"gpu-check: the part {part} has no function")
    with tempfile.TemporaryDirectory() as folder:
        found += told_and_refused(script, text, ["no-such-part"], ["--out"], ["A", "--build", folder + "/none"])
        status, said = run(script, "--out", folder, "--build", folder, "tests")
        if status != 3 or "was not built" not in said:
            found.append(f"gpu-check without programs: status {status}, {said}")
    return found


def gpu_pack_problems(root):
    script = str(root / "scripts" / "gpu-pack")
    text = pathlib.Path(script).read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        found = told_and_refused(script, text, ["--no-such"], ["--out"], ["--build"], ["pack"])
        status, said = run(script, "--build", folder, "--out", folder + "/out")
        if status != 1 or "was not configured by the preset gpu-pack" not in said:
            found.append(f"gpu-pack without a build: status {status}, {said}")
    return found


def told_and_refused(script, text, *wrong):
    """--help tells every option that the script reads, and wrong arguments are errors."""
    status, said = run(script, "--help")
    options = {option for line in text.splitlines() if re.match(r"^    --[a-z-]+( \| --[a-z-]+)*\)", line)
               for option in re.findall(r"--[a-z-]+", line.split(")")[0])}
    found = [f"{script} --help does not tell {option}" for option in sorted(options) if option not in said]
    if status != 0 or not options:
        found.append(f"{script} --help: status {status}, options {options}")
    for arguments in wrong:
        if run(script, *arguments)[0] == 0:
            found.append(f"{script} accepts {' '.join(arguments)}")
    return found


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = (shell_problems(root) + python_problems(root) + gpu_check_problems(root) +
             gpu_pack_problems(root))
    print("\n".join(found) or "scripts: nothing wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
