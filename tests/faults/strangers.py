"""200 strangers at the ports of a job of four ranks, before it starts and while it runs: garbage, huge
headers, silence, one byte at a time, replayed sessions, and a real `ds` that does not know the secret.
The job must do to the bit what it does alone. Prints how much later it starts for them.

    strangers.py --tries 5 --bound 2    # fails when the median of the delays is 2 s or more
"""
import argparse
import json
import secrets
import statistics
import subprocess
import sys
import time

from ranks import Job, Scratch, place
from stranger import FINE, OTHER_SECRET, Crowd, put, quiet_port, session

WORLD = 4
STEPS = 8


def command(scratch, folder, transport, seconds=120):
    return scratch.train(2, STEPS, "--metrics", folder / "metrics.jsonl", "--save", folder / "saved",
                         comm={"transport": transport, "rendezvous_timeout_seconds": seconds})


def result(folder):
    """Losses and gradients of every step, and the bytes of the saved weights."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    steps = [{key: json.loads(line)[key] for key in ("step", "loss", "grad_norm")} for line in lines]
    weights = sorted((file.name, file.read_bytes())
                     for file in (folder / "saved").rglob("data-*") if file.is_file())
    assert len(steps) == STEPS and weights, folder
    return steps, weights


def run(scratch, name, transport, secret, port, crowd=None):
    """The result of one job, and seconds from its start to its first step."""
    folder = scratch.folder(name)
    began = time.monotonic()
    # One rank after the other, so that strangers have time to gather around rank 0.
    with Job([command(scratch, folder, transport)] * WORLD, folder, port=port, secret=secret,
             pause=lambda: 0.3) as job:
        if crowd:
            crowd.processes = lambda: [p.pid for p in list(job.processes.values())]
        first = None
        while first is None and time.monotonic() < began + 200:
            if (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size:
                first = time.monotonic() - began
            if all(status is not None for status in job.wait(0.01).values()):
                break
        for rank, status in job.wait(200).items():
            assert status == 0, f"rank {rank}: {status}: {job.error(rank)}"
    return result(folder), first or 0.0


def record(scratch, secret):
    """What a rank says that knows the secret, for strangers to repeat."""
    port, folder = quiet_port(), scratch.folder("record")
    with Job([command(scratch, folder, "sockets")] * WORLD, folder, port=port, order=[0],
             secret=secret) as job:
        end = time.monotonic() + 60
        while True:
            try:
                connection, key, said, status = session(port, secret.encode(), "", 1, WORLD)
                break
            except OSError:
                assert time.monotonic() < end and job.wait(0)[0] is None, job.error(0)
                time.sleep(0.05)
        assert status == FINE
        # A rank writes its own keys only.
        assert put(connection, key, 0, b"ds//1/0", b"+")[0] not in (FINE, None)
        # And what it says counts once.
        accepted, message = put(connection, key, 1, b"replayed/1", b"value")
        assert accepted == FINE
        connection.sendall(message)
        assert connection.recv(1) == b""
        # Without the secret there is no place in the group, and nothing is told.
        assert session(port, b"", "", 2, WORLD)[3] == OTHER_SECRET
        assert session(port, b"a guess at the secret", "", 2, WORLD)[3] == OTHER_SECRET
    return [said, said + message]


def attempt(scratch, number, transport, secret, replays, size):
    """Seconds by which strangers delay the start."""
    alone, first_alone = run(scratch, f"alone-{number}", transport, secret, quiet_port())
    port = quiet_port()
    crowd = Crowd(size, port, WORLD, replays)
    foreign_folder = scratch.folder(f"foreign-{number}")
    environment = {**place(1, WORLD, port), "DS_JOB_TOKEN": ""}
    foreign = subprocess.Popen(command(scratch, foreign_folder, transport, 15), env=environment,
                               cwd=foreign_folder, stderr=subprocess.PIPE, text=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        time.sleep(0.3)
        disturbed, first = run(scratch, f"disturbed-{number}", transport, secret, port, crowd)
    finally:
        crowd.stop()
        error = foreign.communicate(timeout=120)[1]
    assert disturbed == alone, "strangers changed what the job computes"
    assert foreign.returncode != 0 and "rank 0 could not be reached" in error, error
    print(f"{number + 1}: {transport}: {crowd.came} strangers came; first step after {first:.2f} s, "
          f"alone after {first_alone:.2f} s", flush=True)
    return first - first_alone


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=2)
    parser.add_argument("--strangers", type=int, default=200)
    parser.add_argument("--bound", type=float, help="seconds that the median of the delays may have")
    options = parser.parse_args()
    secret = secrets.token_hex(32)
    with Scratch() as scratch:
        replays = record(scratch, secret)
        delays = [attempt(scratch, number, ("auto", "sockets")[number % 2], secret, replays,
                          options.strangers) for number in range(options.tries)]
    median = statistics.median(delays)
    print(f"median delay {median:.2f} s")
    return 1 if options.bound is not None and median >= options.bound else 0


if __name__ == "__main__":
    sys.exit(main())
