"""What the tests of the Python binding share."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

import ds

# Jobs that a shell runs in the background ignore Ctrl-C, and so would what they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[3]

SHAPE: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 256,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}},
}
TEXT = "The quick brown fox jumps over the lazy dog. " * 200


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Warnings of the library belong to no test's output."""
    ds.set_log_level("error")
    yield
    ds.set_log_level("warning")


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def dataset(text_file: Path) -> ds.Dataset:
    return ds.Dataset(path=str(text_file), sequence_length=16)


@pytest.fixture
def model() -> ds.Model:
    return ds.Model(SHAPE, seed=1)


@pytest.fixture
def engine(model: ds.Model, dataset: ds.Dataset) -> ds.Engine:
    made = ds.Engine(model, CONFIG)
    made.set_dataset(dataset)
    return made


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    """Runs a program in a process of its own; its text is dedented."""

    def run(
        program: str, *arguments: str, timeout: float = 60, **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        import os

        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(program), encoding="utf-8")
        return subprocess.run(
            [sys.executable, str(path), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **environment},
            check=False,
        )

    return run
