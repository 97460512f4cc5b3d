"""What `ds plan` says beside what the kernel sees: plan_accuracy.py DS_PROGRAM [--folder FOLDER]

Trains twelve configurations for three steps, each in a process of its own, and prints the plan beside the
peak of the resident set (VmHWM), less that of a process which trains next to nothing. The last one is
refused under a limit of memory and runs with the first change that the refusal advises.
"""
import argparse
import json
import pathlib
import re
import subprocess
import tempfile

GPT2 = {"model_type": "gpt2", "vocab_size": 8192, "n_positions": 256, "n_embd": 512, "n_layer": 8, "n_head": 8}
TINY = dict(GPT2, vocab_size=256, n_embd=16, n_layer=1, n_head=1)
WIDE = dict(GPT2, n_embd=1024, n_layer=4)
BASE = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
BF16 = {"bf16": {"enabled": True}}
CHECKPOINTS = {"activation_checkpointing": {"enabled": True}}

def in_files(folder, weights, share=1):
    zero = {"stage": 3 if weights else 1, "sub_group_size": 2 << 20,
            "offload_optimizer": {"device": "nvme", "nvme_path": folder, "pipeline_read": True,
                                  "pipeline_write": True, "ratio": share}}
    if weights:
        zero["offload_param"] = {"device": "nvme", "nvme_path": folder, "max_in_cpu": 0}
        zero["stage3_max_live_parameters"] = 10_000_000
        zero["stage3_prefetch_bucket_size"] = 5_000_000
    return {"zero_optimization": zero}


def configurations(folder):
    return [
        ("fp32", GPT2, {}),
        ("fp32, wide", WIDE, {}),
        ("fp32, 16 samples", GPT2, {"train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 1}),
        ("bf16", GPT2, BF16),
        ("bf16, 16 samples, checkpointed", GPT2,
         dict(BF16, **CHECKPOINTS, train_micro_batch_size_per_gpu=16, gradient_accumulation_steps=1)),
        ("bf16, split masters and bf16 gradients", GPT2,
         {"bf16": {"enabled": True, "split_master": True}, "data_types": {"grad_accum_dtype": "bf16"}}),
        ("fp16, every other block again", GPT2,
         {"fp16": {"enabled": True}, "activation_checkpointing": {"enabled": True, "checkpoint_every_nth": 2}}),
        ("optimizer in files", GPT2, in_files(folder, False)),
        ("half of the optimizer in files", GPT2, in_files(folder, False, 0.5)),
        ("a quarter of it, bf16", GPT2, dict(in_files(folder, False, 0.25), **BF16)),
        ("all in files, bf16", WIDE, dict(in_files(folder, True), **BF16)),
        ("all in files, fp32, checkpointed", GPT2, dict(in_files(folder, True), **CHECKPOINTS)),
    ]


class Runs:
    def __init__(self, program, folder):
        self.program, self.folder = program, pathlib.Path(folder)
        (self.folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 2000)

    def files(self, model, config):
        (self.folder / "model.json").write_text(json.dumps(model))
        (self.folder / "config.json").write_text(json.dumps(dict(BASE, threads=2, **config)))

    def plan(self, model, config):
        """(planned, and what the arena should hold from the system)"""
        self.files(model, config)
        done = subprocess.run([self.program, "plan", "model.json", "config.json", "--device", "cpu", "--json"],
                              cwd=self.folder, capture_output=True, text=True, check=True)
        memory = json.loads(done.stdout)["memory_per_rank"]
        return memory["total"], memory["reserved"]

    def train(self, model, config):
        """(peak of the kernel after three steps, standard error): the end of a run, which brings masters
        back to memory, is not in it."""
        self.files(model, config)
        command = [self.program, "train", "--model", "model.json", "--config", "config.json", "--data", "text.txt",
                   "--log-interval", "1", "--steps", "100000", "--eval-interval", "0"]
        process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said, peak = "", 0
        for line in process.stdout:
            said += line
            if line.startswith("step 4/"):
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
                process.kill()
                break
        process.wait()
        return peak, said


def merged(config, patch):
    out = dict(config)
    for key, value in patch.items():
        out[key] = merged(out.get(key, {}), value) if isinstance(value, dict) else value
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program")
    parser.add_argument("--folder", help="on the disk that state in files is to lie on")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        runs = Runs(str(pathlib.Path(options.program).resolve()), folder)
        base, said = runs.train(TINY, {})
        assert base, said
        base -= runs.plan(TINY, {})[1]
        print(f"a process that trains next to nothing: {base / 2**20:.1f} MiB\n")
        print("| configuration | planned, MiB | reserved | kernel's peak less that, MiB | planned to it | reserved to it |\n"
              "| --- | --- | --- | --- | --- | --- |")

        def row(name, model, config):
            planned, reserved = runs.plan(model, config)
            peak, said = runs.train(model, config)
            assert peak, said
            peak -= base
            print(f"| {name} | {planned / 2**20:.1f} | {reserved / 2**20:.1f} | {peak / 2**20:.1f} | {planned / peak:.3f} | "
                  f"{reserved / peak:.3f} |", flush=True)

        for name, model, config in configurations(folder):
            row(name, model, config)
        limited = {"memory_plan": {"limit_bytes": int(runs.plan(GPT2, {})[0] * 0.5)}}
        peak, said = runs.train(GPT2, limited)
        assert not peak and "does not fit" in said, said
        advice = json.loads(re.search(r"(?m)^ *(\{.*\})$", said)[1])
        row(f"fp32 in half of what it needs: refused, then with `{json.dumps(advice)}`", GPT2, merged(limited, advice))


if __name__ == "__main__":
    main()
