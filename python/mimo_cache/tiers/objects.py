"""Objects of GCache: what a page is called there, and what its bytes are.

One object for each page, group and shard of the KV heads. A full page's value is the page's bytes, an SWA page's the
same and a trailer of 36 bytes: how many tokens its MTP rows were made with, and up to eight of them, each a little-
endian u32. Lengths are exact, and what does not fit is no page. Names come from the planner and hold the layout of
the bytes, so that another layout is another name; its first four bytes go with each value and are compared as well.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mimo_cache._core import DeviceLayout, HostRegion, InvalidArgument
from mimo_cache.gcache.types import ObjectId

__all__ = ["FULL", "RECORD_BYTES", "SWA", "Objects", "pack_record", "unpack_record"]

FULL, SWA = 0, 32
"""Parts of an object's name: group x 32 + shard."""
MOST_SHARDS = 32
RECORD = struct.Struct("<9I")
RECORD_BYTES = RECORD.size
LONGEST = 8
"""Tokens of a record at most."""


def pack_record(record: Sequence[int]) -> bytes:
    """The trailer of an SWA page."""
    return RECORD.pack(len(record), *record, *[0] * (LONGEST - len(record)))


def unpack_record(trailer: bytes | bytearray, most: int) -> list[int] | None:
    """The tokens of a trailer; None where it is none, or has more than `most` of them."""
    if len(trailer) != RECORD_BYTES:
        return None
    count, *tokens = RECORD.unpack(trailer)
    return tokens[:count] if count <= min(most, LONGEST) and not any(tokens[count:]) else None


@dataclass(frozen=True)
class Objects:
    """Names, sizes and memory of the pages of one host tier. extent: pages that GCache places together. shard: which of
    `shards` this one's KV is, each of them in a process of its own."""

    layout: DeviceLayout
    region: HostRegion
    extent: int
    shard: int = 0
    shards: int = 1

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        # Asked for with each page: what the layout computes anew is kept.
        return self.layout.full_page_bytes, self.layout.swa_page_bytes

    def bytes_of(self, part: int) -> int:
        """Bytes of a page's value."""
        full, swa = self._sizes
        return full if part < SWA else swa + RECORD_BYTES

    def page(self, part: int, host_page: int, writable: bool = False) -> memoryview:
        """A page's bytes where they lie in host memory, without what it is rounded up with."""
        full, swa = self._sizes
        if part == FULL:
            return self.region.page("full", host_page, writable=writable)[:full]
        return self.region.page("swa", host_page, writable=writable)[:swa]

    def extent_of(self, names: Sequence[bytes], page: int) -> bytes:
        """Name of the first page of a page's extent."""
        return names[page - page % self.extent]

    def extents(self, names: Sequence[bytes], start: int, end: int) -> list[bytes]:
        """Of each page of a range."""
        return [self.extent_of(names, page) for page in range(start, end)]

    def object(self, names: Sequence[bytes], page: int, part: int) -> ObjectId:
        """This shard's of a page of a prefix whose pages have these names, from the first one on."""
        return ObjectId(names[page], part + self.shard, self.extent_of(names, page))

    @cached_property
    def number(self) -> int:
        """The layout number that goes with each value."""
        return int.from_bytes(self.layout.digest[:4], "little")

    @property
    def want(self) -> int:
        """Mask of the parts that pages have, of all shards."""
        full, swa = self.layout.full_page_bytes > 0, self.layout.swa_page_bytes > 0
        return ((full << FULL) | (swa << SWA)) * self._all

    @property
    def own(self) -> int:
        """The same of this shard."""
        return self.want & (((1 << FULL) | (1 << SWA)) << self.shard)

    @property
    def _all(self) -> int:
        return (1 << self.shards) - 1

    def whole(self, mask: int) -> int:
        """What a page is good for: a group counts when all of its shards are there. Bits `FULL` and `SWA`."""
        there = [part for part in (FULL, SWA) if mask >> part & self._all == self._all]
        return sum(1 << part for part in there)

    def wanted(self, end: int, need: int) -> list[tuple[int, int]]:
        """(page, part) of all that a boundary before page `end` needs: full pages, and the SWA pages of its window."""
        full = [(page, FULL) for page in range(end)] if self.layout.full_page_bytes else []
        swa = [(page, SWA) for page in range(max(0, end - need), end)] if self.layout.swa_page_bytes else []
        return full + swa


def whole_number(value: Any, what: str, low: int, high: int) -> int:
    """A checked integer; raises `InvalidArgument`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgument(f"{what} is {value!r}, allowed is an integer from {low} to {high}")
    return value
