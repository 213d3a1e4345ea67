"""Text to tokens and back, by the checkpoint's `tokenizer.json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mimo_cache import FileError
from mimo_cache.models.errors import need

MAX_FILE = 256 << 20
"""Longest `tokenizer.json`, in bytes."""


class Tokenizer:
    """The tokenizer of a checkpoint directory. Raises `FileError` when its file is missing or broken."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        need("tokenizers")
        from tokenizers import Tokenizer as Loaded  # noqa: PLC0415  optional
        from tokenizers.decoders import DecodeStream  # noqa: PLC0415

        file = Path(path) / "tokenizer.json"
        try:
            size = file.stat().st_size
        except OSError as error:
            raise FileError(f"{file}: {error.strerror}") from error
        if size > MAX_FILE:
            raise FileError(f"{file}: {size} bytes, allowed are {MAX_FILE}")
        try:
            self._loaded: Any = Loaded.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise FileError(f"{file}: no tokenizer can be read from it: {error}") from error
        self._streams = DecodeStream

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; nothing is added before or after it."""
        ids: list[int] = self._loaded.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """Text of token ids, special tokens left out."""
        text: str = self._loaded.decode(ids)
        return text

    def stream(self) -> Stream:
        """A decoder for one completion."""
        return Stream(self._loaded, self._streams(skip_special_tokens=True))


class Stream:
    """Turns tokens into text as they come; the bytes of an unfinished character wait for the rest of it."""

    def __init__(self, tokenizer: Any, stream: Any) -> None:
        self._tokenizer, self._stream = tokenizer, stream

    def step(self, token: int) -> str:
        """New text that this token completes; often none."""
        text: str | None = self._stream.step(self._tokenizer, token)
        return text or ""
