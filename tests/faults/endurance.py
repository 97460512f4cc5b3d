#!/usr/bin/env python3
"""Endurance: runs of `ds train` that are killed, meet I/O errors, or are stopped for a while.

Whatever happens, what a run said was saved is there and whole, what was there before stays, the
exit status tells the truth, and the training ends with the weights of one that nothing happened to.

By hand, everything (about an hour on two busy cores; less on more):
    DS_PROGRAM=build/dev/tools/ds DS_IO_FAULTS=build/dev/tests/faults/libio_faults.so \\
        tests/faults/endurance.py --kills 300 --errors 100 --stops 50
"""
import argparse
import errno
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = str(pathlib.Path(os.environ["DS_PROGRAM"]).resolve())
SHIM = os.environ.get("DS_IO_FAULTS", "")
MODEL = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 16, "n_embd": 16, "n_layer": 1,
         "n_head": 2}
CONFIG = {"train_micro_batch_size_per_gpu": 2,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
WORDS = "the quick brown fox jumps over a lazy dog and then it sleeps in the warm sun ".split()


class Wrong(Exception):
    pass


def demand(condition, *what):
    if not condition:
        raise Wrong(" ".join(map(str, what)))


class Place:
    """A folder with a model, a configuration and text, and runs in it."""

    def __init__(self, seed):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="ds-endurance-")).resolve()
        chooser = random.Random(seed)
        (self.path / "text.txt").write_text(" ".join(chooser.choices(WORDS, k=4000)))
        (self.path / "model.json").write_text(json.dumps(MODEL))
        self.configure(False)

    def configure(self, decoupled):
        config = dict(CONFIG, checkpoint={"writer": {"decoupled": True}}) if decoupled else CONFIG
        (self.path / "config.json").write_text(json.dumps(config))

    def command(self, steps, save, interval, metrics=None):
        begin = ["--load", save] if self.has_checkpoint(save) else ["--model", "model.json"]
        record = ["--metrics", metrics] if metrics else []
        return [PROGRAM, "train", *begin, "--config", "config.json", "--data", "text.txt", "--split",
                "1", "--seed", "5", "--threads", "1", "--eval-interval", "0", "--log-interval",
                "1000000", "--steps", str(steps), "--save", save, "--save-interval", str(interval),
                *record]

    def has_checkpoint(self, save):
        folder = self.path / save
        return folder.is_dir() and any(folder.glob("[!.]*/manifest.dsm"))

    def run(self, command, **options):
        return subprocess.run(command, cwd=self.path, stdout=subprocess.PIPE, timeout=300,
                              stderr=subprocess.PIPE, **options)

    def whole_step(self, save, tag=None):
        """The step of the newest checkpoint (or of one), all of whose bytes were checked."""
        more = ["--tag", tag] if tag else []
        done = self.run([PROGRAM, "inspect", save, "--json", "--verify", *more])
        demand(done.returncode == 0, "a checkpoint is damaged:", done.stderr.decode())
        return json.loads(done.stdout)["counters"]["global_steps"]

    def weights(self, save):
        shutil.rmtree(self.path / "exported", ignore_errors=True)
        done = self.run([PROGRAM, "export", save, "exported"])
        demand(done.returncode == 0, "export:", done.stderr.decode())
        return (self.path / "exported/model.safetensors").read_bytes()

    def drop_old(self, save, keep=3):
        """A long chain of saves would fill the disk."""
        tags = sorted((self.path / save).glob("global_step*"), key=lambda p: int(p.name[11:]))
        for folder in tags[:-keep]:
            shutil.rmtree(folder)

    def reference(self, steps):
        done = self.run(self.command(steps, f"reference-{steps}", 0))
        demand(done.returncode == 0, "the reference:", done.stderr.decode())
        return self.weights(f"reference-{steps}")


def announced(error):
    """The last step that a run said was saved."""
    found = re.findall(r"^saved \S+ at step (\d+)$", error, re.MULTILINE)
    return int(found[-1]) if found else 0


