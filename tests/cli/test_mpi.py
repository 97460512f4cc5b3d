"""Real mpirun: `ds train` over the default transport and over MPI, and `ds bench comm`."""
import json
import os
import signal
import subprocess
import time
import unittest

from cli_case import PROGRAM, CliCase, train_arguments

MPI = {"transport": "mpi"}
BETWEEN_NODES = {"transport": "hierarchical", "across": "mpi", "ranks_per_node": 1}


class Mpirun(CliCase):
    def command(self, ranks, *arguments, program=PROGRAM):
        command = [os.environ["DS_MPIRUN"], "--oversubscribe", "--bind-to", "none", "--mca", "btl",
                   "self,vader,tcp", "--mca", "btl_tcp_if_include", "lo", "-n", str(ranks), program,
                   *map(str, arguments)]
        if os.geteuid() == 0:
            command.insert(1, "--allow-run-as-root")
        return command

    def mpirun(self, ranks, *arguments, status=0, program=PROGRAM, **variables):
        done = subprocess.run(self.command(ranks, *arguments, program=program), cwd=self.folder, timeout=120,
                              stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, env={**os.environ, **variables})
        self.assertEqual(done.returncode == 0, status == 0, done.stdout + done.stderr)
        return done

    def test_training_gives_the_same_bits_over_every_transport(self):
        config = {"train_batch_size": 4, "zero_optimization": {"stage": 2},
                  "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
        self.write("config.json", config)
        rows = []
        for transport in [None, MPI, BETWEEN_NODES]:
            more = [] if transport is None else ["--comm-config", json.dumps(transport)]
            self.mpirun(2, *train_arguments(4), "--threads", 1, "--metrics", "metrics.jsonl",
                        "--save", f"save-{len(rows)}", *more)
            rows.append([(row["step"], row["loss"]) for row in self.metrics("metrics.jsonl")])
            os.remove(self.folder / "metrics.jsonl")
        self.assertEqual(len(rows[0]), 4)
        self.assertEqual(rows[0], rows[1])
        self.assertEqual(rows[0], rows[2])
        self.assertEqual(self.weights("save-0"), self.weights("save-1"))
        self.assertEqual(self.weights("save-0"), self.weights("save-2"))

    def test_the_example_at_stage_three_goes_on_with_other_ranks(self):
        for ranks, before in ((3, 0), (2, 5)):
            done = self.mpirun(ranks, "text.txt", before + 5, "zero3", program=os.environ["DS_EXAMPLE_ZERO3"])
            self.assertIn(f"after step {before}: {ranks} processes, ZeRO stage 3", done.stdout)
        self.assertIn("global_step10", self.ds("inspect", "zero3", "--verify").text)

    def test_a_stopped_rank_is_named(self):
        options = {**MPI, "timeout_seconds": 5}
        job = subprocess.Popen(
            self.command(3, *train_arguments(1000000), "--threads", 1, "--metrics", "m.jsonl",
                         "--comm-config", json.dumps(options)),
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True)
        self.addCleanup(job.kill)
        metrics, end = self.folder / "m.jsonl", time.monotonic() + 60
        while not (metrics.exists() and metrics.stat().st_size > 0):
            self.assertIsNone(job.poll())
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        with open(f"/proc/{job.pid}/task/{job.pid}/children") as file:
            ranks = [int(process) for process in file.read().split()]
        self.assertEqual(len(ranks), 3)
        os.kill(ranks[1], signal.SIGSTOP)  # mpirun starts them in order
        error = job.communicate(timeout=60)[1]
        self.assertNotEqual(job.returncode, 0)
        # mpirun ends all as soon as the first has said so; the stopped one may wake up and repeat it.
        self.assertIn("rank 1 did not arrive within 5 s", error)

    def test_speed_of_collectives(self):
        for transport, name in [(MPI, "mpi"), (BETWEEN_NODES, "hierarchical")]:
            done = self.mpirun(2, "bench", "comm", "--largest", 20000, "--repeats", 2, "--json",
                               "--comm-config", json.dumps(transport))
            report = json.loads(done.stdout)
            self.assertEqual((report["ranks"], report["transport"]), (2, name))

    def test_ranks_that_no_mpi_has_started(self):
        done = self.ds("launch", "-n", 2, "--", PROGRAM, "bench", "comm", "--largest", 20000,
                       "--comm-config", json.dumps(MPI), status=1)
        self.assertRegex(done.error, r"torchrun says rank \d of 2, and MPI rank 0 of 1; start the "
                                     "ranks with mpirun")

    def test_without_the_plugin(self):
        done = self.mpirun(1, "bench", "comm", "--comm-config", json.dumps(MPI), status=1,
                           DS_MPI_PLUGIN="/nowhere/libds_mpi.so")
        self.assertIn("MPI needs the plug-in libds_mpi.so", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
