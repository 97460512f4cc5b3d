"""Documents with offload as people publish them: `ds train` takes each unchanged, but for the folder
of its files, and trains the weights that the document without its offload trains."""
import json
import unittest

import deepspeed_rules
from cli_case import SOURCE, CliCase

CORPUS = SOURCE / "tests/data/config/corpus"
SAID = ["--resolve-auto", "--lenient", "--auto", "lr=5e-4", "--auto", "precision=bf16",
        "--auto", "stage=3", "--auto", "offload_optimizer=cpu", "--auto", "offload_param=cpu",
        "--auto", "train_micro_batch_size_per_gpu=8"]
OFFLOAD = ("offload_optimizer", "offload_param", "cpu_offload", "cpu_offload_param")


def offloads(document):
    """The keys of a document's zero_optimization that ask for offload."""
    zero = document.get("zero_optimization")
    return [key for key in OFFLOAD if isinstance(zero, dict) and key in zero]


class Offload(CliCase):
    def train_document(self, document, name):
        config = self.write(f"{name}.json", document)
        folders = []
        for key in offloads(document):
            section = document["zero_optimization"][key]
            if isinstance(section, dict) and section.get("device") == "nvme":
                folders += ["--set", f"zero_optimization.{key}.nvme_path=\"{self.folder}\""]
        self.ds("train", "--model", "model.json", "--config", config, "--data", "text.txt", "--steps",
                2, "--seed", 7, "--save", name, *SAID, *folders)
        return self.weights(name)

    def test_documents_as_people_publish_them(self):
        manifest = json.loads((CORPUS / "manifest.json").read_text())
        seen = set()
        for name, facts in manifest.items():
            document = deepspeed_rules.read((CORPUS / f"{name}.json").read_text())
            if "lacks" in facts or facts["world"] != 1 or not offloads(document):
                continue
            with self.subTest(document=name):
                zero = document["zero_optimization"]
                for key in offloads(document):
                    device = zero[key].get("device") if isinstance(zero[key], dict) else "cpu"
                    seen.add((key, device, zero.get("stage")))
                trained = self.train_document(document, name)
                if "zenflow" in zero:
                    continue  # it needs offload, and changes what is trained
                plain = {key: value for key, value in zero.items() if key not in OFFLOAD}
                self.assertEqual(trained, self.train_document(
                    {**document, "zero_optimization": plain}, f"{name}-plain"))
        # Each kind is there.
        for kind in [("offload_param", "cpu", 2), ("offload_param", "cpu", 3),
                     ("offload_param", "nvme", 1), ("offload_param", "nvme", 3),
                     ("offload_optimizer", "nvme", 3), ("offload_optimizer", "cpu", 0),
                     ("offload_optimizer", "cpu", 2), ("offload_optimizer", "cpu", 3),
                     ("offload_optimizer", "auto", "auto")]:
            self.assertIn(kind, seen)


if __name__ == "__main__":
    unittest.main()
