"""`mimo-cache bench disk`: the disk tier beside fio, and what a node makes of it.

`read`, `write`, `sizes`, `recovery`, `segments` and `wear` are measured inside Rust (`benches/disk.rs`), which runs fio
in between; the other parts here, with a node. All files are in a directory of their own, at most 3 GiB, which goes at
the end, also when the run is interrupted. Names of figures are part of the output's contract: a check in `report.py`
looks them up.
"""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np

from mimo_cache import GCacheClient
from mimo_cache.bench import DISK_PARTS, source
from mimo_cache.bench.gcache import BATCH, MIB, SMALL, getter, ids_of, noise, putter, rate, store
from mimo_cache.bench.gcache_nodes import Node
from mimo_cache.bench.timing import Figure, figure, say
from mimo_cache.gcache.local import SHARED
from mimo_cache.gcache.types import TierStats

GIB = 1 << 30
ENTRIES = 1_000_000
"""Objects of `recovery` at scale 1."""
PROMOTE_AFTER = 2
"""Of `tiering`; the default. Names of figures and floors go with it."""
PATIENCE = 30.0
"""Seconds until all demotion must be over."""


@dataclass(frozen=True)
class Options:
    """What to run."""

    runs: int
    scale: float
    parts: tuple[str, ...]
    folder: Path | None
    """Where the files go; the system's temporary directory without it."""


