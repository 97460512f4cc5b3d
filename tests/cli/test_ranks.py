"""`ds train` by several processes: the environment of a launcher makes them one group."""

import json
import os
import socket
import subprocess
import unittest

from cli_case import CliCase


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ranks(CliCase):
    def path(self, name):
        return str(self.folder / name)

    def launch(self, world, arguments, variables):
        port = free_port()
        processes = []
        for rank in range(world):
            environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            environment.update({key: str(value) for key, value in variables(rank, world).items()})
            processes.append(
                subprocess.Popen([os.environ["DS_PROGRAM"], *arguments], env=environment, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        out = [p.communicate(timeout=120) for p in processes]
        return [(p.returncode, *texts) for p, texts in zip(processes, out)]

    def files(self, stage):
        model = self.path("model.json")
        with open(model, "w") as f:
            json.dump({"model_type": "gpt2", "vocab_size": 257, "n_positions": 32, "n_embd": 32,
                       "n_layer": 2, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0,
                       "attn_pdrop": 0}, f)
        data = self.path("text.txt")
        with open(data, "w") as f:
            f.write("the quick brown fox jumps over the lazy dog. " * 200)
        config = self.path(f"config{stage}.json")
        with open(config, "w") as f:
            json.dump({"train_batch_size": 4, "zero_optimization": {
                "stage": stage, "stage3_param_persistence_threshold": 40},
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}, f)
        return ["train", "--model", model, "--data", data, "--config", config, "--steps", "3",
                "--sequence-length", "16", "--threads", "1", "--eval-interval", "0"]

    def losses(self, path):
        with open(path) as f:
            return [json.loads(line)["loss"] for line in f]

    def test_every_launcher_and_stage(self):
        torchrun = lambda r, n: {"RANK": r, "WORLD_SIZE": n, "LOCAL_RANK": r, "LOCAL_WORLD_SIZE": n}
        mpi = lambda r, n: {"OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_SIZE": n,
                            "OMPI_COMM_WORLD_LOCAL_RANK": r, "OMPI_COMM_WORLD_LOCAL_SIZE": n}
        slurm = lambda r, n: {"SLURM_PROCID": r, "SLURM_NTASKS": n, "SLURM_LOCALID": r,
                              "SLURM_NODEID": 0, "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": n}
        alone = None
        for world, stage, launcher in [(1, 0, torchrun), (2, 0, torchrun), (2, 2, mpi),
                                       (2, 3, slurm)]:
            name = f"metrics-{world}-{stage}.jsonl"
            save = self.path(f"save-{world}-{stage}")
            arguments = self.files(stage) + ["--metrics", self.path(name), "--save", save]
            for status, out, err in self.launch(world, arguments, launcher):
                self.assertEqual(status, 0, err)
            losses = self.losses(self.path(name))
            self.assertEqual(len(losses), 3)
            alone = alone or losses
            for mine, one in zip(losses, alone):
                self.assertAlmostEqual(mine, one, delta=1e-5 * one)
            # Whatever saved it, one process goes on with it.
            more = self.files(0) + ["--load", save, "--metrics", self.path("more" + name)]
            more[more.index("--steps") + 1] = "4"
            more = [a for i, a in enumerate(more) if a != "--model" and more[i - 1] != "--model"]
            status, out, err = self.launch(1, more, torchrun)[0]
            self.assertEqual(status, 0, err)

    def test_partial_environment_is_an_error(self):
        results = self.launch(1, self.files(0), lambda r, n: {"RANK": 0, "WORLD_SIZE": 2})
        self.assertNotEqual(results[0][0], 0)
        self.assertIn("LOCAL_RANK", results[0][2])


if __name__ == "__main__":
    unittest.main()
