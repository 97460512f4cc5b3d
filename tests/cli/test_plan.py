"""ds plan: the command line around the library's plan."""
import json
import unittest

from cli_case import CONFIG, CliCase

BF16 = dict(CONFIG, bf16={"enabled": True}, data_types={"grad_accum_dtype": "bf16"},
            zero_optimization={"stage": 3})


class Plan(CliCase):
    def plan(self, *arguments):
        return json.loads(self.ds("plan", *arguments, "--json").text)

    def test_size_alone(self):
        self.write("bf16.json", BF16)
        for world in [1, 64]:
            states = self.plan("bf16.json", "--parameters", "7.5e9", "--layers", 32, "--world",
                               world)["memory_per_rank"]["model_states"]
            self.assertAlmostEqual(states / (16 * 7.5e9 / world), 1, 2)

    def test_model(self):
        small = self.plan("model.json", "config.json", "--world", 4, "--ranks-per-node", 2)
        # Embeddings of 256 + 32 rows, two layers of 12 w^2 + 13 w, the last norm.
        self.assertEqual(small["model"]["parameters"], 288 * 32 + 2 * (12 * 32**2 + 13 * 32) + 64)
        self.assertEqual([one["of"] for one in small["moved_per_step"]],
                         ["gradients", "loss and gradient norm"])
        self.assertGreater(small["moved_per_step"][0]["across_nodes"], 0)
        more = self.plan("model.json", "config.json", "--world", 4, "--micro-batch", 4)
        self.assertEqual(more["memory_per_rank"]["activations_estimate"],
                         2 * small["memory_per_rank"]["activations_estimate"])
        less = self.plan("model.json", "config.json", "--world", 4, "--sequence-length", 16)
        self.assertEqual(2 * less["memory_per_rank"]["activations_estimate"],
                         small["memory_per_rank"]["activations_estimate"])

    def test_folder_for_people(self):
        (self.folder / "folder").mkdir()
        (self.folder / "model.json").rename(self.folder / "folder/config.json")
        text = self.ds("plan", "folder", "config.json", "--world", 2).text
        self.assertRegex(text, r"(?m)^  optimizer +[\d.]+ KiB$")
        self.assertRegex(text, r"(?m)^  all_reduce gradients +[\d.]+ KiB within the node")

    def test_errors(self):
        for arguments, status, words in [
                (["model.json"], 2, "MODEL and CONFIG"),
                (["model.json", "config.json", "--parameters", "1e9"], 2, "--parameters"),
                (["model.json", "config.json", "--world", "0"], 2, "--world"),
                (["none.json", "config.json"], 1, "none.json"),
                (["model.json", "model.json"], 1, "model_type"),
                (["model.json", "config.json", "--world", "4", "--ranks-per-node", "3"], 1,
                 "ranks_per_node 3")]:
            with self.subTest(arguments=arguments):
                self.assertIn(words, self.ds("plan", *arguments, status=status).error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
