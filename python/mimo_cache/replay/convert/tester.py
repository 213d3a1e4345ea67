"""kv-cache-tester: a JSON file a session, or a folder of them, which may hold entries with requests of their own."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mimo_cache._core import InvalidArgument, TraceError

from . import source
from .base import Format, Options, Request
from .source import bad, hashes, milliseconds, opened, record, whole

MAX_FILE = 1 << 30
"""Largest file, in bytes when unpacked."""
_TOOLS = 1 << 63


class KvCacheTester(Format):
    """Sessions of kv-cache-tester. Times inside a session are the file's; where sessions start is drawn by the seed."""

    name = "kv-cache-tester"
    own_block = 64

    def __init__(self, options: Options) -> None:
        if options.spread < 0 or not options.spread < 1e9:
            raise InvalidArgument(f"spread is {options.spread}, allowed is 0 to 1e9 seconds")
        super().__init__(options)
        self._chance = random.Random(options.seed)
        self._found: list[Request] = []
        self._sessions = 0

    def records(self, path: Path) -> Iterator[tuple[int, Any]]:
        """A record a file; errors inside it are numbered by file."""
        files = sorted(path.glob("*.json")) + sorted(path.glob("*.json.gz")) if path.is_dir() else [path]
        if not files:
            raise InvalidArgument(f"input is {str(path)!r}, allowed is a JSON file or a folder of files *.json")
        for number, file in enumerate(files, 1):
            try:
                yield number, (file.name, _read(number, file))
            except TraceError as error:
                yield number, error

    def take(self, number: int, value: Any) -> Iterable[Request]:
        """Holds the requests of a file; they are given in order of time at the end."""
        name, content = value
        session = record(number, content)
        if session.get("block_size", self.own_block) != self.own_block:
            wrong = source.shown(session["block_size"])
            raise bad(number, f"block_size of {name} is {wrong}, allowed is {self.own_block}")
        start = round(self._chance.random() * self.options.spread * 1000)
        found: list[Request] = []
        for at, entry in enumerate(_list(number, session, name), 1):
            try:
                found += self._entry(number, session, record(number, entry), start)
            except TraceError as error:
                raise bad(number, f"request {at} of {name}: {str(error).partition(': ')[2]}") from None
        self._found += found
        self._sessions += 1
        return ()

    def end(self) -> Iterable[Request]:
        """Everything, in order of time."""
        yield from sorted(self._found, key=lambda r: r.t_ms)

    def _entry(self, number: int, session: Mapping[str, Any], entry: Mapping[str, Any], start: int) -> list[Request]:
        at = start + milliseconds(number, entry, "t", 1000)
        if entry.get("type") != "subagent":
            return [self._request(number, session, entry, at)]
        inner = [record(number, e) for e in _list(number, entry, "an entry with requests")]
        # Their times count from the start of the entry.
        return [self._request(number, entry, e, at + milliseconds(number, e, "t", 1000), session) for e in inner]

    def _request(
        self,
        number: int,
        agent: Mapping[str, Any],
        entry: Mapping[str, Any],
        at: int,
        session: Mapping[str, Any] | None = None,
    ) -> Request:
        prompt = whole(number, entry, "in", source.MAX_PROMPT)
        output = whole(number, entry, "out", default=0)
        blocks = hashes(number, entry, "hash_ids")
        scope = (session or agent).get("hash_id_scope", "local")
        if scope not in ("local", "global"):
            raise bad(number, f"hash_id_scope is {source.shown(scope)}, allowed is local or global")
        if scope == "local":
            if any(not 0 <= h < 1 << 38 for h in blocks) or self._sessions >= 1 << 24:
                raise bad(number, "hash_ids of scope local are allowed from 0 to 2^38 - 1, in 2^24 files")
            blocks = [self._sessions << 38 | h for h in blocks]
        if self.options.share_tools:
            tools = whole(number, agent, "tool_tokens", 1 << 40, default=0)
            shared = min(len(blocks), tools // self.own_block)
            blocks[:shared] = (_TOOLS + (tools << 20) + i for i in range(shared))
        # The file may name fewer blocks than the prompt has; the rest of it is after the last full block.
        many = self.block_size // self.own_block
        blocks = blocks[: prompt // self.own_block]
        runs = self.runs_of(number, blocks, len(blocks) // many * self.block_size)
        return Request(at, self._sessions, prompt, output, runs)


def _read(number: int, file: Path) -> Any:
    try:
        with opened(file) as f:
            content = f.read(MAX_FILE + 1)
    except (EOFError, OSError) as error:
        raise bad(number, f"{file.name} cannot be read ({error})") from None
    if len(content) > MAX_FILE:
        raise bad(number, f"{file.name} is longer than {MAX_FILE} bytes, the most that is allowed")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise bad(number, f"{file.name} is not JSON ({str(error)[:120]})") from None


def _list(number: int, source_: Mapping[str, Any], of: str) -> list[Any]:
    value = source_.get("requests")
    if not isinstance(value, list):
        raise bad(number, f"requests of {of} is {source.shown(value)}, allowed is a list")
    return value
