"""Examples, the notebook, the program of the same run: each is run as a user would."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ds

from conftest import ROOT

EXAMPLES = ROOT / "examples" / "python"
LLAMA = {
    "model_type": "llama",
    "vocab_size": 257,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}


def run(program: Path, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, str(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def last_loss(output: str) -> float:
    lines = [line for line in output.splitlines() if "loss" in line]
    return float(lines[-1].split("loss")[1].split()[0])


def test_train(text_file: Path, tmp_path: Path) -> None:
    output = run(EXAMPLES / "train.py", text_file, 60, tmp_path / "out")
    assert last_loss(output) < 2.5
    assert ds.Tokenizer.open(tmp_path / "out").vocab_size == 256


def test_own_gradients() -> None:
    assert last_loss(run(EXAMPLES / "own_gradients.py")) < 0.02


def test_lora_on_a_hugging_face_folder(tmp_path: Path) -> None:
    base = ds.Model(LLAMA, seed=1)
    base.export(tmp_path / "model")
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "What is red? ", "completion": "A colour."}\n' * 20, encoding="utf-8")
    output = run(EXAMPLES / "lora.py", tmp_path / "model", data, 20, tmp_path / "out")
    assert last_loss(output) < 5.5
    assert (tmp_path / "out" / "adapter" / "adapter_config.json").exists()
    merged = ds.Model.open(tmp_path / "out" / "merged")
    assert merged.names() == base.names()
    changed = [i for i in range(len(base)) if merged.get(i).tobytes() != base.get(i).tobytes()]
    assert changed


def test_resume(text_file: Path, tmp_path: Path) -> None:
    program, checkpoints = EXAMPLES / "resume.py", tmp_path / "checkpoints"
    assert run(program, text_file, 20, checkpoints).startswith("begins\n")
    assert "goes on after step 20" in run(program, text_file, 40, checkpoints)
    run(program, text_file, 40, tmp_path / "whole")
    first, second = (ds.Model.open(folder) for folder in (checkpoints, tmp_path / "whole"))
    for index in range(len(first)):
        assert first.get(index).tobytes() == second.get(index).tobytes()


def run_ranks(size: int, program: Path, *arguments: object) -> str:
    """What the first of several processes prints, started as torchrun starts them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), *map(str, arguments)],
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * size
    return outputs[0]


def test_zero3_goes_on_with_another_number_of_processes(text_file: Path, tmp_path: Path) -> None:
    program, out = EXAMPLES / "zero3.py", tmp_path / "out"
    assert "after step 0: 3 processes, ZeRO stage 3" in run_ranks(3, program, text_file, 10, out)
    assert "after step 10: 2 processes" in run_ranks(2, program, text_file, 20, out)
    output = run(program, text_file, 30, out)
    assert "after step 20: 1 processes" in output
    alone = run(program, text_file, 30, tmp_path / "alone")
    # The same samples make the same steps; the sums of ranks are rounded in another order.
    assert abs(last_loss(output) - last_loss(alone)) < 2e-3


def test_larger_than_memory(text_file: Path, tmp_path: Path) -> None:
    output = run(EXAMPLES / "larger_than_memory.py", text_file, tmp_path, 20)
    assert "training does not fit" in output
    assert "MB in files" in output
    assert last_loss(output) < 5


def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells in order, as a kernel would run them; both plots have curves."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    notebook = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "cells are kept without outputs"
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    assert [len(figure.axes) for figure in figures] == [4, 2]
    assert all(len(axis.lines[0].get_xdata()) == 60 for figure in figures for axis in figure.axes)
    pyplot.close("all")
    assert names["reports"][-1].loss < 1.5


