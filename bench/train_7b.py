"""A model of 7 billion parameters trains in memory that does not hold its weights: train_7b.py DS_PROGRAM --folder FOLDER

Weights, gradients and the moment of Lion lie in files in FOLDER, bf16 each: six bytes of each parameter, 37.7 GiB of
disk. Weights are fresh. The process may have --memory bytes of address space (RLIMIT_AS); printed are what the plan
says, the peak of the resident set by the kernel (VmHWM), the time until the first step begins and the time of each
step. The files have no names and go with the process.
"""
import argparse
import json
import pathlib
import re
import resource
import subprocess
import tempfile
import time

LLAMA_7B = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu",
            "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}


def config(folder, tokens, limit):
    files = {"device": "nvme", "nvme_path": str(folder)}
    return {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 1.0,
            "bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
            "optimizer": {"type": "Lion", "params": {"lr": 1e-5}},
            "activation_checkpointing": {"enabled": True},
            "aio": {"block_size": 8388608, "queue_depth": 16},
            "memory_plan": {"sequence_length": tokens, "limit_bytes": limit},
            "zero_optimization": {"stage": 3,
                                  "offload_optimizer": {**files, "pipeline_read": True, "pipeline_write": True},
                                  "offload_param": {**files, "max_in_cpu": 0}}}


def status(pid, key):
    found = re.search(key + r":\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--folder", required=True, help="on a disk with 40 GiB of room")
    parser.add_argument("--memory", type=float, default=20, help="GiB of address space; default 20")
    parser.add_argument("--tokens", type=int, default=64, help="of the one sample of a step; default 64")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    limit = int(options.memory * 2**30)
    program = str(pathlib.Path(options.program).resolve())
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = pathlib.Path(name)
        (folder / "model.json").write_text(json.dumps(LLAMA_7B))
        (folder / "config.json").write_text(json.dumps(config(folder, options.tokens, limit)))
        (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 2000)
        planned = json.loads(subprocess.run(
            [program, "plan", "model.json", "config.json", "--device", "cpu", "--sequence-length", str(options.tokens),
             "--json"], cwd=folder, capture_output=True, text=True, check=True).stdout)
        memory, files = planned["memory_per_rank"], planned["files_per_rank"]
        print(f"planned: {memory['total'] / 2**30:.2f} GiB of memory, {files['total'] / 2**30:.2f} GiB in files", flush=True)
        began = time.monotonic()
        process = subprocess.Popen(
            [program, "train", "--model", "model.json", "--config", "config.json", "--data", "text.txt",
             "--sequence-length", str(options.tokens), "--steps", str(options.steps), "--log-interval", "1",
             "--eval-interval", "0"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        peak, last = 0, None
        for line in process.stdout:
            now = time.monotonic()
            try:
                peak = max(peak, status(process.pid, "VmHWM"))
            except FileNotFoundError:
                pass
            if line.startswith(("bf16", "step ", "done:")):
                # The last line before the first step comes when the engine is made.
                what = "made after" if line.startswith("bf16") else "after further"
                print(f"{line.strip()}: {what} {now - (last or began):.1f} s", flush=True)
                last = now
            else:
                print(line.rstrip(), flush=True)
        print(f"ended with {process.wait()} after {time.monotonic() - began:.1f} s; peak of the resident set "
              f"{peak / 2**30:.2f} GiB, {options.memory:g} GiB of address space allowed")


if __name__ == "__main__":
    main()
