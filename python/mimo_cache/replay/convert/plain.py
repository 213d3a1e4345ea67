"""Prompts as texts or token ids, one a line."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from . import source
from .base import Format, Options, Request, Sessions
from .source import bad, milliseconds, record, whole


class Plain(Format):
    """Texts or token ids: `tokens`, or `prompt` or `text` at 4 bytes of UTF-8 a token; `session`, `time` or `t`."""

    name = "plain"
    own_block = 64
    splits = True

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._sessions = Sessions()
        self._last = 0

    def take(self, number: int, value: Any) -> Iterable[Request]:
        r = record(number, value)
        given = [key for key in ("tokens", "prompt", "text") if key in r]
        if len(given) != 1:
            raise bad(number, f"a prompt is named by {given or 'nothing'}, allowed is one of tokens, prompt and text")
        packed = self._packed(number, given[0], r[given[0]])
        if "t" in r:
            t_ms = whole(number, r, "t")
        else:
            t_ms = milliseconds(number, r, "time", 1000) if "time" in r else self._last
        self._last = t_ms
        session = r.get("session")
        if session is not None and (not isinstance(session, int | str) or isinstance(session, bool)):
            raise bad(number, f"session is {source.shown(session)}, allowed is a whole number or text")
        output = whole(number, r, "output_tokens", default=0)
        runs = self.ids.of_tokens(packed, self.block_size)
        yield Request(t_ms, -1 if session is None else self._sessions.of(session), len(packed) // 4, output, runs)

    @staticmethod
    def _packed(number: int, key: str, value: Any) -> bytes:
        """Four bytes a token."""
        if key != "tokens":
            if not isinstance(value, str):
                raise bad(number, f"{key} is {source.shown(value)}, allowed is text")
            text = value.encode("utf-8", "surrogatepass")
            return text[: len(text) // 4 * 4]
        if not isinstance(value, list):
            raise bad(number, f"tokens is {source.shown(value)}, allowed is a list of token ids")
        # JSON has no other type that passes for a whole number.
        if bool not in set(map(type, value)):
            with suppress(AttributeError, OverflowError):
                return b"".join(token.to_bytes(4, "little") for token in value)
        wrong = next(v for v in value if not isinstance(v, int) or isinstance(v, bool) or not 0 <= v < 1 << 32)
        raise bad(number, f"tokens has {source.shown(wrong)}, allowed are token ids from 0 to 4294967295")
