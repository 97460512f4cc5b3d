"""Tokenizers: text to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Union

from . import _native
from ._core import Handle, PathLike, options, path_text
from ._structs import TokenizerInfo
from ._tensor import Tensor, asarray


class Tokenizer(Handle):
    """Text to token ids and back; immutable, for any number of threads at once.

    `Tokenizer()` has the 256 byte values as tokens.
    """

    _destroy = _native.ds_tokenizer_destroy

    def __init__(self) -> None:
        super().__init__(_native.ds_tokenizer_create_bytes())

    @classmethod
    def _of(cls, handle: Any) -> Tokenizer:
        tokenizer = cls.__new__(cls)
        Handle.__init__(tokenizer, handle)
        return tokenizer

    @classmethod
    def open(cls, path: PathLike) -> Tokenizer:
        """Reads a `tokenizer.json`, a folder that holds one (or vocab.json and merges.txt), or a
        checkpoint that holds one."""
        return cls._of(_native.ds_tokenizer_open(path_text(path)))

    @classmethod
    def from_json(cls, text: Union[str, bytes]) -> Tokenizer:
        """Reads the text of a `tokenizer.json`."""
        return cls._of(_native.ds_tokenizer_from_json(text))

    @classmethod
    def train(
        cls,
        text: Union[str, bytes],
        vocab_size: Optional[int] = None,
        *,
        min_frequency: Optional[int] = None,
        special_tokens: Optional[Sequence[str]] = None,
    ) -> Tokenizer:
        """Learns a byte-level byte-pair encoding. Deterministic. Defaults: 32000 tokens, frequency 2."""
        given = options(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=None if special_tokens is None else list(special_tokens),
        )
        return cls._of(_native.ds_tokenizer_train(text, given))

    @property
    def info(self) -> TokenizerInfo:
        return TokenizerInfo._make(_native.ds_tokenizer_describe(self._handle))

    @property
    def vocab_size(self) -> int:
        """Number of token ids: ids are in [0, vocab_size)."""
        return self.info.vocab_size

    @property
    def end_of_text(self) -> Optional[int]:
        """Id of the end-of-text token, None when there is none."""
        token = self.info.end_of_text
        return None if token < 0 else token

    def encode(self, text: Union[str, bytes], *, add_special: bool = False) -> Tensor:
        """Token ids of a text: int32 [count]. `add_special` adds the tokens that the tokenizer's
        template puts around a text."""
        return Tensor._of(_native.ds_tokenizer_encode(self._handle, text, int(add_special)))

    def decode(self, ids: Any, *, skip_special: bool = False) -> str:
        """Text of token ids [count]; bytes that are not UTF-8 become U+FFFD."""
        return str(
            _native.ds_tokenizer_decode(self._handle, asarray(ids)._handle, int(skip_special))
        )

    def token_to_id(self, token: str) -> int:
        """Id of a token given as the file spells it; NotFoundError when there is none."""
        return int(_native.ds_tokenizer_token_to_id(self._handle, token))

    def id_to_token(self, token: int) -> str:
        """Spelling of a token id."""
        return str(_native.ds_tokenizer_id_to_token(self._handle, token))

    def to_json(self) -> str:
        """The tokenizer as the text of a `tokenizer.json`."""
        return str(_native.ds_tokenizer_to_json(self._handle))

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        if self.closed:
            return "ds.Tokenizer(closed)"
        return f"ds.Tokenizer(vocab_size={self.vocab_size}, end_of_text={self.end_of_text})"
