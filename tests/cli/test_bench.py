"""ds bench: what it reports agrees with itself and with the model."""
import json
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
