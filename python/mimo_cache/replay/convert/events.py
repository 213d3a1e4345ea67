"""Logs of the KV events of vLLM and SGLang: which blocks an engine stored, in chains from the start of a prompt.

An engine tells of blocks when it has computed them, not of prompts, and not of hits. A request is taken to be a chain
of blocks, each stored after the one before it; a chain that follows blocks of earlier requests has them in its prompt.
What the trace shows is therefore what the engine had to compute: prompts that it served from its cache are not in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from mimo_cache._core import InvalidArgument

from . import source
from .base import Format, Options, Request
from .source import bad, milliseconds, whole

_FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
_MOST_OPEN = 1 << 16
_MOST_BLOCKS = 1 << 24
"""Blocks whose parents are remembered, about 200 bytes each."""


@dataclass
class _Chain:
    """A request that may still go on."""

    first_ms: int
    last_ms: int
    last: object
    """Hash of its newest block."""


class VllmEvents(Format):
    """Batches of vLLM's KV events, as objects or as arrays; blocks of the full-attention group on the device."""

    name: ClassVar[str] = "vllm-events"
    own_block = 1  # whatever the log has

    def __init__(self, options: Options) -> None:
        if not 0 <= options.gap < 1e9:
            raise InvalidArgument(f"gap is {options.gap}, allowed is 0 to 1e9 seconds")
        # Known with the first block.
        self._log_block: int | None = None
        super().__init__(options)
        self._parents: dict[object, object] = {}
        self._numbers: dict[object, int] = {}
        self._most = min(options.max_blocks, _MOST_BLOCKS)
        self._open: dict[object, _Chain] = {}
        """By newest block."""
        self._in_order: deque[_Chain] = deque()
        """All open ones, by start."""
        self._start: int | None = None

    def default_block(self) -> int:
        return 64

    def take(self, number: int, value: Any) -> Iterable[Request]:
        """The requests that are over by the time of a batch."""
        ts, events = _batch(number, value)
        if self._start is None:
            self._start = ts
        now = max(0, ts - self._start)
        yield from self._over(now - round(self.options.gap * 1000))
        for event in events:
            kind, fields = _event(number, event)
            if kind == "BlockStored" and _counts(fields):
                self._stored(number, fields, now)

    def end(self) -> Iterable[Request]:
        yield from self._over(None)

    def _stored(self, number: int, fields: dict[str, Any], now: int) -> None:
        size = whole(number, fields, "block_size", 1 << 20)
        if self._log_block is None:
            if size < 1 or self.block_size % size:
                raise bad(
                    number, f"block_size is {size}, allowed is a divisor of the trace's block of {self.block_size}"
                )
            self._log_block = size
        if size != self._log_block:
            raise bad(number, f"block_size is {size}, allowed is {self._log_block}, that of the blocks before")
        blocks = fields.get("block_hashes")
        if not isinstance(blocks, list) or not all(_is_hash(b) for b in blocks):
            raise bad(number, f"block_hashes is {source.shown(blocks)}, allowed is a list of whole numbers or texts")
        if not blocks:
            return
        parent = fields.get("parent_block_hash")
        if parent is not None and (not _is_hash(parent) or parent not in self._parents):
            raise bad(number, f"parent_block_hash is {source.shown(parent)}, allowed is null or a block stored before")
        if len(self._parents) + len(blocks) > self._most:
            raise InvalidArgument(f"distinct blocks are more than {self._most}, the most that is allowed")
        before = parent
        for block in blocks:
            if block == parent or self._parents.setdefault(block, parent) != parent:
                raise bad(number, f"block {source.shown(block)} has two parents, allowed is one")
            parent = block
        # Stored again, or going on where a request stopped: the same request. Else a new one.
        chain = self._open.get(parent) or (self._open.pop(before, None) if before is not None else None)
        if chain is None:
            if len(self._in_order) >= _MOST_OPEN:
                raise bad(number, f"more than {_MOST_OPEN} requests are open at once; allowed is a smaller --gap")
            chain = _Chain(now, now, parent)
            self._in_order.append(chain)
        chain.last_ms, chain.last = now, parent
        self._open[parent] = chain

    def _over(self, before: int | None) -> Iterator[Request]:
        """Requests that got no block since `before`, as far as no older one still goes on."""
        while self._in_order and (before is None or self._in_order[0].last_ms < before):
            chain = self._in_order.popleft()
            del self._open[chain.last]
            yield self._request(chain)

    def _request(self, chain: _Chain) -> Request:
        path = []
        at: object = chain.last
        while at is not None:
            path.append(self._numbers.setdefault(at, len(self._numbers)))
            at = self._parents[at]
        path.reverse()
        size = self._log_block or 1
        many = self.block_size // size
        # A block's number stands for all before it, and so does that of the last of several.
        return Request(chain.first_ms, -1, len(path) * size, 0, self.ids.of_hashes(path[many - 1 :: many]))


class SglangEvents(VllmEvents):
    """The same log from SGLang."""

    name = "sglang-events"


def _is_hash(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _batch(number: int, value: Any) -> tuple[int, list[Any]]:
    """Time in ms and events of a batch: {"ts", "events"}, [ts, events, ...], or one event with a "ts" of its own."""
    if isinstance(value, list) and len(value) >= 2 and isinstance(value[1], list):
        value = {"ts": value[0], "events": value[1]}
    if not isinstance(value, dict):
        raise bad(number, f"found {source.shown(value)}, allowed is a batch of events as an object or an array")
    events = value.get("events", [value] if "type" in value else None)
    if not isinstance(events, list):
        raise bad(number, f"events is {source.shown(events)}, allowed is a list")
    return milliseconds(number, value, "ts", 1000), events


def _event(number: int, event: Any) -> tuple[str, dict[str, Any]]:
    """Name and fields of an event: {"type", ...}, or an array with the name first."""
    if isinstance(event, list) and event and isinstance(event[0], str):
        return event[0], dict(zip(_FIELDS, event[1:], strict=False))
    if isinstance(event, dict) and isinstance(event.get("type"), str):
        return event["type"], event
    raise bad(number, f"found event {source.shown(event)}, allowed is an object with a type, or an array")


def _counts(fields: dict[str, Any]) -> bool:
    """Blocks of the device, in the group that grows with the prompt. A window's group tells of other lengths."""
    kind = fields.get("kv_cache_spec_kind")
    group = fields.get("group_idx")
    full = kind == "full_attention" if isinstance(kind, str) else group in (None, 0)
    return full and str(fields.get("medium") or "GPU").upper() == "GPU"
