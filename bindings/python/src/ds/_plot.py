"""Plots of a run."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Optional, Union

from ._core import PathLike
from ._structs import StepReport

Series = dict[str, tuple[list[float], list[float]]]


def read_metrics(run: PathLike) -> Series:
    """What the monitors of a run wrote into a folder (JSON lines, else CSV): of each scalar the steps and
    the values, in the order of steps. A step that was written twice, before and after a resume, counts
    as the later one. Steps are what the run wrote: samples with DeepSpeed's monitors."""
    folder = Path(run)
    points: dict[str, dict[float, float]] = {}
    lines = sorted(folder.rglob("*.jsonl")) if folder.is_dir() else [folder]
    for file in lines:
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.strip():
                _add_line(json.loads(line), points)
    if not points and folder.is_dir():
        for file in sorted(folder.rglob("*.csv")):
            _add_table(file, points)
    if not points:
        raise FileNotFoundError(
            f"{folder}: no metrics: configure jsonl_monitor or csv_monitor with a folder of this run"
        )
    return {
        name: (sorted(values), [values[step] for step in sorted(values)])
        for name, values in sorted(points.items())
    }


def _add_line(line: dict[str, Any], points: dict[str, dict[float, float]]) -> None:
    step = line.get("step")
    if not isinstance(step, (int, float)):
        return
    for name, value in line.items():
        if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool):
            points.setdefault(name, {})[float(step)] = float(value)


def _add_table(file: Path, points: dict[str, dict[float, float]]) -> None:
    with file.open(newline="", encoding="utf-8") as content:
        for row in csv.reader(content):
            try:
                step, value = float(row[0]), float(row[1])
            except (ValueError, IndexError):
                continue  # the heading
            points.setdefault(file.stem, {})[step] = value


def _of_reports(reports: Iterable[StepReport]) -> Series:
    kept = list(reports)
    steps = [float(report.step) for report in kept]
    return {
        "loss": (steps, [report.loss for report in kept]),
        "lr": (steps, [report.lr for report in kept]),
        "gradient norm": (steps, [report.grad_norm for report in kept]),
        "tokens per second": (steps, [r.tokens / max(r.seconds, 1e-9) for r in kept]),
    }


def plot(
    run: Union[PathLike, Iterable[StepReport]],
    metrics: Optional[Iterable[str]] = None,
    *,
    figure: Any = None,
) -> Any:
    """Draws the metrics of a run, one below another, with matplotlib; the figure.

    `run` is a folder that a monitor of the run wrote to, or step reports. `metrics`: names, or parts of
    names, of those to draw; None: all."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("ds.plot needs matplotlib: pip install matplotlib") from error
    if isinstance(run, (str, os.PathLike)):
        series = read_metrics(run)
    else:
        series = _of_reports(run)
    wanted = None if metrics is None else list(metrics)
    chosen = {
        name: values
        for name, values in series.items()
        if wanted is None or any(part in name for part in wanted)
    }
    if not chosen:
        raise ValueError(f"no such metric: the run has {', '.join(series)}")
    figure = figure or pyplot.figure(figsize=(7, 2.2 * len(chosen)), layout="constrained")
    axes = figure.subplots(len(chosen), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, (steps, values)) in zip(axes, chosen.items()):
        axis.plot(steps, values)
        axis.set_title(name, fontsize="medium", loc="left")
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("step")
    return figure
