"""Which node owns an extent: weighted rendezvous over a table of buckets, in integers (`docs/placement.md`).

The same owners as the Rust client computes; `tests/vectors/ring.json` holds both to it. Owners are computed bucket by
bucket when they are asked for, since a whole table takes seconds in Python.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mimo_cache.gcache.errors import InvalidArgument
from mimo_cache.gcache.types import KEY_BYTES

DEFAULT_BUCKETS = 1 << 20
MAX_BUCKETS = 1 << 21
MAX_NODES = 4096
MAX_WEIGHT = 1 << 20
MAX_NAME_BYTES = 255

_WORD = (1 << 64) - 1
_STEP_BITS, _FRACTION_BITS, _SQUARE_BITS = 12, 52, 62


@dataclass(frozen=True, slots=True)
class Node:
    """A node: its name, which placement uses and which outlives its address, where it listens, and its share."""

    name: str
    address: str = ""
    """`host:port` or `unix:/path`."""
    weight: int = 1
    """Its share is in proportion: GiB of memory, the same unit for all nodes."""

    @classmethod
    def parse(cls, text: str) -> Node:
        """`name=address`, `name=address*weight`, or an address alone, which is the name as well."""
        name, equals, rest = text.partition("=")
        address, star, weight = (rest if equals else text).rpartition("*")
        if not star:
            address, weight = weight, "1"
        if not address or not weight.isascii() or not weight.isdigit():
            raise InvalidArgument(f"node is {text!r}, allowed is 'name=address' or 'name=address*weight'")
        return cls(name if equals else address, address, int(weight))


def _log2_step(index: int) -> int:
    """floor(log2(1 + index / 2^12) * 2^52), bit by bit: squaring a number doubles its logarithm."""
    if index == 1 << _STEP_BITS:
        return 1 << _FRACTION_BITS
    number, log = ((1 << _STEP_BITS) + index) << (_SQUARE_BITS - _STEP_BITS), 0
    for _ in range(_FRACTION_BITS):
        number = number * number >> _SQUARE_BITS
        bit = number >> (_SQUARE_BITS + 1)
        number >>= bit
        log = log << 1 | bit
    return log


@functools.cache
def _log2_steps() -> tuple[int, ...]:
    return tuple(_log2_step(i) for i in range((1 << _STEP_BITS) + 1))


def _mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & _WORD
    return word ^ (word >> 31)


def seed_of(name: str) -> int:
    """What a node draws with."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def draw(seed: int, weight: int, bucket: int) -> int:
    """A node's cost for a bucket; the lowest owns it."""
    word = _mix(seed ^ _mix((bucket + 0x9E3779B97F4A7C15) & _WORD))
    if word == _WORD:
        return 0
    steps = _log2_steps()
    number = word + 1
    power = number.bit_length() - 1
    rest = (number << (64 - power)) & _WORD
    step, part = rest >> (64 - _STEP_BITS), ((rest << _STEP_BITS) & _WORD) >> 32
    log = ((64 - power) << _FRACTION_BITS) - steps[step] - ((steps[step + 1] - steps[step]) * part >> 32)
    return (log << 5) // weight


class Ring:
    """Owners of all buckets for one set of nodes. Not changed after it is made, but for what it remembers."""

    def __init__(self, nodes: Iterable[Node], buckets: int = DEFAULT_BUCKETS) -> None:
        self.nodes = sorted(nodes, key=lambda node: node.name.encode())
        self.buckets = buckets
        _check(self.nodes, buckets)
        self._seeds = [seed_of(node.name) for node in self.nodes]
        self._owners = array("h", [-1]) * buckets

    def bucket_of(self, extent: bytes) -> int:
        """The bucket of an extent, from the chain key of its first page."""
        return int.from_bytes(extent[:8], "little") & (self.buckets - 1)

    def owner(self, bucket: int) -> int:
        """Index of a bucket's owner in `nodes`."""
        owner = self._owners[bucket]
        if owner < 0:
            costs = [draw(s, n.weight, bucket) for s, n in zip(self._seeds, self.nodes, strict=True)]
            owner = self._owners[bucket] = costs.index(min(costs))
        return owner


def _check(nodes: Sequence[Node], buckets: int) -> None:
    if not 1 <= buckets <= MAX_BUCKETS or buckets & (buckets - 1):
        raise InvalidArgument(f"buckets is {buckets}, allowed is a power of two up to {MAX_BUCKETS}")
    if not 1 <= len(nodes) <= MAX_NODES:
        raise InvalidArgument(f"nodes has {len(nodes)} entries, allowed is 1 to {MAX_NODES}")
    for node in nodes:
        if not 1 <= len(node.name.encode()) <= MAX_NAME_BYTES:
            raise InvalidArgument(f"node name is {node.name[:80]!r}, allowed is 1 to {MAX_NAME_BYTES} bytes")
        if not 1 <= node.weight <= MAX_WEIGHT:
            raise InvalidArgument(f"weight of node {node.name!r} is {node.weight}, allowed is 1 to {MAX_WEIGHT}")
    for one, other in itertools.pairwise(nodes):
        if one.name == other.name:
            raise InvalidArgument(f"node name {one.name!r} is given twice, allowed is each name once")


def extents_of(keys: Sequence[bytes], extent_pages: int, first_page: int = 0) -> list[bytes]:
    """For each page of a prefix the key of its extent's first page. `keys[0]` is page `first_page`, a multiple of
    `extent_pages`: the key that decides would be missing otherwise."""
    if extent_pages < 1 or first_page < 0 or first_page % extent_pages:
        raise InvalidArgument(
            f"first_page is {first_page} with extents of {extent_pages} pages, allowed is a multiple of extent_pages"
        )
    for key in keys:
        if len(key) != KEY_BYTES:
            raise InvalidArgument(f"a key has {len(key)} bytes, allowed is {KEY_BYTES}")
    return [keys[i - i % extent_pages] for i in range(len(keys))]
