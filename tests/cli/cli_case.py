"""What the tests of the `ds` program share: running it, a tiny model, English text.

The tests are ordinary unittest files; ctest gives the program in DS_PROGRAM and the checkout in
DS_SOURCE. Every test has a fresh folder, self.folder, in which it also runs.
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["DS_PROGRAM"]
SOURCE = pathlib.Path(os.environ["DS_SOURCE"])

# Jobs that a shell runs in the background ignore Ctrl-C, and so would what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

MODEL = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 32, "n_layer": 2,
         "n_head": 2}
CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
          "gradient_clipping": 1.0,
          "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}},
          "scheduler": {"type": "WarmupLR",
                        "params": {"warmup_max_lr": 3e-3, "warmup_num_steps": 5}}}


def new_folder():
    """A folder with English text, a tiny model and a configuration."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ds-cli-"))
    # The licence of the checkout: eleven kilobytes of English.
    shutil.copy(SOURCE / "LICENSE", folder / "text.txt")
    (folder / "model.json").write_text(json.dumps(MODEL))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def run(folder, arguments, text=None, program=PROGRAM):
    done = subprocess.run([program, *map(str, arguments)], cwd=folder, timeout=120,
                          input=text.encode() if isinstance(text, str) else text or b"",
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    done.text = done.stdout.decode("utf-8", "replace")
    done.error = done.stderr.decode("utf-8", "replace")
    return done


def train_arguments(steps, *more):
    return ["train", "--model", "model.json", "--config", "config.json", "--data", "text.txt",
            "--steps", steps, "--seed", 7, *more]


class CliCase(unittest.TestCase):
    maxDiff = 4000

    def setUp(self):
        self.folder = new_folder()
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def write(self, name, content):
        text = content if isinstance(content, str) else json.dumps(content)
        (self.folder / name).write_text(text)
        return name

    def ds(self, *arguments, status=0, text=None):
        """Runs the program in self.folder; fails unless it ends with `status`."""
        done = run(self.folder, arguments, text)
        self.assertEqual(done.returncode, status,
                         f"ds {' '.join(map(str, arguments))}\n{done.text}\n{done.error}")
        return done

    def train(self, steps, *more, status=0):
        return self.ds(*train_arguments(steps, *more), status=status)

    def metrics(self, name):
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def weights(self, checkpoint):
        """The exported weights of a checkpoint as bytes."""
        out = f"{checkpoint}-exported"
        self.ds("export", checkpoint, out, "--force")
        return (self.folder / out / "model.safetensors").read_bytes()
