"""ds plan: the command line around the library's plan."""
import json
import unittest

from cli_case import CONFIG, MODEL, CliCase

BF16 = dict(CONFIG, bf16={"enabled": True}, data_types={"grad_accum_dtype": "bf16"},
            zero_optimization={"stage": 3})


def merged(config, patch):
    out = dict(config)
    for key, value in patch.items():
        out[key] = merged(out.get(key, {}), value) if isinstance(value, dict) else value
    return out


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
        activations = small["memory_per_rank"]["activations"]
        self.assertGreater(more["memory_per_rank"]["activations"], 1.5 * activations)
        self.assertLessEqual(more["memory_per_rank"]["activations"], 2 * activations)
        less = self.plan("model.json", "config.json", "--world", 4, "--sequence-length", 16)
        self.assertLess(less["memory_per_rank"]["activations"], 0.8 * activations)

    def test_folder_for_people(self):
        (self.folder / "folder").mkdir()
        (self.folder / "model.json").rename(self.folder / "folder/config.json")
        text = self.ds("plan", "folder", "config.json", "--world", 2).text
        self.assertRegex(text, r"(?m)^  optimizer +[\d.]+ KiB$")
        self.assertRegex(text, r"(?m)^  all_reduce gradients +[\d.]+ KiB within the node")

    def test_what_does_not_fit_fits_by_its_advice(self):
        """Under a limit of the process: refused by the engine, and trains with what it advises."""
        self.write("large.json", dict(MODEL, vocab_size=4096, n_embd=256, n_layer=4))
        needed = self.plan("large.json", "config.json", "--device", "cpu")["memory_per_rank"]["reserved"]
        budget = {"memory_plan": {"limit_bytes": int(0.6 * needed)}}
        self.write("limited.json", dict(CONFIG, **budget))
        train = ["train", "--model", "large.json", "--data", "text.txt",
                 "--steps", "2", "--config"]
        error = self.ds(*train, "limited.json", status=1).error
        self.assertIn("does not fit", error)
        advice = [json.loads(line) for line in error.splitlines() if line.strip().startswith("{")]
        compared = self.plan("large.json", "limited.json", "--device", "cpu", "--compare",
                             "--sequence-length", 32)
        self.assertFalse(compared["fits"])
        self.assertEqual([one["merge"] for one in compared["remedies"]], advice)
        for patch in advice:
            self.write("changed.json", merged(json.loads((self.folder / "limited.json").read_text()), patch))
            self.ds(*train, "changed.json")
            fits = self.plan("large.json", "changed.json", "--device", "cpu", "--compare",
                             "--sequence-length", 32)
            self.assertTrue(fits["fits"], patch)

    def test_fit(self):
        self.write("large.json", dict(MODEL, vocab_size=4096, n_embd=256, n_layer=4))
        needed = self.plan("large.json", "config.json", "--device", "cpu")["memory_per_rank"]["reserved"]
        rates = [part for name in ["product_flops", "memory_bytes", "read_bytes", "write_bytes"]
                 for part in ["--rate", name + "=1e9"]]
        text = self.ds("plan", "large.json", "config.json", "--device", "cpu", "--memory", needed * 3 // 4,
                       "--fit", *rates, "--folder", self.folder, "--save", "fits.json").text
        self.assertIn("a step should take", text)
        fits = self.plan("large.json", "fits.json", "--device", "cpu", "--memory", needed * 3 // 4)
        self.assertTrue(fits["fits"])
        self.ds("train", "--model", "large.json", "--data", "text.txt", "--steps", "2",
                "--config", "fits.json")

    def test_fit_offloads_a_share(self):
        """No more of the optimizer's state goes to files than a limit asks for; an engine under that limit takes it."""
        self.write("large.json", dict(MODEL, vocab_size=4096, n_embd=256, n_layer=4))
        self.write("one.json", dict(CONFIG, train_micro_batch_size_per_gpu=1, gradient_accumulation_steps=1))
        needed = self.plan("large.json", "one.json", "--device", "cpu")["memory_per_rank"]["reserved"]
        rates = [part for rate in ["product_flops=1e7", "memory_bytes=1e9", "read_bytes=1e9", "write_bytes=1e9"]
                 for part in ["--rate", rate]]  # nobody computes twice at this rate
        shares, seconds = [], []
        for part in 0.9, 0.7:
            limit = int(part * needed)
            fit = self.plan("large.json", "one.json", "--device", "cpu", "--memory", limit, "--fit", *rates,
                            "--folder", self.folder, "--save", "fits.json")["fit"]
            shares.append(fit["config"]["zero_optimization"]["offload_optimizer"]["ratio"])
            seconds.append(fit["seconds_per_step"]["files"])
            limited = dict(json.loads((self.folder / "fits.json").read_text()), memory_plan={"limit_bytes": limit})
            self.write("limited.json", limited)
            train = ["train", "--model", "large.json", "--data", "text.txt", "--steps", "2", "--config"]
            self.ds(*train, "limited.json")
            limited["zero_optimization"]["offload_optimizer"]["ratio"] = shares[-1] / 2
            self.write("less.json", limited)
            self.assertIn("does not fit", self.ds(*train, "less.json", status=1).error)
        self.assertLess(0, shares[0])
        self.assertLess(shares[0], shares[1])
        self.assertLess(shares[1], 1)
        self.assertAlmostEqual(seconds[1] / seconds[0], shares[1] / shares[0], 1)

    def test_errors(self):
        for arguments, status, words in [
                (["model.json"], 2, "MODEL and CONFIG"),
                (["model.json", "config.json", "--parameters", "1e9"], 2, "--parameters"),
                (["model.json", "config.json", "--world", "0"], 2, "--world"),
                (["none.json", "config.json"], 1, "none.json"),
                (["model.json", "model.json"], 1, "model_type"),
                (["model.json", "config.json", "--save", "x.json"], 2, "--fit"),
                (["model.json", "config.json", "--memory", "none"], 2, "--memory"),
                (["model.json", "config.json", "--fit", "--rate", "flops=1"], 1, "flops"),
                (["model.json", "config.json", "--fit", "--memory", "1000"], 1, "none fits"),
                (["model.json", "config.json", "--world", "4", "--ranks-per-node", "3"], 1,
                 "ranks_per_node 3")]:
            with self.subTest(arguments=arguments):
                self.assertIn(words, self.ds("plan", *arguments, status=status).error)


if __name__ == "__main__":
    unittest.main(verbosity=2)
