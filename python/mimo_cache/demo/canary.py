"""Canaries: what every row of every page must hold, and the pools of pages that hold it.

The KV of a token at position i depends on the namespace and on all tokens up to i, and on nothing else. So a row's
canary is one 64-bit value made of exactly these, different for each group. A row of MTP head k depends on the
trunk's hidden state at i and on the tokens up to i + k + 1, so its canary is made of the row's stored trunk value
and those tokens; it can be rebuilt from the page, as the real row can. A second value names who wrote the row, for
the message when one is wrong. All arithmetic wraps modulo 2^64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from .workload import Tokens, Turn

U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]

BASE = 0x9E3779B97F4A7C15 | 1
FULL, SWA = np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9)
HEADS = [np.uint64(m) for m in (0xD6E8FEB86659FD93, 0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3)]


@cache
def powers(bits: int) -> U64:
    """BASE^0 to BASE^(2^bits - 1)."""
    steps = np.full(1 << bits, BASE, np.uint64)
    steps[0] = 1
    return np.multiply.accumulate(steps)


def mix(x: U64) -> U64:
    """A bijection of 64-bit values that spreads every bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@dataclass(slots=True)
class Truth:
    """What the rows of one token sequence hold.

    full, swa: uint64 [n]. mtp_tokens: uint64 [heads, n], the part of an MTP canary that comes from the tokens after the
    row; position i of head k is right only while token i + k + 1 exists.
    """

    full: U64
    swa: U64
    mtp_tokens: U64

    def mtp(self, head: int, lo: int, hi: int) -> U64:
        """MTP canaries of the rows [lo, hi)."""
        return mtp_canary(head, self.swa[lo:hi], self.mtp_tokens[head, lo:hi])


def mtp_canary(head: int, trunk: U64, tokens: U64) -> U64:
    """The MTP canary of rows whose trunk values are stored, for the tokens that follow them."""
    return trunk * HEADS[head] + tokens


def truth_of(turn: Turn, tokens: Tokens, n_mtp: int) -> Truth:
    """The canaries of `tokens` (prompt and output) in the namespace and with the spans of `turn`."""
    n = len(tokens)
    identity = tokens.astype(np.uint64) + np.uint64(1)
    for start, length, digest in turn.spans:
        picture = np.uint64(int.from_bytes(digest[:8], "little"))
        identity[start : start + length] = mix(picture ^ (np.arange(length, dtype=np.uint64) << np.uint64(20)))
    name = repr((turn.salt, turn.adapter)).encode()
    space = mix(np.frombuffer(name + b"\0" * (-len(name) % 8), np.uint64)).sum(dtype=np.uint64)
    prefix = np.cumsum(identity * powers(n.bit_length())[:n], dtype=np.uint64)
    row = mix(prefix + space + np.arange(n, dtype=np.uint64) * np.uint64(0x9FB21C651E98DF25))
    mtp_tokens = np.zeros((n_mtp, n), np.uint64)
    for k in range(min(n_mtp, max(0, n - 1))):
        ahead = k + 1
        mtp_tokens[k, : n - ahead] = mix(prefix[ahead:] - prefix[:-ahead])
    return Truth(row * FULL, row * SWA, mtp_tokens)


@dataclass(slots=True)
class Table:
    """Page ids of one group of one sequence, from logical page `first` on."""

    ids: I32
    first: int = 0


class Pages:
    """The memory of both pools on the pretended device. Row r of page g lies at g * page + r; page 0 is null."""

    def __init__(self, full_pages: int, swa_pages: int, page: int, n_mtp: int, rng: np.random.Generator) -> None:
        self.page = page
        self.noise = rng.integers(0, 1 << 64, 1 << 16, dtype=np.uint64)
        self.noise_at = 0
        self.full = rng.integers(0, 1 << 64, (full_pages + 1) * page, dtype=np.uint64)
        self.swa = rng.integers(0, 1 << 64, (swa_pages + 1) * page, dtype=np.uint64)
        self.mtp = [rng.integers(0, 1 << 64, (swa_pages + 1) * page, dtype=np.uint64) for _ in range(n_mtp)]
        self.full_writer = np.zeros((full_pages + 1) * page, np.uint32)
        self.swa_writer = np.zeros((swa_pages + 1) * page, np.uint32)

    def garbage(self, n: int) -> U64:
        """Values that are right nowhere: what a rejected draft leaves. Read only."""
        start = self.noise_at = (self.noise_at + 61) % len(self.noise)
        return np.resize(self.noise, n) if start + n > len(self.noise) else self.noise[start : start + n]

    def rows(self, table: Table, lo: int, hi: int) -> npt.NDArray[np.int64]:
        """Where the rows of positions [lo, hi) lie."""
        at = np.arange(lo, hi, dtype=np.int64)
        return table.ids[at // self.page - table.first].astype(np.int64) * self.page + at % self.page

    def copy(self, group: str, src: int, dst: int) -> None:
        """Copies a whole page, writers included."""
        p = self.page
        s, d = slice(src * p, src * p + p), slice(dst * p, dst * p + p)
        for memory in [self.full] if group == "full" else [self.swa, *self.mtp]:
            memory[d] = memory[s]
        writer = self.full_writer if group == "full" else self.swa_writer
        writer[d] = writer[s]

    def rebuild(self, page: int, start: int, end: int, truth: Truth, known: int) -> None:
        """Makes the MTP rows [start, end) of an SWA page again, from the trunk values stored in it."""
        for k, memory in enumerate(self.mtp):
            hi = min(end, known - k - 1)
            if hi > start:
                rows = slice(page * self.page + start % self.page, page * self.page + start % self.page + hi - start)
                memory[rows] = mtp_canary(k, self.swa[rows], truth.mtp_tokens[k, start:hi])

    def full_rows(self, table: Table, n: int) -> U64:
        """What the full pool holds for the positions [0, n)."""
        pages = table.ids[: -(-n // self.page)]
        return self.full.reshape(-1, self.page)[pages].reshape(-1)[:n]
