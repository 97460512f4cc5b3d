#!/usr/bin/env python3
"""Runs of `ds train` whose state, weights and activations lie in files, while those files fail.

Every call on the files is made to fail in turn (no room, an I/O error), to move half of its bytes,
or to find that the file has ended: a run either ends with an error that names the file and leaves a
checkpoint from which training goes on, or has the weights of one that nothing happened to. Runs
that are killed at random moments leave nothing in the folder, and files of other jobs there stay.
Where the machine permits io_uring and the kernel's older asynchronous I/O, calls that they carry fail
too. Of two ranks one's file fails: the other one learns at once which rank, which file and why.

By hand, every call with every error:
    DS_PROGRAM=build/dev/tools/ds DS_IO_FAULTS=build/dev/tests/faults/libio_faults.so \\
        tests/faults/swap.py --calls 0 --kills 50
"""
import argparse
import errno
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import ranks

PROGRAM = str(pathlib.Path(os.environ["DS_PROGRAM"]).resolve())
SHIM = os.environ.get("DS_IO_FAULTS", "")
MODEL = {"model_type": "gpt2", "vocab_size": 300, "n_positions": 64, "n_embd": 32, "n_layer": 2,
         "n_head": 2}
STEPS = 4
SAVED = 2  # the step of the checkpoint that runs begin from
# How a call fails: its name, the setting of the shim, and words of the error; none: the run is to go
# on, with the same bits.
FAULTS = {"no room": ({"IO_FAULTS_ERRNO": str(errno.ENOSPC)}, "No space left on device"),
          "I/O error": ({"IO_FAULTS_ERRNO": str(errno.EIO)}, "Input/output error"),
          "short": ({"IO_FAULTS_MOVES": "half"}, None),
          "ended": ({"IO_FAULTS_MOVES": "none"}, "")}


def config(folder):
    files = {"device": "nvme", "nvme_path": str(folder)}
    return {"train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "activation_checkpointing": {"enabled": True, "nvme_checkpointing": True,
                                         "nvme_path": str(folder)},
            "zero_optimization": {
                "stage": 3, "stage3_max_live_parameters": 10000, "stage3_prefetch_bucket_size": 4000,
                "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 5000,
                "offload_optimizer": {**files, "pipeline_read": True, "pipeline_write": True},
                "offload_param": {**files, "max_in_cpu": 0}}}


class Wrong(Exception):
    pass


def demand(condition, *what):
    if not condition:
        raise Wrong(" ".join(map(str, what)))


