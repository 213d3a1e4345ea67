"""Traces that name the blocks of a prompt by hashes: Mooncake and Qwen-Bailian."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import source
from .base import Format, Options, Request, Sessions
from .source import bad, hashes, milliseconds, record, whole


class Mooncake(Format):
    """The traces of Mooncake (FAST'25): `timestamp` in ms, `input_length`, `output_length`, `hash_ids` of 512."""

    name = "mooncake"
    own_block = 512

    def take(self, number: int, value: Any) -> Iterable[Request]:
        r = record(number, value)
        prompt = whole(number, r, "input_length", source.MAX_PROMPT)
        output = whole(number, r, "output_length", default=0)
        runs = self.runs_of(number, hashes(number, r, "hash_ids"), prompt)
        yield Request(milliseconds(number, r, "timestamp", 1), -1, prompt, output, runs)


class Bailian(Format):
    """The anonymised traces of Qwen on Bailian (ATC'25): times in seconds, blocks of 16 tokens, chats with parents."""

    name = "bailian"
    own_block = 16

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._sessions = Sessions()

    def default_block(self) -> int:
        return 64  # the default page; replay needs whole pages

    def take(self, number: int, value: Any) -> Iterable[Request]:
        r = record(number, value)
        prompt = whole(number, r, "input_length", source.MAX_PROMPT)
        output = whole(number, r, "output_length", default=0)
        chat, parent = r.get("chat_id"), r.get("parent_chat_id", -1)
        for key, id_ in (("chat_id", chat), ("parent_chat_id", parent)):
            if not isinstance(id_, int) or isinstance(id_, bool):
                raise bad(number, f"{key} is {source.shown(id_)}, allowed is a whole number")
        t_ms = milliseconds(number, r, "timestamp", 1000)
        runs = self.runs_of(number, hashes(number, r, "hash_ids"), prompt)
        yield Request(t_ms, self._sessions.of(chat, parent), prompt, output, runs)
