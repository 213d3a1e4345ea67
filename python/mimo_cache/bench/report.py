"""The floors, and the report for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mimo_cache.bench.timing import Figure


@dataclass(frozen=True)
class Floor:
    """What a figure must reach."""

    check: str
    part: str
    """The part of the bench that measures it; for `bench tiers` "tiers PART"."""
    figure: str
    holds: Callable[[Figure], bool]
    words: str


def _most(bound: float) -> Callable[[Figure], bool]:
    return lambda f: f.median <= bound


def _least(bound: float) -> Callable[[Figure], bool]:
    return lambda f: f.median >= bound


def _ratio(bound: float) -> Callable[[Figure], bool]:
    return lambda f: f.ratio is not None and f.ratio <= bound


DISK_SIZES = (1 << 20, 64 << 10, 4 << 10)
"""Bytes of the values that `benches/disk_tier/rates.rs` reads and writes beside fio."""
COPIED = (4096, 8192, 16_384)
"""Tokens of the prefixes that parts `copy` and `gcache` of `bench tiers` move."""
PLANNED = (4096, 16_384, 65_536, 262_144)
"""Tokens of the prefixes that part `planner` moves without bytes."""

FLOORS = (
    Floor("turn", "turn", "turn", _ratio(1 / 3), "(a) whole turn at most 1/3 of the peer's"),
    Floor("match_1_node", "match", "match_cold_1", _ratio(1.3), "(b) 1 node at most 1.3 x memcmp"),
    Floor("match_13_nodes", "match", "match_cold_13", _ratio(1.4), "(b) 13 nodes at most 1.4 x memcmp"),
    Floor("match_196_nodes", "match", "match_cold_196", _ratio(2.0), "(b) 196 nodes at most 2 x memcmp"),
    Floor("match_per_node", "match", "match_per_further_node", _most(0.25), "at most 0.25 us per further node"),
    Floor("rematch", "rematch", "rematch_100352", _most(1.0), "re-match of 100k tokens at most 1 us"),
    Floor("rematch_flat", "instructions", "instructions_rematch", _most(1.1), "re-match independent of the length"),
    Floor("chunk", "chunk", "chunk", _ratio(0.1), "(c) evict and allocate 8,192 tokens at most 1/10 of the peer's"),
    Floor("evict_1k", "evict", "evict_1000", _most(1.0), "(d) evict a page of 1k leaves at most 1 us"),
    Floor("evict_10k", "evict", "evict_10000", _most(1.0), "(d) evict a page of 10k leaves at most 1 us"),
    Floor("evict_1m", "evict", "evict_1000000", _most(2.0), "(d) evict a page of 1 M leaves at most 2 us"),
    Floor("evict_flat", "instructions", "instructions_evict", _most(1.25), "eviction flat in instructions"),
    Floor("worst_operation", "worst", "worst_operation", _most(1_000.0), "worst operation at most 1 ms"),
    Floor("memory", "memory", "bytes_per_token", _most(6.0), "at most 6 bytes per token"),
    Floor("peek_overhead", "peek", "peek_overhead", _most(3.0), "peek of a short prompt at most 3 us"),
    Floor("hit_rate_1.6", "hit_rate", "hit_rate_1.6", _least(0.82), "usable hit rate at least 0.82 at 1.6 %"),
    Floor("hit_rate_2.5", "hit_rate", "hit_rate_2.5", _least(0.84), "usable hit rate at least 0.84 at 2.5 %"),
    Floor("hit_rate_4.9", "hit_rate", "hit_rate_4.9", _least(0.84), "usable hit rate at least 0.84 at 4.9 %"),
    Floor(
        "ttft_reference", "ttft", "ttft_ratio_reference", _most(0.3), "first token at 90 % reuse at most 0.3, reference"
    ),
    Floor("ttft_torch", "ttft", "ttft_ratio_torch", _most(0.3), "first token at 90 % reuse at most 0.3, torch"),
    Floor("bookkeeping_1", "bookkeeping", "bookkeeping_decode_1", _most(0.03), "bookkeeping at most 3 %, decode of 1"),
    Floor("bookkeeping_8", "bookkeeping", "bookkeeping_decode_8", _most(0.03), "bookkeeping at most 3 %, decode of 8"),
    Floor("bookkeeping_prefill", "bookkeeping", "bookkeeping_prefill", _most(0.03), "bookkeeping at most 3 %, prefill"),
    Floor("decode", "decode", "decode_ratio", _least(1.0), "decoding not slower than transformers"),
    Floor("fast_get", "transfer", "fast_get_32_vs_memcpy", _least(0.55), "same-host get at least 0.55 x memcpy"),
    Floor("tcp_get", "transfer", "tcp_get_32_vs_grpcio", _least(1.0), "get over TCP not below grpcio streaming"),
    Floor("tcp_put", "transfer", "tcp_put_32_vs_grpcio", _least(1.0), "put over TCP not below grpcio streaming"),
    Floor("unix_get", "transfer", "unix_get_32_vs_tcp", _least(1.0), "get over a Unix socket not below TCP"),
    Floor("fast_get_64k", "latency", "fast_get_64k_p50", _most(20.0), "same-host get of 64 KiB at most 20 us"),
    Floor("tcp_get_64k", "latency", "tcp_get_64k_p50", _most(200.0), "get of 64 KiB over TCP at most 200 us"),
    Floor("exists", "exists", "exists_1m_tokens", _most(10_000.0), "exists of a 1M-token prefix at most 10 ms"),
    Floor("restart", "restart", "restart_serving", _most(2.0), "serving within 2 s of kill -9"),
    Floor("restart_present", "restart", "restart_present", _least(1.0), "100 % present after kill -9"),
    Floor("idle", "idle", "idle_core", _most(1.0), "an idle node under 1 % of a core"),
    *(
        Floor(
            f"cold_get_{size}",
            "read",
            f"cold_get_{size}_vs_fio",
            _least(0.9),
            f"cold gets of {size} at least 0.9 x fio",
        )
        for size in DISK_SIZES
    ),
    *(
        Floor(f"put_{size}", "write", f"put_{size}_vs_fio", _least(0.8), f"sustained puts of {size} at least 0.8 x fio")
        for size in DISK_SIZES
    ),
    Floor("recovery", "recovery", "recovery", _most(3.0), "1 M objects on disk found within 3 s"),
    Floor("disk_index", "recovery", "index_bytes", _most(40.0), "at most 40 bytes of index per object on disk"),
    Floor("wear", "wear", "write_amplification", _most(1.3), "write amplification at most 1.3 with 80 % alive"),
    Floor(
        "promotion", "promotion", "promotion_hot_get_2_from_memory", _least(1.0), "2nd get of a hot value from memory"
    ),
    Floor("promotion_new", "promotion", "promotion_new_get_3_from_memory", _least(1.0), "3rd get of any from memory"),
    Floor(
        "disk_idle_io", "quiet", "quiet_device_bytes", _most(0.0), "an idle node with a disk reads and writes nothing"
    ),
    Floor("disk_idle_cpu", "quiet", "quiet_core", _most(0.1), "an idle node with a disk under 0.1 % of a core"),
    *(
        Floor(
            f"load_{tokens}",
            "tiers copy",
            f"load_{tokens}_vs_memcpy",
            _least(0.85),
            f"L2 to L1, {tokens // 1024}k tokens, at least 0.85 x memcpy",
        )
        for tokens in COPIED
    ),
    Floor(
        "overlap",
        "tiers overlap",
        "overlap_even_excess",
        _most(0.05),
        "waits for layers at most the first load + 5 % of all loads",
    ),
    *(
        Floor(
            f"prefetch_{tokens}",
            "tiers gcache",
            f"prefetch_{tokens}_vs_get",
            _least(0.8),
            f"L3 to L2, {tokens // 1024}k tokens, at least 0.8 x the client's get",
        )
        for tokens in COPIED
    ),
    Floor(
        "ttft_memory",
        "tiers ttft",
        "ttft_memory_16384_vs_recompute",
        _most(0.35),
        "first token, 16k from L3 memory, at most 0.35 x recompute",
    ),
    Floor(
        "planner_chunk", "tiers planner", "planner_chunk", _most(0.02), "tiers at most 2 % of a chunk of 4,096 tokens"
    ),
    *(
        Floor(
            f"planner_page_{tokens}",
            "tiers planner",
            f"planner_page_{tokens}",
            _most(1.0),
            f"planner at most 1 us per page, {tokens // 1024}k tokens",
        )
        for tokens in PLANNED
    ),
)
"""One for each bound that the project set itself."""


def checks(figures: Sequence[Figure], parts: Sequence[str]) -> dict[str, bool]:
    """Whether each floor of the chosen parts is reached; a figure that was not measured reaches none."""
    by_name = {f.name: f for f in figures}
    return {
        floor.check: (found := by_name.get(floor.figure)) is not None and floor.holds(found)
        for floor in FLOORS
        if floor.part in parts
    }


def missing(figures: Sequence[Figure], parts: Sequence[str]) -> list[str]:
    """Figures with a floor that could not be measured."""
    names = {f.name for f in figures}
    return [floor.figure for floor in FLOORS if floor.part in parts and floor.figure not in names]


def text(figures: Sequence[Figure], reached: dict[str, bool]) -> str:
    """Two tables."""
    rows = [("figure", "median", "unit", "spread", "ratio", "against")]
    for f in figures:
        ratio = "" if f.ratio is None else f"{f.ratio:.3g}"
        rows.append((f.name, f"{f.median:.4g}", f.unit, f"{f.spread:.0%}", ratio, f.against or ""))
    words = {floor.check: floor.words for floor in FLOORS}
    verdicts = [("floor", ""), *((words[name], "reached" if ok else "NOT REACHED") for name, ok in reached.items())]
    return _table(rows) + "\n\n" + _table(verdicts)


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
