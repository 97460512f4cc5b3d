"""ds bench: what it reports agrees with itself and with the model."""
import json
import os
import unittest

from cli_case import MODEL, CliCase


class Bench(CliCase):
    def bench(self, *options):
        return json.loads(self.ds("bench", *options, "--json").text)

    def check(self, result, tokens):
        training, generation = result["training"], result["generation"]
        parts = sum(training[f"{name}_seconds"] for name in ("forward", "backward", "update"))
        self.assertGreater(parts, 0)
        self.assertAlmostEqual(training["tokens_per_s"] * training["step_seconds"], tokens, 3)
        self.assertAlmostEqual(training["flops_per_s"] / training["tokens_per_s"],
                               6 * result["parameters"], 1)
        self.assertAlmostEqual(generation["prompt_tokens_per_s"] * generation["prompt_seconds"],
                               generation["prompt_tokens"], 3)
        self.assertAlmostEqual(generation["decode_tokens_per_s"] *
                               generation["decode_seconds_per_token"], 1, 6)

    def test_a_built_in_model(self):
        result = self.bench("--model", "tiny", "--steps", 3, "--batch", 2, "--threads", 1)
        # Embeddings of 256 + 64 rows, two layers of 12 w^2 + 13 w, the last norm.
        self.assertEqual(result["parameters"], 320 * 64 + 2 * (12 * 64**2 + 13 * 64) + 2 * 64)
        self.assertEqual((result["model"], result["threads"]), ("tiny", 1))
        self.check(result, 2 * 64)
        self.assertEqual(result["generation"]["prompt_tokens"], 32)  # half of 64 positions
        self.assertTrue(result["training"]["memory"])

    def test_the_other_family(self):
        result = self.bench("--model", "tiny-llama", "--steps", 1, "--batch", 1)
        # Tied embeddings; per layer the four projections of attention, of which two are for 2 of 4
        # heads, three of the inner layer, two norms; the last norm.
        self.assertEqual(result["parameters"],
                         256 * 64 + 2 * (2 * 64**2 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64)
        self.check(result, 64)

    def test_a_file_and_a_configuration(self):
        self.write("model.json", MODEL)
        result = self.bench("--model", "model.json", "--config", "config.json", "--steps", 2,
                            "--sequence-length", 8, "--prompt", 4, "--generate", 3)
        self.assertEqual(result["training"]["gradient_accumulation_steps"], 2)
        self.check(result, 2 * 2 * 8)
        self.assertEqual((result["generation"]["prompt_tokens"],
                          result["generation"]["new_tokens"]), (4, 3))

    def test_a_folder_for_people(self):
        self.train(1, "--save", "out")
        text = self.ds("bench", "--model", "out", "--steps", 2, "--generate", 0).text
        self.assertRegex(text, r"(?m)^  speed +[\d.]+ tokens/s, [\d.]+ GFLOP/s")
        self.assertNotIn("decoding", text)

    def test_names(self):
        done = self.ds("bench", "--model", "gpt5", status=1)
        self.assertIn("gpt2-124m", done.error)
        self.assertIn("33", self.ds("bench", "--model", "model.json", "--sequence-length", 33,
                                    status=1).error)

    def test_ranks_are_refused(self):
        done = self.ds("launch", "-n", 2, "--", os.environ["DS_PROGRAM"], "bench", "--model", "tiny", status=1)
        self.assertIn("this is one of 2 ranks (WORLD_SIZE): run it without a launcher", done.error)
        self.assertNotIn("tokens/s", done.text)

    def test_io(self):
        for options in ([], ["--read"]):
            result = json.loads(self.ds(
                "bench", "io", *options, "--io_size", "3M", "--block-size", "64K", "--queue_depth", 3,
                "--io_parallel", 2, "--loops", 2, "--single_submit", "--sequential_requests",
                "--validate", "--json").text)
            direction = "read" if options else "write"
            self.assertEqual(result["direction"], direction)
            self.assertEqual(result["io_size"], 3 << 20)
            self.assertEqual(result["aio"], {
                "block_size": 65536, "queue_depth": 3, "intra_op_parallelism": 2,
                "single_submit": True, "overlap_events": False})
            self.assertIn(result["backend"], ("io_uring", "libaio", "threads"))
            speed = result[direction]
            self.assertEqual(len(speed["loop_seconds"]), 2)
            self.assertAlmostEqual(sum(speed["loop_seconds"]) / 2, speed["seconds"], 6)
            self.assertAlmostEqual(speed["gib_per_s"] * speed["seconds"], 3 / 1024, 6)
        self.assertEqual(self.leftovers(), [])

    def test_io_for_people(self):
        text = self.ds("bench", "io", "--io-size", "100001", "--loops", 1, "--warmup-loops", 2,
                       "--include-warmup-time", "--different-file-each-iteration", "--backend",
                       "threads").text
        self.assertRegex(text, r"^write by threads, \w+ memory: [\d.]+ s, [\d.]+ GiB/s \(mean of 3\)$")

    def test_io_sweep(self):
        done = self.ds("bench", "io", "--sweep", "--io-size", "256K", "--no-write", "--save",
                       "best.json", "--json")
        result = json.loads(done.text)
        self.assertEqual(len(result["rows"]), 64)
        self.assertEqual(len({json.dumps(row["aio"]) for row in result["rows"]}), 64)
        best = max(result["rows"], key=lambda row: row["read"]["gib_per_s"])
        self.assertEqual(result["best"], best)
        self.assertNotIn("write", best)
        section = json.loads((self.folder / "best.json").read_text())
        self.assertEqual(section, {"aio": best["aio"]})
        # It is a configuration.
        section["train_batch_size"] = 1
        section["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
        self.write("tuned.json", section)
        self.ds("config", "check", "tuned.json")
        self.assertEqual(self.leftovers(), [])

    def leftovers(self):
        return [name for name in os.listdir(self.folder) if name.startswith("ds-bench-io")]

    def test_io_errors(self):
        def error(*options, status=1):
            return self.ds("bench", "io", *options, status=status).error
        self.assertIn("nowhere", error("--folder", "nowhere"))
        self.assertIn("GPUDirect Storage", error("--use_gds"))
        self.assertIn("host memory", error("--gpu", status=2))
        self.assertIn("--sweep", error("--save", "x.json", status=2))
        self.assertIn("leave nothing", error("--sweep", "--no-read", "--no-write", status=2))
        self.assertIn("queue_depth", error("--queue-depth", 5000))
        self.assertIn("block_size", error("--block-size", "2G"))
        for bad in (("--io-size", "0"), ("--io-size", "-5"), ("--io-size", "1Q"),
                    ("--io-size", "99999999999999999999"), ("--loops", "0"),
                    ("--backend", "posix"), ("--block-size", "x")):
            error(*bad, status=2)
        self.assertIn("too many elements", error("--io-size", str(1 << 60)))
        self.assertIn("memory", error("--io-size", str(1 << 46)))
        self.assertEqual(self.leftovers(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
