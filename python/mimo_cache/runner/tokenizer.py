"""Text to tokens and back, by the checkpoint's `tokenizer.json`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mimo_cache import FileError
from mimo_cache.models.errors import need
from mimo_cache.models.files import read_limited

from .errors import RequestError

MAX_FILE = 256 << 20
"""Longest `tokenizer.json`, in bytes."""


class Tokenizer:
    """The tokenizer of a checkpoint directory. Raises `FileError` when its file is missing or broken."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        need("tokenizers")
        from tokenizers import Tokenizer as Loaded  # noqa: PLC0415  optional
        from tokenizers.decoders import DecodeStream  # noqa: PLC0415

        file = Path(path) / "tokenizer.json"
        data = read_limited(file, MAX_FILE)
        if data is None:
            raise FileError(f"{file}: over {MAX_FILE} bytes, allowed are {MAX_FILE}")
        try:
            self._loaded: Any = Loaded.from_str(data.decode())
        except Exception as error:  # the library raises plain Exception
            raise FileError(f"{file}: no tokenizer can be read from it: {error}") from error
        self._streams = DecodeStream

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; nothing is added before or after it. Raises `RequestError` for lone surrogates, which
        is what bytes that are no UTF-8 become in arguments of a command."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"the prompt has a lone surrogate at index {error.start}, allowed is text that UTF-8 can express"
            ) from error
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
