"""`Sources`: prompt tokens of one request by where their KV came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mimo_cache.gcache.types import SOURCES, Source

__all__ = ["Sources"]


@dataclass(frozen=True, slots=True)
class Sources:
    """Prompt tokens by where their KV came from; they add up to the prompt.

    device: L1, what `open` found. host: L2, without what GCache (L3) brought there for this request. gcache_memory,
    gcache_disk, gcache_remote: brought from GCache for this request, whether it was awaited or came while the request
    was queued, by the tier of the node that gave it. computed: the rest; `Report.misses` has the causes.

    A page's tokens count for the slowest of its objects. Pages of which no object came from GCache, but whose window
    did, count for the slowest page of the window.
    """

    device: int
    host: int
    gcache_memory: int
    gcache_disk: int
    gcache_remote: int
    computed: int

    @classmethod
    def split(cls, prompt: int, device: int, fetched: int = 0, brought: Mapping[Source, int] | None = None) -> Sources:
        """Of a prompt of so many tokens. fetched: tokens that came up from host memory; brought: how many of them were
        there by GCache, as `Prefetch.split` tells."""
        there = brought or {}
        memory, disk, remote = (there.get(name, 0) for name in SOURCES)
        host = fetched - memory - disk - remote
        return cls(device, host, memory, disk, remote, prompt - device - fetched)

    @property
    def total(self) -> int:
        """Tokens of the prompt."""
        gcache = self.gcache_memory + self.gcache_disk + self.gcache_remote
        return self.device + self.host + gcache + self.computed
