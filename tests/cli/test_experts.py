"""Commands that run a model, by ranks that share its experts below `ds launch`."""
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import unittest

from cli_case import MODEL, PROGRAM, CliCase, new_folder, run

BASE = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
        "num_experts_per_tok": 2, "initializer_range": 0.2}
MODELS = {
    "mixtral": {**BASE, "model_type": "mixtral", "num_local_experts": 4},
    # A network that all tokens go through, beside the experts.
    "qwen2_moe": {**BASE, "model_type": "qwen2_moe", "num_experts": 8, "moe_intermediate_size": 32,
                  "shared_expert_intermediate_size": 48, "norm_topk_prob": False},
    # Experts with room for few, in every second layer, of different numbers.
    "gpt_moe": {"model_type": "gpt_moe", "vocab_size": 256, "n_positions": 32, "n_embd": 32,
                "n_layer": 4, "n_head": 2, "num_experts": [4, 8], "mlp_type": "residual",
                "moe_top_k": 2, "initializer_range": 0.2},
}
PROMPT = "The licence of this "


class SharedExperts(CliCase):
    @classmethod
    def setUpClass(cls):
        kept = new_folder()
        cls.addClassCleanup(shutil.rmtree, kept, ignore_errors=True)
        cls.models = {}
        for name, model in {**MODELS, "dense": MODEL}.items():
            (kept / "model.json").write_text(json.dumps(model))
            done = run(kept, ["train", "--model", "model.json", "--config", "config.json",
                              "--data", "text.txt", "--steps", 3, "--seed", 7, "--save", name])
            if done.returncode != 0:
                raise RuntimeError(done.error)
            cls.models[name] = kept / name

    def alone(self, name, *options):
        return self.ds("generate", "--model", self.models[name], "--threads", 1, *options).stdout

    def shared(self, ranks, name, *options, command="generate", status=0):
        """What each rank prints, and the launcher's own output."""
        logs = self.folder / "logs"
        shutil.rmtree(logs, ignore_errors=True)
        model = [self.models[name]] if command == "eval" else ["--model", self.models[name]]
        done = self.ds("launch", "-n", ranks, "--rank-logs", "logs", "--", PROGRAM, command, *model,
                       "--threads", 1, *options, status=status)
        return [(logs / f"rank-{rank}.out").read_bytes() for rank in range(ranks)], done

    def errors(self):
        return [path.read_text() for path in sorted((self.folder / "logs").glob("rank-*.err"))]

    def test_texts_are_those_of_one_process(self):
        greedy = ["--prompt", PROMPT, "--temperature", 0, "--max-tokens", 40, "--ignore-end"]
        sampled = ["--prompt", "The ", "--temperature", 0.9, "--top-k", 40, "--top-p", 0.95,
                   "--seed", 5, "--max-tokens", 40]
        texts = set()
        for name in MODELS:
            for form in ([], ["--weights", "bf16"], ["--weights", "int8"],
                         ["--weights", "int4", "--group-size", 16]):
                for how in (greedy, sampled):
                    expected = self.alone(name, *how, *form)
                    texts.add(expected)
                    for ranks in (2, 4):
                        if ranks == 4 and form:
                            continue
                        with self.subTest(name=name, form=form, ranks=ranks, how=how):
                            printed, _ = self.shared(ranks, name, *how, *form)
                            self.assertEqual(printed, [expected] + [b""] * (ranks - 1))
        self.assertGreater(len(texts), len(MODELS) * 4)  # forms and choices do differ

    def test_options_of_a_text_and_of_weights(self):
        folder = self.folder / "weights"
        folder.mkdir()
        for options in (["--stop", "e"], ["--kv-block-tokens", 4, "--kv-pool-tokens", 32],
                        ["--weights", "int8", "--weights-folder", folder],
                        ["--comm-config", '{"transport": "sockets"}']):
            options = ["--prompt", PROMPT, "--temperature", 0, "--max-tokens", 30, *options]
            printed, _ = self.shared(2, "mixtral", *options)
            self.assertEqual(printed, [self.alone("mixtral", *options), b""])
        self.assertEqual(list(folder.iterdir()), [])
        _, done = self.shared(2, "mixtral", "--prompt", "The ", "--stats")
        self.assertRegex(self.errors()[0], r"(?m)^64 tokens in ")
        self.assertEqual(self.errors()[1], "")

    def test_evaluation_is_that_of_one_process(self):
        text = (self.folder / "text.txt").read_text()
        lines = [json.dumps({"text": part[:60]}) for part in text.split("\n\n")[:11]]
        self.write("lines.jsonl", "\n".join(lines) + "\n")
        for name in MODELS:
            for data in (["--data", "text.txt", "--overlap", 32, "--limit", 1500],
                         ["--data", "lines.jsonl", "--task", "last-word"]):
                # Batches are alike: experts with little room drop by what is in one.
                options = [*data, "--batch", 2, "--json"]
                alone = json.loads(self.ds("eval", self.models[name], *options).text)
                printed, _ = self.shared(2, name, *options, command="eval")
                shared = json.loads(printed[0])
                self.assertEqual(printed[1], b"")
                for result in (alone, shared):
                    result.pop("seconds")
                for key in ("loss", "ppl", "adjusted_ppl"):
                    if alone.get(key) is not None:
                        self.assertAlmostEqual(shared.pop(key) / alone.pop(key), 1, delta=1e-5)
                self.assertEqual(shared, alone)

    def test_what_cannot_be_shared_is_said(self):
        options = ["--prompt", "The "]
        # The launcher ends the other ranks when one fails, perhaps before they have said why they do.
        for ranks, name, chosen, reason in (
                (2, "dense", options,
                 "no layers of experts that ranks could share; run it in one process"),
                (3, "mixtral", options, "3 ranks cannot share the 4 experts"),
                (2, "mixtral", ["--prompt", ""], "prompt is empty")):
            self.shared(ranks, name, *chosen, status=1)
            said = [error for error in self.errors() if "ds: error: " in error]
            self.assertTrue(said)
            for error in said:
                self.assertIn(reason, error)
        # Ranks with different models: the second one's is named.
        script = 'exec "$0" generate --model "$1-$RANK" --prompt "The " --threads 1'
        for rank, name in enumerate(("mixtral", "gpt_moe")):
            os.symlink(self.models[name], self.folder / f"m-{rank}")
        done = self.ds("launch", "-n", 2, "--", "sh", "-c", script, PROGRAM, "m", status=1)
        self.assertIn("rank 1", done.error)
        self.assertIn("another model than rank 0", done.error)

    def test_a_lost_rank_is_named(self):
        # Without the launcher, which would end the other rank, perhaps before that has said a word.
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(2):
            place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_PORT": port}
            ranks.append(subprocess.Popen(
                [PROGRAM, "generate", "--model", self.models["mixtral"], "--prompt", "The ",
                 "--max-tokens", "1000000000", "--ignore-end", "--threads", "1"],
                env={**os.environ, "MASTER_ADDR": "127.0.0.1",
                     **{name: str(value) for name, value in place.items()}},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        try:
            self.assertEqual(len(ranks[0].stdout.read(30)), 30)
            ranks[1].kill()
            _, error = ranks[0].communicate(timeout=60)
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
        self.assertEqual(ranks[0].returncode, 1)
        self.assertRegex(error.decode(), r"(?m)^ds: error: .*rank 1")

    def test_an_interrupt_ends_the_text(self):
        job = subprocess.Popen(
            [PROGRAM, "launch", "-n", "2", "--rank-logs", "logs", "--", PROGRAM, "generate",
             "--model", self.models["mixtral"], "--prompt", "The ", "--max-tokens", "1000000000",
             "--ignore-end", "--threads", "1"], cwd=self.folder, stderr=subprocess.PIPE)
        try:
            output = self.folder / "logs" / "rank-0.out"
            end = time.monotonic() + 60
            while not output.exists() or output.stat().st_size < 30:
                self.assertLess(time.monotonic(), end, "no text came")
                time.sleep(0.02)
            job.send_signal(signal.SIGTERM)
            job.communicate(timeout=60)
        finally:
            job.kill()
            job.wait()
        self.assertEqual(job.returncode, 128 + signal.SIGTERM)
        for error in self.errors():
            self.assertNotIn("error", error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
