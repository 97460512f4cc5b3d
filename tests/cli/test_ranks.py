"""`ds train` by several processes: the environment of a launcher makes them one group."""

import json
import os
import random
import signal
import socket
import subprocess
import time
import unittest

from cli_case import CliCase


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ranks(CliCase):
    def path(self, name):
        return str(self.folder / name)

    def start(self, world, arguments, variables):
        port = free_port()
        processes = []
        for rank in range(world):
            environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            environment.update({key: str(value) for key, value in variables(rank, world).items()})
            processes.append(
                subprocess.Popen([os.environ["DS_PROGRAM"], *arguments], env=environment, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return processes

    def launch(self, world, arguments, variables):
        processes = self.start(world, arguments, variables)
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

    def test_saving_beside_the_training(self):
        """Every process writes its copy while it trains; what is there in the end is what a run that
        waits for its saves leaves."""
        variables = lambda r, n: {"RANK": r, "WORLD_SIZE": n, "LOCAL_RANK": r, "LOCAL_WORLD_SIZE": n}
        folders = {}
        for decoupled in (False, True):
            save = folders[decoupled] = self.path(f"save-{decoupled}")
            arguments = self.files(2) + [
                "--save", save, "--save-interval", "1", "--set",
                f"checkpoint.writer.decoupled={str(decoupled).lower()}"]
            for status, _, err in self.launch(2, arguments, variables):
                self.assertEqual(status, 0, err)
        self.assertEqual(self.weights(folders[True]), self.weights(folders[False]))
        for step in range(1, 4):
            files = [sorted(os.listdir(os.path.join(folder, f"global_step{step}")))
                     for folder in folders.values()]
            self.assertEqual(files[0], files[1])
            self.assertIn("data-00001.bin", files[0])
            one, other = (open(os.path.join(folder, f"global_step{step}", "data-00001.bin"), "rb").read()
                          for folder in folders.values())
            self.assertEqual(one, other)

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

    def test_the_agent_of_torchrun_holds_the_port(self):
        """torchrun's own store listens at MASTER_PORT: the ranks meet at one of the next ports."""
        with socket.socket() as agent:
            agent.bind(("127.0.0.1", 0))
            agent.listen()
            port = agent.getsockname()[1]
            variables = lambda r, n: {
                "RANK": r, "WORLD_SIZE": n, "LOCAL_RANK": r, "LOCAL_WORLD_SIZE": n,
                "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "ROLE_RANK": r, "ROLE_WORLD_SIZE": n,
                "ROLE_NAME": "default", "MASTER_ADDR": "localhost", "MASTER_PORT": port,
                "TORCHELASTIC_RUN_ID": "7f0c", "TORCHELASTIC_RESTART_COUNT": 0,
                "TORCHELASTIC_MAX_RESTARTS": 0, "TORCHELASTIC_USE_AGENT_STORE": "True",
                "OMP_NUM_THREADS": 1}
            arguments = self.files(2) + ["--metrics", self.path("agent.jsonl")]
            for status, _, err in self.launch(2, arguments, variables):
                self.assertEqual(status, 0, err)
        self.assertEqual(len(self.losses(self.path("agent.jsonl"))), 3)

    def test_gpus(self):
        """--device cuda: NCCL, and a GPU for each rank; or every rank says what is missing."""
        gpus = len(json.loads(self.ds("report", "--json").text)["gpu"]["devices"])
        arguments = self.files(2) + ["--device", "cuda", "--metrics", self.path("gpus.jsonl")]
        launch = ["launch", "-n", 2, "--", os.environ["DS_PROGRAM"], *arguments]
        if gpus >= 2:
            self.ds(*launch)
            self.assertEqual(len(self.losses(self.path("gpus.jsonl"))), 3)
            return
        error = self.ds(*launch, status=1).error
        if gpus == 1:
            self.assertIn("are on one GPU", error)
            return
        self.assertIn('transport "nccl" needs a GPU', error)
        # Alone, and over what was asked for, the GPU is what is missed.
        for options in (["--comm-config", '{"transport": "nccl"}'], []):
            self.assertIn("cuda:0 cannot be used", self.ds(*arguments, *options, status=1).error)
        launch += ["--comm-config", '{"transport": "shm"}']
        self.assertIn("cuda:0 cannot be used", self.ds(*launch, status=1).error)

    def test_several_nodes(self):
        """Four ranks pretend to sit on two nodes; each key moves fewer bytes between these."""
        variants = {
            "plain": {},
            "quantized weights": {"zero_quantized_weights": True},
            "second shards": {"zero_hpz_partition_size": 2},
            "all of ZeRO++": {"zero_quantized_weights": True, "zero_hpz_partition_size": 2,
                              "zero_quantized_gradients": True, "zeropp_loco_param": {}},
            "MiCS": {"mics_shard_size": 2},
        }
        sent, losses = {}, {}
        for name, keys in variants.items():
            metrics = self.path(f"{name}.jsonl")
            save = self.path(f"save {name}")
            arguments = self.files(3) + ["--metrics", metrics, "--save", save,
                                         "--comm-config", '{"ranks_per_node": 2}']
            config = self.path("config3.json")
            with open(config) as f:
                content = json.load(f)
            content["bf16"] = {"enabled": True}
            # Weights are gathered again for backward.
            content["zero_optimization"].update(
                keys, reduce_bucket_size=9000, stage3_max_live_parameters=20000,
                stage3_max_reuse_distance=0)
            with open(config, "w") as f:
                json.dump(content, f)
            self.ds("launch", "-n", 4, "--", os.environ["DS_PROGRAM"], *arguments)
            with open(metrics) as f:
                lines = [json.loads(line) for line in f]
            self.assertGreater(lines[1]["sent_within_node"], 0)
            sent[name] = lines[1]["sent_across_nodes"]
            losses[name] = lines[2]["loss"]
            self.assertAlmostEqual(losses[name], losses["plain"], delta=0.02 * losses["plain"])
            # One process goes on with what they saved.
            more = self.files(0) + ["--load", save]
            more[more.index("--steps") + 1] = "4"
            self.ds(*(a for i, a in enumerate(more)
                      if a != "--model" and more[i - 1] != "--model"))
        self.assertLess(sent["quantized weights"], 0.85 * sent["plain"])
        self.assertLess(sent["second shards"], 0.9 * sent["plain"])
        self.assertLess(sent["all of ZeRO++"], 0.4 * sent["plain"])
        self.assertLess(sent["MiCS"], 0.9 * sent["plain"])
        # What makes no sense is refused by every rank, with the key.
        config = json.dumps({"train_batch_size": 4, "zero_optimization": {
            "stage": 3, "mics_shard_size": 3},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})
        arguments = self.files(3)
        with open(self.path("config3.json"), "w") as f:
            f.write(config)
        failed = self.ds("launch", "-n", 4, "--", os.environ["DS_PROGRAM"], *arguments, status=1)
        self.assertIn("mics_shard_size: 3 does not divide the 4", failed.error)

    def test_a_lost_rank_is_named(self):
        for stage, sent in [(0, signal.SIGKILL), (2, signal.SIGKILL), (3, signal.SIGKILL)]:
            metrics = self.path(f"lost-{stage}.jsonl")
            arguments = self.files(stage) + ["--metrics", metrics]
            arguments[arguments.index("--steps") + 1] = "100000"
            processes = self.start(
                4, arguments, lambda r, n: {"RANK": r, "WORLD_SIZE": n, "LOCAL_RANK": r})
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and not (
                    os.path.exists(metrics) and os.path.getsize(metrics) > 0):
                time.sleep(0.05)
            processes[1].send_signal(sent)
            for rank, process in enumerate(processes):
                _, err = process.communicate(timeout=60)
                self.assertNotEqual(process.returncode, 0)
                if rank != 1:
                    self.assertIn("rank 1", err)

    def test_a_rank_killed_among_saves_leaves_whole_checkpoints(self):
        for round in range(3):
            save = self.path(f"killed-{round}")
            arguments = self.files(2) + ["--save", save, "--save-interval", "1"]
            arguments[arguments.index("--steps") + 1] = "100000"
            processes = self.start(
                2, arguments, lambda r, n: {"RANK": r, "WORLD_SIZE": n, "LOCAL_RANK": r})
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and not os.path.exists(os.path.join(save, "latest")):
                time.sleep(0.01)
            time.sleep(0.03 * (round + 1) + random.random() / 20)
            processes[round % 2].send_signal(signal.SIGKILL)
            for process in processes:
                process.communicate(timeout=60)
                self.assertNotEqual(process.returncode, 0)
            more = self.files(0) + ["--load", save]
            more = [a for i, a in enumerate(more) if a != "--model" and more[i - 1] != "--model"]
            status, _, err = self.launch(1, more, lambda r, n: {})[0]
            self.assertEqual(status, 0, err)
            self.assertNotIn("passing over", err)

    def test_an_interrupt_stops_all_after_the_same_step(self):
        metrics, save = self.path("stopped.jsonl"), self.path("stopped")
        arguments = self.files(2) + ["--metrics", metrics, "--save", save]
        arguments[arguments.index("--steps") + 1] = "100000"
        processes = self.start(
            2, arguments, lambda r, n: {"RANK": r, "WORLD_SIZE": n, "LOCAL_RANK": r})
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (
                os.path.exists(metrics) and os.path.getsize(metrics) > 0):
            time.sleep(0.05)
        processes[1].send_signal(signal.SIGTERM)
        for process in processes:
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 128 + signal.SIGTERM, err)
        self.assertEqual(len(os.listdir(save)), 2)  # the checkpoint and `latest`

    def test_collectives_are_timed(self):
        for transport in ("shm", "sockets"):
            arguments = ["bench", "comm", "--largest", "20000", "--repeats", "2", "--json",
                         "--comm-config", json.dumps({"transport": transport})]
            results = self.launch(
                2, arguments, lambda r, n: {"RANK": r, "WORLD_SIZE": n, "LOCAL_RANK": r})
            for status, _, err in results:
                self.assertEqual(status, 0, err)
            report = json.loads(results[0][1])
            self.assertEqual((report["ranks"], report["transport"]), (2, transport))
            self.assertEqual(len(report["rows"]), 10)
            self.assertTrue(all(row["busbw_gb_per_s"] > 0 for row in report["rows"]))
            self.assertEqual(results[1][1], "")

    def test_partial_environment_is_an_error(self):
        results = self.launch(1, self.files(0), lambda r, n: {"RANK": 0, "WORLD_SIZE": 2})
        self.assertNotEqual(results[0][0], 0)
        self.assertIn("LOCAL_RANK", results[0][2])


if __name__ == "__main__":
    unittest.main()
