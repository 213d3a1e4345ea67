"""`metrics`: what the tiers have done and do now, in Prometheus' text format, version 0.0.4.

Everything is counted as it happens; a call only reads and writes it down, and may come from any thread. Counters start
at 0 with the cache or the tier, and end in `_total`; what has no such end is a state of now.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from mimo_cache.tiers.errors import CopierClosed
from mimo_cache.tiers.gcache import GCacheTier
from mimo_cache.tiers.host import HostTier
from mimo_cache.tiers.watch import BUCKETS, Histogram

__all__ = ["metrics"]

PREFIX = "mimo_cache"
Samples: TypeAlias = Mapping[tuple[str, ...], float]


class _Text:
    """Lines of families, each with its help and kind."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def _head(self, name: str, kind: str, help_: str) -> None:
        self.lines += [f"# HELP {PREFIX}_{name} {help_}", f"# TYPE {PREFIX}_{name} {kind}"]

    def add(self, name: str, help_: str, labels: tuple[str, ...], samples: Samples) -> None:
        """One family. Its kind follows from its name."""
        self._head(name, "counter" if name.endswith("_total") else "gauge", help_)
        for values, number in samples.items():
            self.lines.append(f"{PREFIX}_{name}{_labels(labels, values)} {number!r}")

    def one(self, name: str, help_: str, number: float) -> None:
        """A family of one sample without labels."""
        self.add(name, help_, (), {(): number})

    def times(self, name: str, help_: str, histogram: Histogram) -> None:
        """A histogram of seconds."""
        counts, total = histogram.read()
        self._head(name, "histogram", help_)
        below = 0
        for bound, count in zip((*BUCKETS, None), counts, strict=True):
            below += count
            bound_ = "+Inf" if bound is None else f"{bound:g}"
            self.lines.append(f'{PREFIX}_{name}_bucket{{le="{bound_}"}} {below}')
        self.lines += [f"{PREFIX}_{name}_sum {total!r}", f"{PREFIX}_{name}_count {below}"]


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Values are words of ours: none has a quote, a backslash or a line break."""
    pairs = ",".join(f'{name}="{value}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _each(counts: Mapping[str, float]) -> Samples:
    """Samples of one label. Words of causes have underscores, as labels elsewhere do."""
    return {(name.replace(" ", "_"),): number for name, number in counts.items()}


def metrics(tier: HostTier, remote: GCacheTier | None = None) -> str:
    """The text of a host tier, of the cache above it, and of GCache below it where `remote` is given."""
    text, moved = _Text(), tier.watch.read()
    _device(text, tier, moved)
    _host(text, tier, moved)
    if remote is not None:
        _gcache(text, tier, remote)
    return "\n".join([*text.lines, ""])


def _device(text: _Text, tier: HostTier, moved: Mapping[str, Any]) -> None:
    stats, host = tier.cache.stats(), tier.planner.host_stats()
    misses = {cause: moved["misses"].get(cause, 0) for cause in stats.misses}
    text.one("prompt_tokens_total", "Tokens of the prompts that were opened.", stats.prompt_tokens)
    text.add(
        "hit_tokens_total",
        "Of them, those that were not computed, by where they came from.",
        ("source",),
        _each(moved["hits"]),
    )
    text.add("miss_tokens_total", "Tokens that were computed, by cause.", ("cause",), _each(misses))
    evicted: Samples = {
        ("device", "full"): stats.full_evicted,
        ("device", "swa"): stats.swa_evicted,
        ("host", "full"): host.full_evicted,
        ("host", "swa"): host.swa_evicted,
    }
    text.add("evicted_pages_total", "Pages that a tier dropped.", ("tier", "group"), evicted)
    pools = {
        ("device", "full"): stats.full,
        ("device", "swa"): stats.swa,
        ("host", "full"): host.full,
        ("host", "swa"): host.swa,
    }
    for state in ("total", "free", "cached", "leased"):
        help_ = {"total": "Pages of a tier.", "leased": "Cached pages under a lease."}.get(
            state, f"Pages that are {state}."
        )
        name = "pool_pages" if state == "total" else f"pool_{state}_pages"
        text.add(name, help_, ("tier", "group"), {key: getattr(pool, state) for key, pool in pools.items()})


def _host(text: _Text, tier: HostTier, moved: Mapping[str, Any]) -> None:
    watch, stats = tier.watch, tier.stats()
    pages: Samples = {
        ("up", "full"): stats.fetched_full,
        ("up", "swa"): stats.fetched_swa,
        ("down", "full"): stats.saved_full,
        ("down", "swa"): stats.saved_swa,
    }
    text.add("host_pages_total", "Pages copied to the device (up) and to host memory (down).", ("way", "group"), pages)
    text.add("host_bytes_total", "Bytes copied likewise, of moves that failed too.", ("way",), _each(moved["bytes"]))
    causes = {
        "declined": stats.declined,
        "no_room_above": stats.no_room_above,
        "no_room_below": stats.no_room_below,
        "fetch_failed": stats.fetches_failed,
        "save_failed": stats.saves_failed,
        "gone": stats.gone,
        "receive_failed": stats.receives_failed,
    }
    text.add("host_misses_total", "Moves that were not made or brought nothing, by cause.", ("cause",), _each(causes))
    counts = {"fetch": stats.fetches, "save": stats.saves, "receive": stats.receives, "lend": stats.lent}
    text.add("host_moves_total", "Moves that were begun.", ("move",), _each(counts))
    text.times("fetch_seconds", "From the begin of a copy to the device until its last layer was there.", watch.fetches)
    text.times("save_seconds", "From the begin of a copy to host memory until a step saw its end.", watch.saves)
    text.times("layer_wait_seconds", "What a step waited for one layer's pages.", watch.layers)
    text.one("wait_seconds_total", "What steps waited for pages on their way to the device.", moved["waited"])
    text.one("copy_seconds_total", "What copy threads worked on pages that arrived on the device.", moved["copied"])
    jobs = size = 0
    with suppress(CopierClosed):
        jobs, size = tier.copier.in_flight()
    text.one("host_dirty_pages", "Pages that wait to be written back.", stats.dirty_pages)
    text.one("copier_jobs", "Copies queued and under way.", jobs)
    text.one("copier_bytes", "Their bytes.", size)
    text.one("host_fetching", "Fetches on their way.", stats.fetching)
    text.one("host_saving_pages", "Pages on their way down.", stats.saving_pages)
    text.one("host_lending", "Boundaries lent for writing to GCache.", stats.lending)


def _gcache(text: _Text, tier: HostTier, remote: GCacheTier) -> None:
    stats = remote.stats()
    by_source = stats["tokens_by_source"]
    text.add(
        "gcache_tokens_total", "Tokens brought into host memory, by tier of the node.", ("source",), _each(by_source)
    )
    text.add(
        "gcache_pages_total",
        "Pages from (in) and to nodes (out).",
        ("way",),
        {("in",): stats["pages_in"], ("out",): stats["pages_out"]},
    )
    text.add(
        "gcache_bytes_total", "Bytes likewise.", ("way",), {("in",): stats["bytes_in"], ("out",): stats["bytes_out"]}
    )
    text.add(
        "gcache_misses_total",
        "What did not come, by cause: pages, or whole prefetches.",
        ("cause",),
        _each(stats["misses"]),
    )
    prefetches = {name: stats[name] for name in ("hits", "joined", "left", "shortened")}
    text.one("gcache_prefetches_total", "Prefetches.", stats["prefetches"])
    text.add("gcache_prefetch_ends_total", "What became of them.", ("what",), _each(prefetches))
    writes = {
        name: stats[f"writes{end}"] for name, end in (("written", ""), ("dropped", "_dropped"), ("gone", "_gone"))
    }
    text.add("gcache_writes_total", "Boundaries offered to nodes, by what became of them.", ("what",), _each(writes))
    offered = {"present": stats["pages_there"], "failed": stats["pages_failed"]}
    text.add("gcache_pages_not_written_total", "Pages that were there already, or failed.", ("cause",), _each(offered))
    touches = {"sent": stats["touches"], "dropped": stats["touches_dropped"]}
    text.add("gcache_touches_total", "Objects marked as used.", ("what",), _each(touches))
    text.times(
        "prefetch_seconds", "Of prefetches that asked nodes: from when queued until over.", tier.watch.prefetches
    )
    text.times("write_seconds", "Of writes: from their turn until answered.", tier.watch.writes)
    text.one("gcache_queued_prefetches", "Prefetches that wait for a thread.", stats["queued"])
    text.one("gcache_queued_writes", "Writes that wait for the thread.", stats["writes_queued"])
    text.one("gcache_bytes_in_flight", "Bytes on their way into host memory.", stats["bytes_in_flight"])