def run(options: Options) -> list[Figure]:
    """All figures of the chosen parts."""
    parts: dict[str, Callable[[Options, Path], list[Figure]]] = {
        "read": _rust("read"),
        "write": _rust("write"),
        "sizes": _rust("sizes"),
        "recovery": _rust("recovery"),
        "segments": _rust("segments"),
        "wear": _rust("wear"),
        "demote": _demote,
        "promotion": _promotion,
        "quiet": _quiet,
    }
    figures: list[Figure] = []
    with _ended_in_order(), tempfile.TemporaryDirectory(prefix="mimo-bench-", dir=options.folder) as folder:
        for name in DISK_PARTS:
            if name in options.parts:
                say(name)
                figures += parts[name](options, Path(folder))
    return figures


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM ends the run as ^C does, so that files and processes go."""

    def end(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _rust(name: str) -> Callable[[Options, Path], list[Figure]]:
    def measure(options: Options, folder: Path) -> list[Figure]:
        words = [name, f"dir={folder}", f"runs={options.runs}"]
        words += ["quick"] if options.scale < 1 else [f"entries={int(ENTRIES * options.scale)}"]
        return source.rust_bench("disk", words)

    return measure


@contextmanager
def _node(folder: Path, memory: int, disk: int) -> Iterator[tuple[Node, GCacheClient]]:
    """A node with a disk of so many bytes below its memory, and a client."""
    place = folder / "node"
    more = f'[[disk]]\npath = "{place}"\nsize = "{disk}B"\n[tiering]\npromote_after = {PROMOTE_AFTER}\n'
    with tempfile.TemporaryDirectory(prefix="mimo-bench-", dir=SHARED if SHARED.is_dir() else None) as shared:
        node = Node(Path(shared), "bench", memory, more=more)
        try:
            with GCacheClient([node.unix]) as client:
                yield node, client
        finally:
            node.kill()
            shutil.rmtree(place)


def _tier(client: GCacheClient, name: str) -> TierStats:
    """Counts of one tier of the one node."""
    (stats,) = client.stats(deadline=10.0).values()
    if stats is None:
        raise RuntimeError("the bench's node does not answer")
    return next(tier for tier in stats.tiers if tier.name == name)


def settle(client: GCacheClient) -> None:
    """Waits until nothing goes from memory to disk any more."""
    until = time.monotonic() + PATIENCE
    before = -1
    while (now := _tier(client, "disk").written_bytes) != before:
        if time.monotonic() > until:
            raise RuntimeError(f"demotion goes on for more than {PATIENCE:g} seconds")
        before = now
        time.sleep(0.3)


def _demote(options: Options, folder: Path) -> list[Figure]:
    """Puts of 32 x 1 MiB into a node whose memory is full, and gets of what is on disk alone, each value once."""
    size = BATCH * MIB
    source_bytes, target = noise(size), np.zeros(size, np.uint8)
    memory = 8 * size
    batches = 4 * options.runs if options.scale >= 1 else options.runs
    ids = [ids_of(BATCH, "cold", n) for n in range(batches)]
    puts, gets = [], []
    with _node(folder, memory, max(2 * batches * size, 2 * memory) + GIB) as (_, client):
        for one in ids:
            store(client, one, source_bytes)
        put = putter(client, source_bytes, BATCH)
        for _ in range(2 * memory // size):
            put()
        settle(client)
        for n in range(options.runs):
            hits = _tier(client, "disk").hits
            some = ids[n * batches // options.runs : (n + 1) * batches // options.runs]
            start = time.perf_counter()
            for one in some:
                getter(client, one, target)()
            gets.append(len(some) * size / (time.perf_counter() - start) / 1e6)
            if not np.array_equal(target, source_bytes):
                raise RuntimeError("the node delivered other bytes than were stored")
            if (found := _tier(client, "disk").hits - hits) != len(some) * BATCH:
                raise RuntimeError(f"{found} of {len(some) * BATCH} cold gets came from disk")
        # Not in turn with the gets: a fast machine puts more than the disk holds, and what is still to be read goes.
        for _ in range(options.runs):
            puts.append(rate(size, max(0.7 * options.scale, 0.05), put))
    return [figure("node_cold_get_32", "MB/s", gets), figure("node_demoting_put_32", "MB/s", puts)]


def _promotion(options: Options, folder: Path) -> list[Figure]:
    """With which get a value that went to disk comes from memory: one never used before, and one used once."""
    count, memory = 64, 64 * MIB
    values, target = noise(count * SMALL), np.zeros(count * SMALL, np.uint8)
    shares: dict[str, list[list[float]]] = {"new": [], "hot": []}
    with _node(folder, memory, 1 * GIB) as (_, client):
        put = putter(client, noise(BATCH * MIB), BATCH)
        for n in range(options.runs):
            for kind, runs in shares.items():
                ids = ids_of(count, kind, n)
                store(client, ids, values)
                get = getter(client, ids, target)
                if kind == "hot":
                    get()
                for _ in range(2 * memory // (BATCH * MIB)):
                    put()
                settle(client)
                runs.append([])
                for _ in range(PROMOTE_AFTER + 1):
                    hits = _tier(client, "disk").hits
                    get()
                    runs[-1].append(1 - (_tier(client, "disk").hits - hits) / count)
    return [
        figure(f"promotion_{kind}_get_{n}_from_memory", "1", share)
        for kind, runs in shares.items()
        for n, share in enumerate(zip(*runs, strict=True), 1)
    ]


def _quiet(options: Options, folder: Path) -> list[Figure]:
    """What a node with a disk and a client does when nobody asks for anything."""
    seconds = max(4 * options.scale, 1.0)
    moved, called, busy = [], [], []
    with _node(folder, 64 * MIB, 1 * GIB) as (node, client):
        put = putter(client, noise(BATCH * MIB), BATCH)
        for _ in range(6):
            put()
        settle(client)
        for _ in range(options.runs):
            time.sleep(0.5)
            before = node.io_bytes(), node.cpu_nanoseconds()
            time.sleep(seconds)
            after = node.io_bytes(), node.cpu_nanoseconds()
            moved.append(float(after[0][0] - before[0][0]))
            called.append(float(after[0][1] - before[0][1]))
            busy.append((after[1] - before[1]) / seconds / 1e7)
    figures = [figure("quiet_device_bytes", "B", moved), figure("quiet_call_bytes", "B", called)]
    return [*figures, figure("quiet_core", "%", busy)]
