"""Checkpoints on disk, without an engine."""

from __future__ import annotations

import json
from typing import Any, Optional

from . import _native
from ._core import PathLike, path_text

__all__ = ["delete", "inspect", "verify"]


def inspect(folder: PathLike, tag: Optional[str] = None) -> dict[str, Any]:
    """Tags of a folder, and of one checkpoint (the newest valid one without `tag`) its counters, tensors with
    shapes and places, and configuration."""
    result: dict[str, Any] = json.loads(_native.ds_checkpoint_inspect(path_text(folder), tag))
    return result


def delete(folder: PathLike, tag: str) -> None:
    """Deletes one checkpoint of a folder, valid or not."""
    _native.ds_checkpoint_delete(path_text(folder), tag)


def verify(folder: PathLike, tag: Optional[str] = None) -> None:
    """Reads every byte of a checkpoint and compares checksums; the error names file, tensor and bytes."""
    _native.ds_checkpoint_verify(path_text(folder), tag)
