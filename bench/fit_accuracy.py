"""The time of a step that `ds plan --fit` foresees beside the measured one: fit_accuracy.py DS_PROGRAM --folder FOLDER

Six configurations: all in memory, growing shares of the optimizer's state in files, all of it, and with less memory
yet. Each is chosen by `--fit` for a limit of memory, from rates that it measures itself, and trains; of the steps after
the first two the median counts. Where a share is offloaded, the same trains with all of the state offloaded, too.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

GPT2 = {"model_type": "gpt2", "vocab_size": 8192, "n_positions": 256, "n_embd": 768, "n_layer": 12, "n_head": 12}
BASE = {"train_micro_batch_size_per_gpu": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "bf16": {"enabled": True}}
LIMITS = (("all in memory", "8G"), ("a little less than all", "1650M"), ("", "1300M"), ("", "900M"),
          ("what all of the state in files leaves", "600M"), ("less yet", "350M"))


def run(program, folder, steps):
    """The median of the steps after the first two, in seconds."""
    process = subprocess.Popen(
        [program, "train", "--model", "model.json", "--config", "fits.json", "--data", "text.txt", "--log-interval", "1",
         "--steps", str(steps), "--eval-interval", "0"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True)
    times, said = [], ""
    for line in process.stdout:
        said += line
        if line.startswith(("step ", "done:")):
            times.append(time.monotonic())
    assert process.wait() == 0, said
    return statistics.median(end - begin for begin, end in zip(times[1:], times[2:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--folder", required=True, help="on the disk that state in files is to lie on")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rows", help="of these numbers alone, 1 to 6: 1,3")
    options = parser.parse_args()
    program = str(pathlib.Path(options.program).resolve())
    print("| limit | chosen | foreseen, s: compute, update, files | together | measured | foreseen to it | "
          "all offloaded |\n| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = pathlib.Path(name)
        (folder / "model.json").write_text(json.dumps(GPT2))
        (folder / "config.json").write_text(json.dumps(BASE))
        (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 4000)
        rows = range(len(LIMITS)) if options.rows is None else [int(row) - 1 for row in options.rows.split(",")]
        for what, limit in (LIMITS[row] for row in rows):
            done = subprocess.run(
                [program, "plan", "model.json", "config.json", "--device", "cpu", "--memory", limit, "--fit", "--folder",
                 str(folder), "--save", "fits.json", "--json"], cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            fit = json.loads(done.stdout)["fit"]
            seconds = fit["seconds_per_step"]
            measured = run(program, folder, options.steps)
            zero = fit["config"].get("zero_optimization", {})
            chosen = [f"micro batch {fit['config']['train_micro_batch_size_per_gpu']}"]
            if fit["config"].get("activation_checkpointing", {}).get("enabled"):
                chosen.append("recomputed")
            share = zero.get("offload_optimizer", {}).get("ratio", 1)
            chosen += [key for key in ("offload_optimizer", "offload_param") if key in zero]
            whole = "-"
            if share < 1:
                chosen[-1 if "offload_param" not in zero else -2] += f" of {share}"
                del zero["offload_optimizer"]["ratio"]
                (folder / "fits.json").write_text(json.dumps(fit["config"]))
                whole = f"{run(program, folder, options.steps):.2f}"
            parts = ", ".join(f"{seconds[key]:.2f}" for key in ("compute", "update", "files"))
            print(f"| {f'{what}, {limit}'.lstrip(', ')} | {', '.join(chosen)} | {parts} | {seconds['total']:.2f} | {measured:.2f} | "
                  f"{seconds['total'] / measured:.2f} | {whole} |", flush=True)


if __name__ == "__main__":
    main()
