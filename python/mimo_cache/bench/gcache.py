"""`mimo-cache bench gcache`: a GCache node and the Rust client, beside raw TCP, grpcio, Redis, Mooncake and memcpy.

Node, peers and this client are processes of their own on one machine. Times are wall times: the work is done by
several processes. Every ratio is of two figures taken in turns within one run, since machines differ from minute to
minute. Names of figures are part of the output's contract: a check in `report.py` looks them up by name.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from mimo_cache import GCacheClient
from mimo_cache.bench import GCACHE_PARTS
from mimo_cache.bench.gcache_nodes import Node, nodes, shared_memory_bytes
from mimo_cache.bench.gcache_peers import Peer, peers
from mimo_cache.bench.timing import Figure, figure, say
from mimo_cache.gcache.types import GetStatus, ObjectId, PutItem, PutStatus

MIB = 1 << 20
BATCH = 32
SMALL = 64 << 10
PAGES = 16_384
"""Pages of 64 tokens in a prefix of a million."""
EXTENT_PAGES = 16

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Options:
    """What to run."""

    runs: int
    scale: float
    parts: tuple[str, ...]
    peer: bool


def run(options: Options) -> list[Figure]:
    """All figures of the chosen parts."""
    parts: dict[str, Callable[[Options], list[Figure]]] = {
        "transfer": _transfer,
        "latency": _latency,
        "exists": _exists,
        "sizes": _sizes,
        "restart": _restart,
        "idle": _idle,
    }
    figures: list[Figure] = []
    for name in GCACHE_PARTS:
        if name in options.parts:
            say(name)
            figures += parts[name](options)
    return figures


def key_of(*words: object) -> bytes:
    """A chain key that stands for these words."""
    return hashlib.sha256(repr(words).encode()).digest()


def ids_of(count: int, *words: object) -> list[ObjectId]:
    """Objects in extents of their own."""
    keys = [key_of(i, *words) for i in range(count)]
    return [ObjectId(key, 0, key) for key in keys]


def noise(size: int, seed: int = 1) -> Bytes:
    """Bytes that do not compress."""
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def rate(size: int, seconds: float, work: Callable[[], None]) -> float:
    """MB/s of calls that move `size` bytes each, over at least `seconds`."""
    work()
    start = time.perf_counter()
    calls = 0
    while (passed := time.perf_counter() - start) < seconds or calls < 3:
        work()
        calls += 1
    return size * calls / passed / 1e6


def median_us(calls: int, work: Callable[[], None]) -> float:
    """The median of single calls, in microseconds."""
    for _ in range(20):
        work()
    times = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def getter(client: GCacheClient, ids: Sequence[ObjectId], into: Bytes) -> Callable[[], None]:
    """Gets all values; refuses to count anything but hits."""
    size = len(into) // len(ids)
    buffers = [into[i * size : (i + 1) * size] for i in range(len(ids))]

    def work() -> None:
        results = client.get(ids, into=buffers, deadline=30.0)
        if any(r.status is not GetStatus.HIT for r in results):
            raise RuntimeError(f"a get of the bench missed: {[r.status for r in results]}")

    return work


def putter(client: GCacheClient, values: Bytes, count: int) -> Callable[[], None]:
    """Puts `count` new values each time; old ones are evicted by the node."""
    size = len(values) // count
    parts = [values[i * size : (i + 1) * size] for i in range(count)]
    turn = 0

    def work() -> None:
        nonlocal turn
        turn += 1
        ids = ids_of(count, "put", time.time_ns(), turn)
        statuses = client.put([PutItem(i, p) for i, p in zip(ids, parts, strict=True)], deadline=30.0)
        if any(s is not PutStatus.STORED for s in statuses):
            raise RuntimeError(f"a put of the bench was not stored: {statuses}")

    return work


def store(client: GCacheClient, ids: Sequence[ObjectId], values: Bytes) -> None:
    """Stores a value for each id."""
    size = len(values) // len(ids)
    items = [PutItem(one, values[i * size : (i + 1) * size]) for i, one in enumerate(ids)]
    for status in client.put(items, deadline=60.0):
        if status not in (PutStatus.STORED, PutStatus.PRESENT):
            raise RuntimeError(f"the bench cannot store its values: {status}")


def ways(node: Node) -> dict[str, GCacheClient]:
    """Clients of one node by the ways to it."""
    return {
        "fast": GCacheClient([node.unix]),
        "tcp": GCacheClient([node.tcp], fast_path=False),
        "unix": GCacheClient([node.unix], fast_path=False),
    }


def _transfer(options: Options) -> list[Figure]:
    """Batches of 32 values of 1 MiB."""
    size = BATCH * MIB
    source, target = noise(size), np.zeros(size, np.uint8)
    seconds = max(0.5 * options.scale, 0.05)
    samples: dict[str, list[float]] = {}
    # Values that are put push old ones out, so those that are read have a node of their own.
    with nodes("read", "written", size=8 * size) as (node, written), peers(options.peer, source) as others:
        clients = ways(node)
        writers = {way: client for way, client in ways(written).items() if way != "fast"}
        ids = ids_of(BATCH, "transfer")
        store(clients["tcp"], ids, source)
        work = {f"{way}_get_32": getter(client, ids, target) for way, client in clients.items()}
        work |= {f"{way}_put_32": putter(client, source, BATCH) for way, client in writers.items()}
        shared = node.shared_view(size)
        work["memcpy_32"] = lambda: np.copyto(target, shared)
        for peer in others:
            work |= _peer_work(peer, source, target)
        for _ in range(options.runs):
            for name, one in work.items():
                target[:] = 0
                samples.setdefault(name, []).append(rate(size, seconds, one))
                if "_get_" in name and not np.array_equal(target, source):
                    raise RuntimeError(f"{name} delivered other bytes than were stored")
        for client in (*clients.values(), *writers.values()):
            client.close()
    figures = [figure(name, "MB/s", values) for name, values in samples.items()]
    pairs = [
        ("fast_get_32", "memcpy_32"),
        ("tcp_get_32", "grpcio_get_32"),
        ("tcp_get_32", "raw_get_32"),
        ("tcp_get_32", "redis_get_32"),
        ("tcp_get_32", "mooncake_get_32"),
        ("unix_get_32", "tcp_get_32"),
        ("tcp_put_32", "grpcio_put_32"),
        ("tcp_put_32", "raw_put_32"),
        ("tcp_put_32", "redis_put_32"),
        ("tcp_put_32", "mooncake_put_32"),
    ]
    return figures + _ratios(samples, pairs, "MB/s")


def _ratios(samples: dict[str, list[float]], pairs: Sequence[tuple[str, str]], unit: str) -> list[Figure]:
    """`a_vs_b`: the median over the runs of one figure by another of the same run."""
    out = []
    for ours, theirs in pairs:
        if ours in samples and theirs in samples:
            both = [a / b for a, b in zip(samples[ours], samples[theirs], strict=True)]
            name = f"{ours}_vs_{theirs.split('_')[0]}"
            out.append(figure(name, "1", both).versus(1.0, f"{theirs} in the same run, {unit}"))
    return out


def _peer_work(peer: Peer, source: Bytes, target: Bytes) -> dict[str, Callable[[], None]]:
    return {f"{peer.name}_get_32": lambda: peer.get(target), f"{peer.name}_put_32": lambda: peer.put(source)}


def _latency(options: Options) -> list[Figure]:
    """Single values of 64 KiB."""
    calls = max(int(2000 * options.scale), 50)
    source, target = noise(SMALL), np.zeros(SMALL, np.uint8)
    samples: dict[str, list[float]] = {}
    with nodes("bench", size=64 * MIB) as (node,), peers(options.peer, source, count=1) as others:
        clients = ways(node)
        ids = ids_of(1, "latency")
        store(clients["tcp"], ids, source)
        work = {f"{way}_get_64k": getter(client, ids, target) for way, client in clients.items()}
        for peer in others:
            work[f"{peer.name}_get_64k"] = partial(peer.get, target)
        for _ in range(options.runs):
            for name, one in work.items():
                samples.setdefault(name, []).append(median_us(calls, one))
        for client in clients.values():
            client.close()
    return [figure(f"{name}_p50", "us", values) for name, values in samples.items()]


def _exists(options: Options) -> list[Figure]:
    """A prefix of a million tokens on three nodes, both groups stored."""
    pages = max(int(PAGES * options.scale), EXTENT_PAGES)
    keys = [key_of("exists", i) for i in range(pages)]
    extents = [keys[i - i % EXTENT_PAGES] for i in range(pages)]
    both = 1 | 1 << 32
    samples = []
    names = ("one", "two", "three")
    with nodes(*names, size=128 * MIB) as running, GCacheClient([node.tcp for node in running]) as client:
        for part in (0, 32):
            items = [PutItem(ObjectId(k, part, e), b"x") for k, e in zip(keys, extents, strict=True)]
            for start in range(0, pages, 1024):
                client.put(items[start : start + 1024], deadline=30.0)

        def work() -> None:
            if client.exists(keys, extents, want=both, deadline=10.0) != [both] * pages:
                raise RuntimeError("the bench does not find what it stored")

        for _ in range(options.runs):
            samples.append(median_us(max(int(30 * options.scale), 3), work))
    return [figure("exists_1m_tokens", "us", samples)]


def _sizes(options: Options) -> list[Figure]:
    """Values from 4 KiB to 64 MiB, in batches of at most 32 MiB (or one value)."""
    seconds = max(0.2 * options.scale, 0.02)
    out = []
    sizes = [4096 << 2 * i for i in range(8)] if options.scale == 1 else [4096, MIB]
    with nodes("bench", size=512 * MIB) as (node,):
        clients = ways(node)
        for size in sizes:
            count = min(max(32 * MIB // size, 1), 1024)
            source, target = noise(size * count), np.zeros(size * count, np.uint8)
            ids = ids_of(count, "sizes", size)
            store(clients["tcp"], ids, source)
            for way, client in clients.items():
                runs = [rate(size * count, seconds, getter(client, ids, target)) for _ in range(options.runs)]
                out.append(figure(f"{way}_get_{size}", "MB/s", runs))
            clients["tcp"].delete(ids, deadline=30.0)
        for client in clients.values():
            client.close()
    return out


def _restart(options: Options) -> list[Figure]:
    """kill -9 with 8 GiB committed, until a client finds everything again."""
    total = int(min(8 << 30, 0.6 * shared_memory_bytes()) * options.scale) // MIB * MIB
    count = total // MIB
    say(f"restart with {total / (1 << 30):.1f} GiB committed")
    ids = ids_of(count, "restart")
    keys = [one.key for one in ids]
    block = noise(64 * MIB)
    serving, all_found, present = [], [], []
    with nodes("bench", size=total + total // 16 + 64 * MIB) as (node,):
        with GCacheClient([node.tcp]) as client:
            for start in range(0, count, 64):
                part = ids[start : start + 64]
                store(client, part, block[: len(part) * MIB])
        for _ in range(options.runs):
            node.kill()
            start_time = time.perf_counter()
            node.start()
            serving.append(time.perf_counter() - start_time)
            with GCacheClient([node.tcp]) as client:
                found = sum(mask & 1 for mask in client.exists(keys, deadline=30.0))
                all_found.append(time.perf_counter() - start_time)
            present.append(found / count)
    return [
        figure("restart_serving", "s", serving),
        figure("restart_all_found", "s", all_found),
        figure("restart_present", "1", present),
        Figure("restart_committed", "B", total),
    ]


def _idle(options: Options) -> list[Figure]:
    """Processor time of a node that has a client and nothing to do."""
    seconds = max(10 * options.scale, 1.0)
    samples = []
    with nodes("bench", size=256 * MIB) as (node,), GCacheClient([node.unix]) as client:
        ids = ids_of(1, "idle")
        source = noise(SMALL)
        store(client, ids, source)
        getter(client, ids, np.zeros(SMALL, np.uint8))()
        for _ in range(options.runs):
            before = node.cpu_seconds()
            time.sleep(seconds)
            samples.append(100 * (node.cpu_seconds() - before) / seconds)
    return [figure("idle_core", "%", samples)]
