"""Plays every part of `mimo-cache bench tree` and collects its figures.

Names of figures are part of the output's contract: a check in `report.py` looks them up by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mimo_cache import _core
from mimo_cache.bench import evict, hit_rate, match, memory, source, turn
from mimo_cache.bench import scenarios as sc
from mimo_cache.bench.peer import Peer
from mimo_cache.bench.timing import Figure, figure, last_level_cache_bytes, say

PARTS = ("turn", "match", "rematch", "chunk", "evict", "worst", "memory", "peek", "hit_rate", "growth", "instructions")
"""Parts that can be chosen, in the order in which they run."""


@dataclass(frozen=True)
class Options:
    """What to run."""

    runs: int
    scale: float
    parts: tuple[str, ...]
    peer: bool


def run(options: Options) -> list[Figure]:
    """All figures of the chosen parts."""
    peer = Peer(options.peer, options.scale)
    parts: dict[str, Callable[[Options, Peer], list[Figure]]] = {
        "turn": _turn,
        "match": _match,
        "rematch": _rust("rematch"),
        "chunk": _chunk,
        "evict": _evict,
        "worst": _rust("worst"),
        "memory": _memory,
        "peek": _peek,
        "hit_rate": _hit_rate,
        "growth": _rust("growth"),
        "instructions": _instructions,
    }
    figures: list[Figure] = []
    for name in PARTS:
        if name in options.parts:
            say(name)
            figures += parts[name](options, peer)
    return figures


def _rust(name: str) -> Callable[[Options, Peer], list[Figure]]:
    return lambda options, _peer: list(source.rust(name, options.scale).values())


def _turn(options: Options, peer: Peer) -> list[Figure]:
    runs = []
    for i in range(options.runs):
        say(f"(a) a whole turn, run {i + 1} of {options.runs}")
        peer.run("a")
        runs.append(turn.run(options.scale))
    out = [figure("turn", "us", [r["turn"] for r in runs]).versus(*peer.value("a", "turn"))]
    out += [figure(f"turn_{part}", "us", [r[part] for r in runs]) for part in turn.PARTS]
    # Later runs reuse the memory of the first.
    bytes_per_token = Figure("turn_bytes_per_token", "B", runs[0]["bytes_per_token"])
    return [*out, bytes_per_token.versus(*peer.value("a", "bytes_per_token"))]


def _match(options: Options, peer: Peer) -> list[Figure]:
    out: list[Figure] = []
    means: dict[int, list[float]] = {}
    peer.run("b")
    for nodes in match.NODES:
        cold = match.cold(nodes, options.runs, options.scale)
        cache = last_level_cache_bytes() >> 20
        say(f"(b) {nodes} nodes: {cold.rotated_bytes / 1e6:.0f} MB rotated, the last-level cache is {cache} MiB")
        means[nodes] = cold.match
        memcmp = figure(f"memcmp_cold_{nodes}", "us", cold.memcmp)
        ours = figure(f"match_cold_{nodes}", "us", cold.match)
        out += [memcmp, ours.versus(memcmp.median, "memcmp of the same bytes, same run")]
        theirs, who = peer.value("b", f"match_{nodes}")
        out.append(figure(f"match_cold_{nodes}_vs_peer", "us", cold.match).versus(theirs, who))
    first, last = match.NODES[0], match.NODES[-1]
    per_node = [(b - a) / (last - first) for a, b in zip(means[first], means[last], strict=True)]
    return [*out, figure("match_per_further_node", "us", per_node)]


def _chunk(options: Options, peer: Peer) -> list[Figure]:
    runs = []
    for _ in range(options.runs):
        peer.run("c")
        runs.append(evict.run(options.scale))
    return [
        figure("chunk", "us", [r["chunk"] for r in runs]).versus(*peer.value("c", "evict_and_alloc")),
        figure("chunk_p99", "us", [r["chunk_p99"] for r in runs]),
    ]


def _evict(options: Options, peer: Peer) -> list[Figure]:
    peer.run("d")
    out = []
    for name, ours in source.rust("evict", options.scale).items():
        known = name if name != "evict_1000000" else "evict_100000"
        theirs, who = peer.value("d", known)
        out.append(ours.versus(theirs, who + (", at 100k leaves" if known != name else "")))
    return out


def _memory(options: Options, peer: Peer) -> list[Figure]:
    peer.run("memory")
    tokens = int(100_000_000 * options.scale)
    values = [memory.bytes_per_token(tokens) for _ in range(options.runs)]
    return [figure("bytes_per_token", "B", values).versus(*peer.value("memory", "bytes_per_token"))]


def _peek(options: Options, _peer: Peer) -> list[Figure]:
    return [figure("peek_overhead", "us", match.peek_overhead(options.runs, options.scale))]


def _hit_rate(options: Options, peer: Peer) -> list[Figure]:
    out = []
    peer.run("hit_rate")
    for share, tokens in sc.HIT_RATE_SWA_TOKENS.items():
        name = f"hit_rate_{share.split()[0]}"
        # A hit rate is a function of the tokens, not of the machine: one run tells all.
        outside = hit_rate.run(tokens, options.scale)
        out.append(Figure(name, "1", outside.usable).versus(*peer.value("hit_rate", share)))
        out.append(Figure(f"{name}_full_kv", "1", outside.full_kv))
        inside = hit_rate.run(tokens, options.scale, inside=True)
        out.append(Figure(f"{name}_scratch_inside", "1", inside.usable).versus(*peer.value("hit_rate", share)))
        default = hit_rate.run(tokens, options.scale, retention=_core.DEFAULT_RETENTION)
        out.append(Figure(f"{name}_default_retention", "1", default.usable))
        decoded = hit_rate.run(tokens, options.scale, decoded=True, retention=hit_rate.DECODED)
        out.append(Figure(f"{name}_half_decoded", "1", decoded.usable))
    return out


def _instructions(options: Options, _peer: Peer) -> list[Figure]:
    return [Figure(f"instructions_{name}", "1", value) for name, value in source.instructions(options.scale).items()]