def kills(place, chooser, count):
    """One training, killed at random moments while it saves all the time."""
    said = 0
    for n in range(count):
        place.configure(decoupled=n % 2 == 1)
        with open(place.path / "error.txt", "wb") as error:
            run = subprocess.Popen(place.command(10**6, "killed", 1, "killed.jsonl"),
                                   cwd=place.path, stdout=subprocess.DEVNULL, stderr=error)
            time.sleep(chooser.uniform(0.02, 0.5))
            run.send_signal(signal.SIGKILL)
            run.wait()
        demand(run.returncode == -signal.SIGKILL, "ended by itself:",
               (place.path / "error.txt").read_text())
        said = max(said, announced((place.path / "error.txt").read_text()))
        if said == 0 and not place.has_checkpoint("killed"):
            continue
        step = place.whole_step("killed")
        demand(step >= said, "kill", n, ": step", said, "was said to be saved, there is", step)
        place.drop_old("killed")
    last = place.whole_step("killed") + 2
    done = place.run(place.command(last, "killed", 0, "killed.jsonl"))
    demand(done.returncode == 0, "after the kills:", done.stderr.decode())
    left = [p.name for p in (place.path / "killed").iterdir() if p.name.startswith(".")]
    demand(left == [], "leftovers:", left)
    demand(place.weights("killed") == place.reference(last), "other weights after the kills")
    steps = [json.loads(line)["step"]
             for line in (place.path / "killed.jsonl").read_text().splitlines()]
    demand(steps == list(range(1, last + 1)), "the record repeats or lacks steps")
    return f"{count} kills, {last} steps, weights equal to the bit"


def errors(place, chooser, count):
    """A resumed run of which one call fails: every call once, or `count` of them."""
    place.configure(False)
    first = place.run(place.command(2, "origin", 0))
    demand(first.returncode == 0, first.stderr.decode())
    reference = place.reference(6)
    environment = dict(os.environ, LD_PRELOAD=SHIM, IO_FAULTS_COUNT=str(place.path / "count"))

    def attempt(at, number):
        shutil.rmtree(place.path / "out", ignore_errors=True)
        shutil.copytree(place.path / "origin", place.path / "out")
        return place.run(place.command(6, "out", 2, "out/m.jsonl"), env=dict(
            environment, IO_FAULTS_FOLDER=str(place.path / "out"), IO_FAULTS_AT=str(at),
            IO_FAULTS_ERRNO=str(number)))

    totals, failed = [], 0
    for decoupled in (False, True):
        place.configure(decoupled)
        demand(attempt(0, 0).returncode == 0, "no call fails, but the run")
        totals.append(int((place.path / "count").read_text().split()[0]))
        demand(totals[-1] > 20, "the shim sees only", totals[-1], "calls")
    cases = [(d, at) for d in (False, True) for at in range(1, totals[d] + 1)]
    if count < len(cases):
        cases = chooser.sample(cases, count)
    for decoupled, at in cases:
        place.configure(decoupled)
        number = chooser.choice([errno.ENOSPC, errno.EIO])
        done = attempt(at, number)
        error = done.stderr.decode()
        what = f"call {at} of {totals[decoupled]} failing with {errno.errorcode[number]}" \
               f"{', decoupled' if decoupled else ''}: status {done.returncode}\n{error}"
        demand(done.returncode in (0, 1), what)
        demand(place.whole_step("out", "global_step2") == 2, "the first checkpoint is lost:", what)
        step = place.whole_step("out")
        demand(step >= max(2, announced(error)), "only step", step, "is there:", what)
        if done.returncode == 0:
            demand(step == 6 and place.weights("out") == reference, "not what it says:", what)
        else:
            failed += 1
            demand("ds: error: " in error, "no reason:", what)
            again = place.run(place.command(6, "out", 2))
            demand(again.returncode == 0 and place.weights("out") == reference,
                   "cannot go on:", what, again.stderr.decode())
    return f"{len(cases)} of {sum(totals)} calls failed, {failed} runs ended with 1, none in vain"


def stops(place, chooser, count):
    """Runs that are stopped and continued."""
    place.configure(False)
    reference = place.reference(40)
    for n in range(count):
        shutil.rmtree(place.path / "stopped", ignore_errors=True)
        run = subprocess.Popen(place.command(40, "stopped", 5), cwd=place.path,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(3):
            time.sleep(chooser.uniform(0, 0.1))
            run.send_signal(signal.SIGSTOP)
            time.sleep(chooser.uniform(0, 0.2))
            run.send_signal(signal.SIGCONT)
        _, error = run.communicate(timeout=300)
        demand(run.returncode == 0, "stop", n, ":", error.decode())
        demand(place.weights("stopped") == reference, "stop", n, ": other weights")
    return f"{count} runs stopped three times each, weights equal to the bit"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for kind in ("kills", "errors", "stops"):
        parser.add_argument(f"--{kind}", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    place = Place(options.seed)
    try:
        for kind in (kills, errors, stops):
            count = getattr(options, kind.__name__)
            if count > 0:
                begin = time.monotonic()
                text = kind(place, random.Random(options.seed), count)
                print(f"{kind.__name__}: {text} ({time.monotonic() - begin:.0f} s)", flush=True)
    except Wrong as wrong:
        print(f"wrong: {wrong}\nleft in {place.path}; repeat with --seed {options.seed}",
              file=sys.stderr)
        return 1
    shutil.rmtree(place.path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
