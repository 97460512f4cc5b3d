"""What may be asked about a configuration without an engine."""

from __future__ import annotations

import json
from typing import Any, Union

from . import _native
from ._core import Document, PathLike, document_or_file, options

__all__ = ["check", "plan", "schema"]


def check(config: Union[Document, PathLike], **given: Any) -> dict[str, Any]:
    """Everything that is wrong with a DeepSpeed configuration, at once: {"accepted", "problems": [{"kind",
    "path", "text", "advice"}], "warnings", "document", "config", ...}.

    Keywords: how it is read (`resolve_auto`, `lenient`, `set`, `require_optimizer`) and where it would be
    used (`world`, `device`, `model`), as in ds_config_check."""
    result: dict[str, Any] = json.loads(
        _native.ds_config_check(document_or_file(config), options(**given))
    )
    return result


def schema() -> dict[str, Any]:
    """Every key that a configuration may have, as a JSON Schema."""
    result: dict[str, Any] = json.loads(_native.ds_config_schema())
    return result


def plan(
    model: Union[Document, PathLike], config: Union[Document, PathLike], **given: Any
) -> dict[str, Any]:
    """What training would take on each rank of a world that need not be there: bytes of memory by tag and
    bytes moved per step. `model` is a config.json or {"parameters": N, "layers": L}. Keywords: `world`,
    `ranks_per_node`, `sequence_length`, `device`; `compare` (does it fit, what would help) or `fit` (the fastest
    variant that fits) with `memory`, `gpu_memory`, `disk`, `folder`, `rates`."""
    result: dict[str, Any] = json.loads(
        _native.ds_plan(document_or_file(model), document_or_file(config), options(**given))
    )
    return result