@pytest.mark.parametrize("kind", ["built_in", "external"])
def test_same_run(kind: str, tmp_path: Path) -> None:
    """The program of tests/same_run: the same bits twice, of the model's size."""
    description = ROOT / "tests" / "same_run" / "run.json"
    program = ROOT / "tests" / "same_run" / "python" / "same_run.py"
    outputs = []
    for number in range(2):
        output = tmp_path / str(number)
        run(program, description, ROOT / "LICENSE", kind, output)
        outputs.append(output.read_bytes())
    assert outputs[0] == outputs[1]
    spec = json.loads(description.read_text(encoding="utf-8"))
    if kind == "external":
        sizes = [[*p["shape"], 1] for p in spec["external"]["parameters"]]
        assert len(outputs[0]) == 4 * sum(a * b for a, b, *_ in sizes)
        expected = numpy_run(spec)
        values = struct.unpack(f"<{len(expected)}f", outputs[0])
        assert max(abs(a - b) for a, b in zip(values, expected)) < 1e-4
    else:
        assert len(outputs[0]) == 4 * ds.Model(spec["built_in"]["model"]).info.elements


def numpy_run(spec: dict[str, Any]) -> list[float]:
    """The external run in double precision: AdamW with clipping and a warm-up, written out."""
    import numpy as np

    engine, params = spec["engine"], spec["engine"]["optimizer"]["params"]
    warmup = engine["scheduler"]["params"]["warmup_num_steps"]
    peak = engine["scheduler"]["params"]["warmup_max_lr"]
    weights = [np.zeros(p["shape"]) for p in spec["external"]["parameters"]]
    first = [np.zeros_like(w) for w in weights]
    second = [np.zeros_like(w) for w in weights]
    b1, b2 = params["betas"]
    for step in range(spec["external"]["steps"]):
        gradients = []
        for index, weight in enumerate(weights):
            places = np.arange(weight.size).reshape(weight.shape)
            wanted = ((places * 7 + step * 3 + index * 5) % 11) / 8
            gradients.append(weight - wanted)  # two micro batches of one half each
        norm = np.sqrt(sum((g**2).sum() for g in gradients))
        scale = min(1.0, engine["gradient_clipping"] / (norm + 1e-6))
        # The first step has the rate from before the schedule's first call, as in DeepSpeed.
        lr = peak * min(1.0, np.log(max(step, 1)) / np.log(warmup))
        for weight, m, v, gradient in zip(weights, first, second, gradients):
            g = gradient * scale
            m += (1 - b1) * (g - m)
            v += (1 - b2) * (g * g - v)
            t = step + 1
            update = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + 1e-8)
            weight -= lr * (update + params["weight_decay"] * weight)
    return [float(x) for weight in weights for x in weight.ravel()]


def test_plots_of_a_run(tmp_path: Path, engine: ds.Engine) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    with pytest.raises(FileNotFoundError, match="jsonl_monitor"):
        ds.read_metrics(tmp_path)
    lines = ['{"step": 1, "loss": 3.0}', '{"step": 2, "loss": 9.0}', '{"step": 2, "loss": 2.0}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert ds.read_metrics(tmp_path) == {"loss": ([1.0, 2.0], [3.0, 2.0])}
    table = tmp_path / "csv"
    table.mkdir()
    (table / "Train_loss.csv").write_text("step,Train_loss\n8,1.5\n16,1.25\n", encoding="utf-8")
    assert ds.read_metrics(table) == {"Train_loss": ([8.0, 16.0], [1.5, 1.25])}
    figure = ds.plot(engine.train(3), ["loss"])
    assert len(figure.axes) == 1
    with pytest.raises(ValueError, match="loss"):
        ds.plot(tmp_path, ["accuracy"])
    pyplot.close("all")


def test_the_package_runs_without_numpy(run_python: Any, text_file: Path) -> None:
    """NumPy, PyTorch, tqdm and matplotlib are used where they are; nothing needs them."""
    done = run_python(
        """
        import sys
        for name in ("numpy", "torch", "tqdm", "matplotlib"):
            sys.modules[name] = None
        import ds
        shape = {"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 16,
                 "n_layer": 1, "n_head": 1}
        engine = ds.Engine(ds.Model(shape), {"train_micro_batch_size_per_gpu": 2})
        engine.set_dataset(ds.Dataset(path=sys.argv[1], sequence_length=16))
        for report in engine.train(2, progress=True):
            pass
        print(report.step, ds.asarray([[1, 2]]).tolist(), len(ds.Generator(engine.model).generate([1], 2)))
        """,
        str(text_file),
    )
    assert done.stdout == "2 [[1, 2]] 2\n", done.stderr
    assert "2/2" in done.stderr


