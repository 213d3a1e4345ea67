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

from mimo_cache.gcache.checks import check_int, check_keys, check_text, listed, shown
from mimo_cache.gcache.errors import InvalidArgument

DEFAULT_BUCKETS = 1 << 20
MAX_BUCKETS = 1 << 21
MAX_PAGES = (1 << 32) - 1
MAX_NODES = 4096
MAX_WEIGHT = 1 << 20
MAX_WEIGHT_DIGITS = 20
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
        if not isinstance(text, str):
            raise InvalidArgument(f"node is of type {type(text).__name__}, allowed is a Node or text")
        name, equals, rest = text.partition("=")
        address, star, weight = (rest if equals else text).rpartition("*")
        if not star:
            address, weight = weight, "1"
        # A weight of many digits is out of bounds, and slow to read.
        if not address or not weight.isascii() or not weight.isdigit() or len(weight) > MAX_WEIGHT_DIGITS:
            raise InvalidArgument(f"node is {shown(text)}, allowed is 'name=address' or 'name=address*weight'")
        return cls(name if equals else address, address, int(weight))

    @classmethod
    def listed(cls, nodes: Iterable[Node | str]) -> list[Node]:
        """Nodes of a list in which some are text that `parse` takes."""
        return [node if isinstance(node, Node) else cls.parse(node) for node in listed(nodes, "nodes", "nodes")]


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
        self.nodes = _checked(list(nodes))
        self.buckets = check_int(buckets, "buckets", 1, MAX_BUCKETS)
        if self.buckets & (self.buckets - 1):
            raise InvalidArgument(f"buckets is {buckets}, allowed is a power of two up to {MAX_BUCKETS}")
        self._seeds = [seed_of(node.name) for node in self.nodes]
        self._owners = array("h", [-1]) * self.buckets

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


def _checked(nodes: Sequence[Node]) -> list[Node]:
    """Sorted by name."""
    if not 1 <= len(nodes) <= MAX_NODES:
        raise InvalidArgument(f"nodes has {len(nodes)} entries, allowed is 1 to {MAX_NODES}")
    for node in nodes:
        if not check_text(node.name, "node name", MAX_NAME_BYTES):
            raise InvalidArgument(f"node name is '', allowed is 1 to {MAX_NAME_BYTES} bytes")
        check_int(node.weight, f"weight of node {node.name!r}", 1, MAX_WEIGHT)
    ordered = sorted(nodes, key=lambda node: node.name.encode())
    for one, other in itertools.pairwise(ordered):
        if one.name == other.name:
            raise InvalidArgument(f"node name {one.name!r} is given twice, allowed is each name once")
    return ordered


def extents_of(keys: Sequence[bytes], extent_pages: int, first_page: int = 0) -> list[bytes]:
    """For each page of a prefix the key of its extent's first page. `keys[0]` is page `first_page`, a multiple of
    `extent_pages`: the key that decides would be missing otherwise."""
    pages = check_int(extent_pages, "extent_pages", 1, MAX_PAGES)
    if check_int(first_page, "first_page", 0, MAX_PAGES) % pages:
        raise InvalidArgument(
            f"first_page is {first_page} with extents of {pages} pages, allowed is a multiple of extent_pages"
        )
    checked = check_keys(keys)
    return [checked[i - i % pages] for i in range(len(checked))]