class Place:
    """A folder with a model, text, a folder for the files, and a checkpoint to begin from."""

    def __init__(self, seed):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="ds-swap-")).resolve()
        self.files = self.path / "files"
        self.files.mkdir()
        chooser = random.Random(seed)
        (self.path / "text.txt").write_text("".join(chooser.choices("abcdefgh ", k=8000)))
        (self.path / "model.json").write_text(json.dumps(MODEL))
        (self.path / "config.json").write_text(json.dumps(config(self.files)))
        done = self.train("--model", "model.json", "--steps", SAVED, "--save", "begun")
        demand(done.returncode == 0, "cannot train:", done.stderr.decode())
        self.expected = self.weights_after("--load", "begun")

    def train(self, *arguments, environment=None):
        return subprocess.run(self.command(*arguments), cwd=self.path, timeout=300,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**os.environ, **(environment or {})})

    @staticmethod
    def command(*arguments):
        return [PROGRAM, "train", *map(str, arguments), "--config", "config.json", "--data",
                "text.txt", "--split", "1", "--seed", "5", "--threads", "1", "--eval-interval", "0",
                "--log-interval", "1000000"]

    def weights_after(self, *arguments, environment=None):
        """Of a run to the last step, which is to succeed."""
        shutil.rmtree(self.path / "ended", ignore_errors=True)
        done = self.train(*arguments, "--steps", STEPS, "--save", "ended", environment=environment)
        demand(done.returncode == 0, "failed:", done.stderr.decode())
        return self.weights("ended")

    def weights(self, save):
        shutil.rmtree(self.path / "exported", ignore_errors=True)
        done = subprocess.run([PROGRAM, "export", save, "exported"], cwd=self.path,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
        demand(done.returncode == 0, "export:", done.stderr.decode())
        return (self.path / "exported/model.safetensors").read_bytes()

    def left(self):
        return sorted(entry.name for entry in self.files.iterdir())


# What carries reads and writes, and how the shim gets between.
CARRIERS = {"threads": {"DS_LIBAIO_LIBRARY": "off"}, "libaio": {"DS_LIBAIO_LIBRARY": SHIM},
            "io_uring": {"DS_LIBAIO_LIBRARY": "off", "IO_FAULTS_URING": "1"}}


def shim(place, at, more, carrier="threads"):
    """The environment of a run whose call number `at` fails."""
    return {"LD_PRELOAD": SHIM, "IO_FAULTS_FOLDER": str(place.files), "IO_FAULTS_AT": str(at),
            "IO_FAULTS_COUNT": str(place.path / "calls"), **CARRIERS[carrier], **more}


def fail_calls(place, chooser, most, carrier):
    """Each call that the files see fails once, or a sample of them."""
    alone = shim(place, 0, {}, carrier)
    demand(place.weights_after("--load", "begun", environment=alone) == place.expected,
           "the shim alone changes weights")
    calls, carried, _ = map(int, (place.path / "calls").read_text().split())
    if carrier != "threads" and carried == 0:
        print(f"{carrier} is not permitted here", flush=True)
        return
    demand(calls > 100, "only", calls, "calls")
    ended = 0
    for name, (more, words) in FAULTS.items():
        tried = range(1, calls + 1)
        if 0 < most < calls:
            # Those of the start, when files are made, and some of all others.
            tried = sorted({*range(1, min(9, most)), *chooser.sample(tried, most)})
        for at in tried:
            shutil.rmtree(place.path / "ended", ignore_errors=True)
            done = place.train("--load", "begun", "--steps", STEPS, "--save", "ended",
                               environment=shim(place, at, more, carrier))
            said = done.stderr.decode()
            what = f"{carrier}, {name} at call {at} of {calls}:"
            demand(done.returncode >= 0, what, "ended by signal", -done.returncode, said)
            demand(not place.left(), what, "left behind", place.left())
            if done.returncode == 0:
                demand(place.weights("ended") == place.expected, what, "weights differ")
                continue
            ended += 1
            demand(words is not None, what, "a short transfer is no error:", said)
            demand(words in said and str(place.files) in said, what,
                   "the error does not name the file and the reason:", said)
        print(f"{carrier}, {name}: {len(tried)} of {calls} calls, {carried} of them carried", flush=True)
    demand(place.weights_after("--load", "begun") == place.expected,
           "training does not go on from the checkpoint")
    demand(ended > 0, "no run failed")


# A rank that waits for another one does so for minutes, and the test for less.
WAIT_SECONDS = 100


def fail_a_rank(place, chooser, most, carrier):
    """Two ranks, the second one's files fail in the middle of a step."""
    command = place.command("--load", "begun", "--steps", STEPS, "--save", "ended", "--comm-config",
                            json.dumps({"timeout_seconds": 100 * WAIT_SECONDS}))

    def both(at, more):
        folder = place.path / "job"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name in ("text.txt", "config.json", "begun"):
            (folder / name).symlink_to(place.path / name)
        faulty = ["env", *(f"{key}={value}" for key, value in shim(place, at, more, carrier).items())]
        with ranks.Job([command, faulty + command], folder) as job:
            status = job.wait(WAIT_SECONDS)
            return status, [job.error(rank) for rank in range(2)]

    status, said = both(0, {})
    demand(status == {0: 0, 1: 0}, "two ranks do not train:", status, *said)
    calls, carried, _ = map(int, (place.path / "calls").read_text().split())
    if carrier != "threads" and carried == 0:
        return
    reason = {"no room": "No space left on device", "I/O error": "Input/output error",
              "ended": "ends at byte"}
    for name, words in reason.items():
        # The first calls make the files: what ranks do before the first step they do together.
        for at in sorted(chooser.sample(range(1, calls + 1), min(most, calls))):
            status, said = both(at, FAULTS[name][0])
            what = f"two ranks, {carrier}, {name} at call {at} of {calls}:"
            demand(None not in status.values(), what, "a rank waits:", status, *said)
            if status == {0: 0, 1: 0}:
                continue  # an end of a run that needs no files any more
            demand(0 not in status.values(), what, "a rank succeeds:", status, *said)
            demand(words in said[1] and str(place.files) in said[1], what,
                   "the rank does not name the file and the reason:", said[1])
            demand("rank 1" in said[0] and words in said[0] and str(place.files) in said[0], what,
                   "the other rank does not name rank, file and reason:", said[0])
            demand(not place.left(), what, "left behind", place.left())
    print(f"two ranks, {carrier}: {most} of {calls} calls of each kind", flush=True)


def kill(place, chooser, count):
    """Jobs that share the folder with another one's file, killed while they move state."""
    other = place.files / "of-another-job.state"
    other.write_bytes(b"kept")
    for n in range(count):
        run = subprocess.Popen(place.command("--load", "begun", "--steps", 10**6, "--save", "killed",
                                             "--save-interval", 10), cwd=place.path,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chooser.uniform(0.02, 0.6))
        run.send_signal(signal.SIGKILL)
        run.wait()
        demand(run.returncode == -signal.SIGKILL, "ended by itself")
        demand(place.left() == [other.name], f"kill {n} left behind", place.left())
        demand(other.read_bytes() == b"kept", "another job's file was changed")
        shutil.rmtree(place.path / "killed", ignore_errors=True)
    demand(place.weights_after("--load", "begun") == place.expected,
           "training does not go on from the checkpoint")
    other.unlink()
    print(f"killed {count} times", flush=True)


def lose_the_folder(place):
    """Files that are open need no folder; new ones do."""
    run = subprocess.Popen(place.command("--load", "begun", "--steps", STEPS, "--save", "ended",
                                         "--save-interval", 1, "--metrics", "steps.jsonl"),
                           cwd=place.path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    metrics = place.path / "steps.jsonl"
    while run.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.01)
    shutil.rmtree(place.files)
    said = run.communicate(timeout=300)[1].decode()
    demand(run.returncode == 0, "a folder that goes during the run ends it:", said)
    demand(place.weights("ended") == place.expected, "weights differ without the folder")
    done = place.train("--load", "begun", "--steps", STEPS, "--save", "never")
    said = done.stderr.decode()
    demand(done.returncode != 0 and str(place.files) in said and "nvme_path" in said,
           "a folder that is not there:", said)
    place.files.mkdir()
    print("the folder went", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=30, help="tried of each kind; 0: all")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"--seed {options.seed}", flush=True)
    chooser = random.Random(options.seed)
    place = Place(options.seed)
    try:
        lose_the_folder(place)
        kill(place, chooser, options.kills)
        for carrier in CARRIERS if SHIM else ():
            few = options.calls if carrier == "threads" else (options.calls + 2) // 3
            fail_calls(place, chooser, few, carrier)
            fail_a_rank(place, chooser, max(1, few // 4), carrier)
    except Wrong as wrong:
        print(f"FAILED: {wrong}", flush=True)
        return 1
    finally:
        shutil.rmtree(place.path, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
