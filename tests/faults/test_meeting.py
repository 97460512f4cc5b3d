"""Ranks that start in any order, do not come, share a host with another job, call something else,
or have fewer batches than others."""
import json
import random
import subprocess
import unittest

from ranks import CLIENT, PROGRAM, Job, Scratch

WORLD = 4


class Meeting(unittest.TestCase):
    def setUp(self):
        self.scratch = Scratch()
        self.addCleanup(self.scratch.__exit__)

    def losses(self, path):
        return [json.loads(line)["loss"] for line in path.read_text().splitlines()]

    def run_job(self, name, steps=3, **how):
        folder = self.scratch.folder(name)
        command = self.scratch.train(2, steps, "--metrics", folder / "metrics.jsonl",
                                     comm={"rendezvous_timeout_seconds": 100})
        with Job([command] * WORLD, folder, **how) as job:
            status = job.wait(100)
            for rank in range(WORLD):
                self.assertEqual(status[rank], 0, job.error(rank))
        return self.losses(folder / "metrics.jsonl")

    def test_ranks_start_in_any_order(self):
        expected = self.run_job("together")
        self.assertEqual(len(expected), 3)
        order = random.sample(range(WORLD), WORLD)
        got = self.run_job("scattered", order=order, pause=lambda: random.random() * 1.2)
        self.assertEqual(got, expected, order)

    def test_a_rank_that_does_not_come_is_named(self):
        for withheld in (0, 2):
            for transport in ("shm", "sockets"):
                folder = self.scratch.folder(f"withheld-{withheld}-{transport}")
                command = self.scratch.train(0, 3, comm={"rendezvous_timeout_seconds": 3,
                                                         "transport": transport})
                with Job([command] * WORLD, folder,
                         order=[rank for rank in range(WORLD) if rank != withheld]) as job:
                    for rank, status in job.wait(60).items():
                        self.assertNotIn(status, (None, 0))
                        self.assertIn(f"rank {withheld}", job.error(rank))

    def test_two_jobs_on_a_host(self):
        alone = {seed: self.job_output(self.begin_job(f"alone-{seed}", seed)) for seed in (1, 2)}
        self.assertNotEqual(alone[1], alone[2])
        both = [self.begin_job(f"both-{seed}", seed) for seed in (1, 2)]
        for seed, job in zip((1, 2), both):
            self.assertEqual(self.job_output(job), alone[seed])

    def begin_job(self, name, seed):
        folder = self.scratch.folder(name)
        command = self.scratch.train(3, 5, "--metrics", folder / "metrics.jsonl")
        command[command.index("--seed") + 1] = str(seed)
        job = subprocess.Popen([PROGRAM, "launch", "-n", "2", "--", *command], cwd=folder,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(job.stdout.close)
        self.addCleanup(job.kill)
        return folder, job

    def job_output(self, begun):
        folder, job = begun
        text, _ = job.communicate(timeout=100)
        self.assertEqual(job.returncode, 0, text)
        return self.losses(folder / "metrics.jsonl")

    def clients(self, name, *arguments, status=0):
        folder = self.scratch.folder(name)
        with Job([[*CLIENT, *arguments]] * WORLD, folder) as job:
            for rank, ended in job.wait(60).items():
                self.assertEqual(ended, status, job.output(rank) + job.error(rank))
            return [job.output(rank) for rank in range(WORLD)]

    def test_fewer_batches(self):
        for rank, text in enumerate(self.clients("batches", "batches", "3,3,3,5")):
            seen = [4, 4, 4, 1, 1] if rank == 3 else [4, 4, 4]
            self.assertEqual(text, f"sums {seen} 4\n")

    def test_a_rank_that_calls_something_else_is_named(self):
        called = {"shape": "all_reduce(sum) of 7 float32", "order": "broadcast of 8 float32"}
        for kind, call in called.items():
            for text in self.clients(kind, "mismatch", kind, status=1):
                self.assertIn(f"rank 2 called {call}", text)
                self.assertIn("while ranks 0, 1, 3 called all_reduce(sum) of 8 float32", text)

    def test_a_rank_with_another_model_is_named(self):
        self.scratch.model("other.json", 48)
        folder = self.scratch.folder("models")
        commands = [self.scratch.train(stage, 3, comm={"timeout_seconds": 20},
                                       model="other.json" if rank == 1 else "model.json")
                    for rank in range(WORLD) for stage in (2,)]
        with Job(commands, folder) as job:
            for rank, status in job.wait(60).items():
                self.assertNotIn(status, (None, 0))
                self.assertIn("rank 1", job.error(rank))


if __name__ == "__main__":
    unittest.main(verbosity=2)
