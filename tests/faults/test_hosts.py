"""Two network namespaces joined by a wire stand for two hosts: two ranks on each find by themselves
that they share memory within a host and not across, and train to the bits of four ranks on one.

Needs root, unshare and nsenter (util-linux) and ip (iproute2); ends with 77 and says why where it
may not make namespaces.
"""
import json
import os
import shutil
import subprocess
import sys
import unittest

from ranks import PROGRAM, Job, Scratch, free_port

SKIPPED = 77
ADDRESSES = ["10.213.7.1", "10.213.7.2"]


class Hosts:
    """Processes that keep the namespaces alive. The kernel takes all back when they end."""

    def __init__(self):
        # The name of the host is what tells them apart; they share processes, files and boot.
        self.holders = [subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c",
             f"echo ds-host-{i} > /proc/sys/kernel/hostname && echo ready && exec sleep 600"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in range(2)]
        try:
            for holder in self.holders:
                if holder.stdout.readline() != "ready\n":
                    raise OSError(holder.stderr.read().strip() or "unshare failed")
            self.ip(0, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns",
                    str(self.holders[1].pid))
            for host, address in enumerate(ADDRESSES):
                self.ip(host, "address", "add", f"{address}/24", "dev", "wire")
                self.ip(host, "link", "set", "wire", "up")
                self.ip(host, "link", "set", "lo", "up")
        except OSError:
            self.end()
            raise

    def inside(self, host, command):
        return ["nsenter", "--net", "--uts", "-t", str(self.holders[host].pid), *command]

    def ip(self, host, *arguments):
        done = subprocess.run(self.inside(host, ["ip", *arguments]), capture_output=True, text=True)
        if done.returncode != 0:
            raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    def end(self):
        for holder in self.holders:
            holder.kill()
            holder.communicate()


def make_hosts():
    missing = [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]
    if missing:
        raise OSError(f"no {', '.join(missing)} here")
    if os.geteuid() != 0:
        raise OSError("only root makes network namespaces")
    return Hosts()


class TwoHosts(unittest.TestCase):
    def setUp(self):
        self.scratch = Scratch()
        self.addCleanup(self.scratch.__exit__)

    def run_ranks(self, name, command, hosts=None):
        """Four ranks; with `hosts` two on each."""
        folder = self.scratch.folder(name)
        commands = []
        for rank in range(4):
            own = [*command, "--metrics", str(folder / "metrics.jsonl"), "--save",
                   str(folder / "save")] if command[1] == "train" else command
            if hosts:
                own = hosts.inside(rank // 2, ["env", f"LOCAL_RANK={rank % 2}",
                                               "LOCAL_WORLD_SIZE=2", f"MASTER_ADDR={ADDRESSES[0]}",
                                               *own])
            commands.append(own)
        with Job(commands, folder, port=free_port()) as job:
            for rank, status in job.wait(100).items():
                self.assertEqual(status, 0, job.error(rank))
            return folder, job.output(0)

    def trained(self, folder):
        """Losses, and the weights' bytes."""
        losses = [json.loads(line)["loss"] for line in
                  (folder / "metrics.jsonl").read_text().splitlines()]
        subprocess.run([PROGRAM, "export", str(folder / "save"), str(folder / "out")], check=True,
                       capture_output=True)
        return losses, (folder / "out" / "model.safetensors").read_bytes()

    def test_ranks_choose_their_transport(self):
        command = [PROGRAM, "bench", "comm", "--largest", "20000", "--repeats", "1", "--json"]
        for hosts, name in [(HOSTS, "hierarchical"), (None, "shm")]:
            report = json.loads(self.run_ranks(name, command, hosts)[1])
            self.assertEqual((report["ranks"], report["transport"]), (4, name))

    def test_two_hosts_train_to_the_bits_of_one(self):
        for stage in (2, 3):
            command = self.scratch.train(stage, 4)
            one, _ = self.run_ranks(f"one-{stage}", command)
            two, _ = self.run_ranks(f"two-{stage}", command, HOSTS)
            losses, weights = self.trained(one)
            self.assertEqual(len(losses), 4)
            self.assertEqual(self.trained(two), (losses, weights))

    def test_a_host_whose_wire_is_cut_is_named(self):
        folder = self.scratch.folder("cut")
        command = self.scratch.train(2, 1000000, "--metrics", folder / "metrics.jsonl",
                                     comm={"timeout_seconds": 4})
        commands = [HOSTS.inside(rank // 2, [
            "env", f"LOCAL_RANK={rank % 2}", "LOCAL_WORLD_SIZE=2", f"MASTER_ADDR={ADDRESSES[0]}",
            *command]) for rank in range(4)]
        metrics = folder / "metrics.jsonl"
        with Job(commands, folder, port=free_port()) as job:
            while not (metrics.exists() and metrics.stat().st_size > 0):
                self.assertFalse(any(job.wait(0.05).values()), job.error(0))
            HOSTS.ip(0, "link", "set", "wire", "down")
            try:
                for rank, status in job.wait(60).items():
                    self.assertNotIn(status, (None, 0))
                    others = [r for r in range(4) if r // 2 != rank // 2]
                    self.assertTrue(any(f"{r}" in job.error(rank) for r in others), job.error(rank))
                    self.assertIn("did not arrive within 4 s", job.error(rank))
            finally:
                HOSTS.ip(0, "link", "set", "wire", "up")


if __name__ == "__main__":
    try:
        HOSTS = make_hosts()
    except OSError as error:
        print(f"skipped: no two hosts: {error}")
        sys.exit(SKIPPED)
    try:
        result = unittest.main(verbosity=2, exit=False).result
    finally:
        HOSTS.end()
    sys.exit(0 if result.wasSuccessful() else 1)
