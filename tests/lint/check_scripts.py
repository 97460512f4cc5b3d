#!/usr/bin/env python3
"""Checks the scripts without running what they are for: bash reads each of them, shellcheck (where it
is installed) finds nothing, Python reads those of bench/, and scripts/gpu-check knows its parts.

Usage: check_scripts.py [SOURCE_ROOT]; prints what is wrong and fails if anything is.
"""
import pathlib
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
    for path in sorted((root / "bench").rglob("*.py")):
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
    parts = listed.split()
    found = [] if status == 0 and len(parts) == len(set(parts)) > 0 else [f"--list: {listed}"]
    for part in parts:
        if f"part_{part.replace('-', '_').replace('.', '_')}()" not in text:
            found.append(f"gpu-check: the part {part} has no function")
    status, said = run(script, "--help")
    found += [f"gpu-check --help does not tell {option}" for option in ("--out", "--build", "--list", "--dry")
              if option not in said]
    with tempfile.TemporaryDirectory() as folder:
        for arguments in (["no-such-part"], ["--out"], ["--build", folder + "/none"]):
            if run(script, *arguments)[0] == 0:
                found.append(f"gpu-check accepts {' '.join(arguments)}")
        if not shutil.which("nvidia-smi"):
            status, said = run(script, "--out", folder, "tests")
            if status != 3 or "no GPU" not in said:
                found.append(f"gpu-check without a GPU: status {status}, {said}")
    return found


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = shell_problems(root) + python_problems(root) + gpu_check_problems(root)
    print("\n".join(found) or "scripts: nothing wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
