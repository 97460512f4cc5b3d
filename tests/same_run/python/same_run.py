"""The run of tests/same_run/README.md through the Python binding:
same_run.py run.json TEXT built_in|external OUTPUT"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import ds


def built_in(run: dict[str, Any], text: str) -> ds.Model:
    spec = run["built_in"]
    model = ds.Model(spec["model"], spec["seed"])
    with ds.Tokenizer() as of_bytes:
        data = ds.Dataset({**spec["dataset"], "path": text}, of_bytes)
    with ds.Engine(model, run["engine"]) as engine:
        engine.set_dataset(data)
        for _ in engine.train(spec["steps"]):
            pass
    return model


def external(run: dict[str, Any]) -> ds.Model:
    spec = run["external"]
    model = ds.Model.from_parameters(
        ds.Parameter(parameter["name"], shape=parameter["shape"])
        for parameter in spec["parameters"]
    )
    with ds.Engine(model, run["engine"]) as engine:
        for step in range(spec["steps"]):
            for _ in range(run["engine"]["gradient_accumulation_steps"]):
                gradients = []
                for index in range(len(model)):
                    weight = model.get(index).numpy()
                    places = np.arange(weight.size).reshape(weight.shape)
                    wanted = ((places * 7 + step * 3 + index * 5) % 11).astype(np.float32) / 8
                    gradients.append((weight - wanted) / np.float32(2))
                engine.add_gradients(gradients)
                engine.step()
    return model


def main() -> None:
    if len(sys.argv) != 5 or sys.argv[3] not in ("built_in", "external"):
        sys.exit(__doc__)
    run = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    model = built_in(run, sys.argv[2]) if sys.argv[3] == "built_in" else external(run)
    with open(sys.argv[4], "wb") as output:
        for index in range(len(model)):
            output.write(model.get(index).tobytes())


if __name__ == "__main__":
    main()
