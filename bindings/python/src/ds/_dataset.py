"""Data sets: samples of token ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional, Union

from . import _native
from ._core import Document, Handle, PathLike, optional, path_text, to_json
from ._structs import DatasetInfo
from ._tensor import Tensor
from ._tokenizer import Tokenizer


class Dataset(Handle):
    """Samples of token ids; immutable, for any number of threads at once.

    `Dataset({"path": "book.txt", "sequence_length": 64})`, or with keywords:
    `Dataset(path="book.txt", sequence_length=64)`. docs/data.md has all keys. A text file is read by
    the tokenizer; without one its bytes are the tokens.
    """

    _destroy = _native.ds_dataset_destroy

    def __init__(
        self, spec: Optional[Document] = None, tokenizer: Optional[Tokenizer] = None, **keys: Any
    ) -> None:
        if keys:
            if isinstance(spec, str):
                raise TypeError("keywords go with a dict or alone, not with the text of a document")
            spec = {**(spec if isinstance(spec, Mapping) else {}), **keys}
        super().__init__(_native.ds_dataset_open(to_json(spec), optional(tokenizer)))

    @property
    def info(self) -> DatasetInfo:
        return DatasetInfo._make(_native.ds_dataset_describe(self._handle))

    @property
    def sequence_length(self) -> int:
        """Tokens per sample less one."""
        return self.info.sequence_length

    def __len__(self) -> int:
        """Number of samples."""
        return self.info.samples

    def __getitem__(self, index: int) -> Tensor:
        """A sample of running tokens: int32 [sequence_length + 1]."""
        samples = len(self)
        if index < 0:
            index += samples
        if not 0 <= index < samples:
            raise IndexError(f"sample {index} of {samples}")
        return Tensor._of(_native.ds_dataset_sample(self._handle, index))

    def __iter__(self) -> Iterator[Tensor]:
        return (self[index] for index in range(len(self)))

    def field(self, index: int, name: str) -> Tensor:
        """A field of a sample [sequence_length]: "ids", "labels", "segments", "token_types" (int32) or
        "mask" (uint8); "sentence_order" [1]."""
        return Tensor._of(_native.ds_dataset_field(self._handle, index, name))

    def __repr__(self) -> str:
        if self.closed:
            return "ds.Dataset(closed)"
        return f"ds.Dataset(samples={len(self)}, sequence_length={self.sequence_length})"


def build_dataset(
    source: PathLike,
    output_prefix: PathLike,
    tokenizer: Union[Tokenizer, None] = None,
    *,
    append_end: bool = True,
) -> None:
    """Tokenises a text or .jsonl file into PREFIX.bin and PREFIX.idx (Megatron's format);
    `append_end` puts one end-of-text token after each document. Without a tokenizer bytes are tokens."""
    if tokenizer is None:
        with Tokenizer() as of_bytes:
            build_dataset(source, output_prefix, of_bytes, append_end=append_end)
        return
    _native.ds_dataset_build(
        path_text(source), tokenizer._handle, int(append_end), path_text(output_prefix)
    )


def merge_datasets(prefixes: Iterable[PathLike], output_prefix: PathLike) -> None:
    """Writes the documents of several data sets of tokens, given by their prefixes, one after another
    into PREFIX.bin and PREFIX.idx."""
    inputs = json.dumps([path_text(prefix) for prefix in prefixes])
    _native.ds_dataset_merge(inputs, path_text(output_prefix))
