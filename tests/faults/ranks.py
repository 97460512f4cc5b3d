"""What the tests of failures share: processes that are ranks of one job, and how they ended.

DS_PROGRAM, DS_LIBRARY and DS_SOURCE name the program, libds.so and the checkout.
"""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

PROGRAM = os.environ["DS_PROGRAM"]
SOURCE = pathlib.Path(os.environ["DS_SOURCE"])
CLIENT = [sys.executable, "-S", str(pathlib.Path(__file__).with_name("client.py"))]


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def place(rank, world, port, secret=None):
    """The environment that a launcher gives to a rank."""
    unset = ("DS_MASTER_PORT", "DS_MASTER_FD", "DS_FAILURE_FD", "DS_JOB_TOKEN", "DS_JOB_TOKEN_FILE",
             "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE")
    clean = {key: value for key, value in os.environ.items() if key not in unset}
    if secret is not None:
        clean["DS_JOB_TOKEN"] = secret
    return {**clean, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


class Job:
    """Ranks of one job, each in a session of its own; at its end none of them is left."""

    def __init__(self, commands, folder, port=None, order=None, pause=lambda: 0, secret=None):
        """`commands`: by rank. `order`: in which they start, with pause() seconds before each;
        ranks that it leaves out never come. `secret`: of the job."""
        self.world = len(commands)
        self.folder = pathlib.Path(folder)
        self.processes = {}
        port = port or free_port()
        for rank in range(self.world) if order is None else order:
            time.sleep(pause())
            with open(self.folder / f"{rank}.out", "wb") as out, \
                 open(self.folder / f"{rank}.err", "wb") as err:
                self.processes[rank] = subprocess.Popen(
                    commands[rank], env=place(rank, self.world, port, secret), cwd=folder, stdout=out,
                    stderr=err, stdin=subprocess.DEVNULL, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    def error(self, rank):
        return (self.folder / f"{rank}.err").read_text(errors="replace")

    def output(self, rank):
        return (self.folder / f"{rank}.out").read_text(errors="replace")

    def wait(self, seconds, ranks=None):
        """Waits for these ranks; gives the status of each, None for one that still runs."""
        end = time.monotonic() + seconds
        ranks = list(self.processes) if ranks is None else ranks
        for rank in ranks:
            try:
                self.processes[rank].wait(max(0.01, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
        return {rank: self.processes[rank].poll() for rank in ranks}

    def left(self):
        """Processes in the sessions of the ranks."""
        sessions = {process.pid for process in self.processes.values()}
        found = []
        for entry in os.listdir("/proc"):
            try:
                fields = pathlib.Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            if entry.isdigit() and fields[0] != "Z" and int(fields[3]) in sessions:
                found.append(int(entry))
        return found


class Scratch:
    """A folder with what `ds train` needs: a small model, text, a configuration by stage."""

    def __init__(self):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="ds-faults-"))
        shutil.copy(SOURCE / "LICENSE", self.path / "text.txt")
        self.model("model.json", 32)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)

    def folder(self, name):
        (self.path / name).mkdir(exist_ok=True)
        return self.path / name

    def model(self, name, width):
        (self.path / name).write_text(json.dumps(
            {"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": width,
             "n_layer": 2, "n_head": 2}))

    def train(self, stage, steps, *more, model="model.json", comm=None):
        config = self.path / f"stage{stage}.json"
        config.write_text(json.dumps(
            {"train_batch_size": 4, "zero_optimization": {
                "stage": stage, "stage3_param_persistence_threshold": 40,
                "reduce_bucket_size": 4000},
             "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}))
        return [PROGRAM, "train", "--model", str(self.path / model), "--config", str(config),
                "--data", str(self.path / "text.txt"), "--steps", str(steps), "--seed", "7",
                "--threads", "1", "--sequence-length", "16", "--eval-interval", "0",
                "--comm-config", json.dumps(comm or {}), *map(str, more)]
