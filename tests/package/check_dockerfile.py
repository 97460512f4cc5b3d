#!/usr/bin/env python3
"""Follows the Dockerfile without Docker: every stage in a bare Debian 12 root, in which its commands
run by chroot; then the last stage's program, once as the image would start it and once training.

  tests/package/check_dockerfile.py               as root; needs the network and scripts/setup --package
  tests/package/check_dockerfile.py --ccache DIR  the stages compile with this compiler cache

Knows the instructions that the file uses, FROM, WORKDIR, COPY, RUN, ENTRYPOINT and CMD, and refuses
others. The images debian:bookworm and debian:bookworm-slim are one bare root here
(build/package/clean, made by scripts/package-check).
"""

import argparse
import fnmatch
import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CLEAN = ROOT / "build/package/clean"
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
               "HOME": "/root"}


def fail(text):
    sys.exit(f"check_dockerfile: {text}")


def instructions(path):
    """(instruction, arguments) of each line, without comments."""
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, arguments = line.strip().partition(" ")
            yield name.upper(), arguments.strip()


def context_files():
    """What would be sent to Docker: the checkout without what .dockerignore names. Files that git does
    not know are left out, too, so that a forgotten `git add` shows."""
    ignored = (ROOT / ".dockerignore").read_text().split()
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], check=True,
                            stdout=subprocess.PIPE, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if not any(fnmatch.fnmatch(name, rule) or name.startswith(rule + "/") for rule in ignored):
            yield name


class Stage:
    def __init__(self, folder, ccache):
        self.root = pathlib.Path(folder)
        self.directory = "/"
        self.entry, self.arguments = [], []
        subprocess.run(["cp", "-a", "--reflink=auto", f"{CLEAN}/.", str(self.root)], check=True)
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
        self.mount("/proc", "proc")
        self.mount("/dev", "dev")
        if ccache:
            self.mount(ccache, "root/.cache/ccache")

    def mount(self, source, target):
        place = self.root / target
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", str(source), str(place)], check=True)

    def inside(self, path):
        """The place of a path of this stage; relative ones begin at its working folder."""
        return self.root / os.path.join(self.directory, path).lstrip("/")

    def run(self, command):
        place = ["sh", "-c", 'cd "$0" && exec "$@"', self.directory, *command]
        with subprocess.Popen(["chroot", str(self.root), *place], env=ENVIRONMENT,
                              start_new_session=True) as process:
            try:
                status = process.wait()
            except BaseException:
                # What it has started holds the mounts.
                os.killpg(process.pid, signal.SIGKILL)
                raise
        if status:
            fail(f"status {status} of {' '.join(command)}")

    def copy(self, words, stages):
        if words[0].startswith("--from="):
            source = stages[words[0][len("--from="):]]
            found = [name for pattern in words[1:-1] for name in glob.glob(str(source.inside(pattern)))]
            target = self.inside(words[-1])
            target.mkdir(parents=True, exist_ok=True)
            if len(found) < len(words) - 2:
                fail(f"COPY {' '.join(words)}: found only {found}")
            for name in found:
                shutil.copy(name, target)
        elif words == [".", "."]:
            for name in context_files():
                target = self.inside(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, target)
        else:
            fail(f"COPY {' '.join(words)} is not known here")


def build(dockerfile, folder, ccache):
    """Follows the file; returns the stages in order, each under its name or number."""
    stages, stage = {}, None
    for name, arguments in instructions(dockerfile):
        print(f"== {name} {arguments}", flush=True)
        if name == "FROM":
            words = arguments.split()
            if not words[0].startswith("debian:bookworm"):
                fail(f"FROM {words[0]} is not known here")
            key = words[2] if len(words) == 3 else str(len(stages))
            place = pathlib.Path(folder) / key
            place.mkdir()
            stage = stages[key] = Stage(place, ccache)
        elif name == "WORKDIR":
            stage.directory = arguments
            stage.inside("").mkdir(parents=True, exist_ok=True)
        elif name == "COPY":
            stage.copy(arguments.split(), stages)
        elif name == "RUN":
            stage.run(["sh", "-c", arguments])
        elif name == "ENTRYPOINT":
            stage.entry = json.loads(arguments)
        elif name == "CMD":
            stage.arguments = json.loads(arguments)
        else:
            fail(f"the instruction {name} is not known here")
    return stages


def try_image(stage):
    stage.run(stage.entry + stage.arguments)
    shutil.copy(ROOT / "examples/quickstart/model.json", stage.inside("model.json"))
    shutil.copy(ROOT / "examples/quickstart/ds_config.json", stage.inside("ds_config.json"))
    shutil.copy("/usr/share/common-licenses/GPL-3", stage.inside("text.txt"))
    train = ["train", "--model", "model.json", "--config", "ds_config.json", "--data", "text.txt",
             "--steps", "3", "--save", "out"]
    print(f"== {' '.join(stage.entry + train)}", flush=True)
    stage.run(stage.entry + train)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ccache", help="folder of a compiler cache")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        fail("this needs root, for chroot")
    if not (CLEAN / ".complete").exists():
        fail(f"there is no bare Debian in {CLEAN}: scripts/package-check archive makes it")
    if arguments.ccache:
        # The cache tells languages of messages apart.
        ENVIRONMENT.update({name: value for name, value in os.environ.items()
                            if name == "LANG" or name.startswith("LC_")})
    # So that mounts are taken away then, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("check_dockerfile: ended by SIGTERM"))
    folder = tempfile.mkdtemp(prefix="dockerfile-check-")
    try:
        stages = build(ROOT / "Dockerfile", folder, arguments.ccache)
        try_image(list(stages.values())[-1])
    finally:
        # Taken from the system, so that stages of a failed build are unmounted too.
        mounts = [line.split()[1] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        for place in reversed([m for m in mounts if m.startswith(folder + "/")]):
            subprocess.run(["umount", place], check=True)
        subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)
    print("check_dockerfile: done")


if __name__ == "__main__":
    main()
