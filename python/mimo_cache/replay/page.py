"""One self-contained page about replays: inline SVG, no script, nothing fetched."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from itertools import pairwise
from math import isnan
from typing import Any

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from .runs import one_pool_pages
from .suite import Row, TraceRuns, table

OURS, LRU, BEST, CEILING, POOL = "#2f6690", "#f2a65a", "#444444", "#b7b7b7", "#7d5ba6"
CAUSES = {
    "window": "#f2a65a",
    "last_token": "#d9d375",
    "evicted": "#b23a48",
    "in_flight": "#7d5ba6",
    "capacity": "#444444",
    "never_seen": "#8ab6d6",
}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 66em; padding: 0 1em; color: #222 }
h1 { font-size: 1.5em } h2 { font-size: 1.25em; margin-top: 2.5em } h3 { font-size: 1.05em; margin: 1.5em 0 .3em }
svg { max-width: 100%; height: auto } pre { background: #f6f6f6; padding: 1em; overflow-x: auto; font-size: 13px }
p { max-width: 46em }
"""
MODELS = {"uniform": "every layer for every token, one pool"}


def page(title: str, runs: Sequence[TraceRuns]) -> str:
    """The whole page."""
    parts = [f"<h2>Hit rates</h2><pre>{html.escape(table(runs))}</pre>"]
    for trace in runs:
        rows = [row for row in trace.rows if row.ours is not None]
        parts.append(f"<h2>{html.escape(trace.name)}</h2>{_facts(trace, rows)}")
        models = list(dict.fromkeys(row.model for row in rows))
        for model in models:
            words = MODELS.get(model, "full attention and sliding windows")
            parts.append(f"<h3>Hit rate against capacity: {html.escape(model)}, {words}</h3>")
            parts.append(_against_capacity(trace, [row for row in rows if row.model == model]))
        for model in models:
            shown = _middle([row for row in rows if row.model == model])
            if shown is None or not shown.ours or "samples" not in shown.ours:
                continue
            parts.append(f"<h3>Over time: {html.escape(model)} at {shown.capacity}</h3>" + _over_time(shown.ours))
        if len(rows) > 1:
            parts.append("<h3>Misses by cause</h3>" + _by_cause(rows))
        parts.append("<h3>Distances between uses</h3>" + _reuse(trace))
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{html.escape(title)}</title><style>{STYLE}</style><h1>{html.escape(title)}</h1>"
        f"{''.join(parts)}</html>"
    )


def figure(width: float, height: float, columns: int = 1) -> tuple[Any, list[Any]]:
    """An empty figure and its axes, without a display."""
    f = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(f)
    axes = f.subplots(1, columns, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return f, list(axes)


def _legend(ax: Any) -> None:
    """Beside the plot, where it hides nothing."""
    ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def svg(f: Any) -> str:
    """The figure as an SVG element."""
    out = io.StringIO()
    f.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()[out.getvalue().index("<svg") :]


def _facts(trace: TraceRuns, rows: Sequence[Row]) -> str:
    if not rows or rows[0].ours is None:
        return "<p>No capacity could be replayed.</p>"
    r = rows[0].ours
    return (
        f"<p>{r['requests']:,} requests, {r['prompt_tokens']:,} prompt tokens in full blocks, {r['unique_tokens']:,} "
        f"of them different. An infinite cache hits {r['ceiling']:.2%}. Capacities are in % of what all layers of all "
        "different tokens take.</p>"
    )


def _middle(rows: Sequence[Row]) -> Row | None:
    """The row whose way is drawn: the one nearest to 1 %."""
    rows = [row for row in rows if row.ours is not None]
    return min(rows, key=lambda row: abs((row.percent or 1) - 1), default=None)


def _cost(row: Row) -> tuple[float, float]:
    """Pages of the full pool, and pages of all layers, that 1 % of the trace's bytes would hold."""
    if row.ours is None:
        return 0.0, 0.0
    r = row.ours
    percent = row.percent or 1.0
    return r["budget_pages"] / percent, one_pool_pages(r) / percent


def _against_capacity(trace: TraceRuns, rows: Sequence[Row]) -> str:
    f, (ax,) = figure(9, 3.6)
    first = rows[0].ours
    if first is None:
        return ""
    found, total = trace.facts["optimum"], max(1, trace.facts["optimum"]["prompt_tokens"])
    pages = trace.facts["capacities"]
    has_percent = all(row.percent is not None for row in rows)
    unique = max(1, trace.facts["unique_pages"])
    hybrid = first["swa_pages"] > 0
    # Curves know pages of one pool; the axis is the share of all bytes.
    full, one = _cost(rows[0]) if has_percent else (first["budget_pages"], one_pool_pages(first))
    per_one = unique / 100 if has_percent else one
    per_full = full if hybrid else per_one
    ceiling = 100 * first["ceiling"]
    ax.axhline(ceiling, color=CEILING, linewidth=1, label=f"infinite cache, {ceiling:.1f} %")
    best = [100 * h / total for h in found["belady"]]
    if hybrid:
        ax.plot([p / per_full for p in pages], best, color=BEST, linestyle="--", label="no cache can beat this")
        lru = [100 * h / total for h in found["lru"]]
        ax.plot([p / per_one for p in pages], lru, color=POOL, linewidth=1, label="one pool of all layers, LRU")
    else:
        ax.plot([p / per_one for p in pages], best, color=BEST, linestyle="--", label="optimum (Belady)")
        lru = [100 * h / total for h in found["lru"]]
        ax.plot([p / per_one for p in pages], lru, color=LRU, linewidth=1, label="LRU, from stack distances")
    x = [row.percent if row.percent is not None else 1.0 for row in rows]
    if hybrid and rows[0].lru is not None and any(row.lru is not row.ours for row in rows):
        ax.plot(
            x, [100 * row.lru["token_hit_rate"] for row in rows if row.lru], "o-", color=LRU, markersize=4, label="LRU"
        )
    ours = [100 * row.ours["token_hit_rate"] for row in rows if row.ours]
    ax.plot(x, ours, "o-", color=OURS, markersize=4, label="this cache")
    low, high = min(x) / 2, max(x) * 2
    ax.set(xscale="log", xlim=(low, high), ylim=(0, min(102.0, 1.1 * ceiling + 1)), ylabel="token hit rate, %")
    ax.set_xticks(x, [f"{v:g}" for v in x] if has_percent else [str(first["capacity"])])
    ax.set_xticks([], minor=True)
    ax.set_xlabel("capacity, % of the bytes of all layers of all different tokens" if has_percent else "capacity")
    _legend(ax)
    return svg(f)


def _over_time(r: dict[str, Any]) -> str:
    return svg(_rates(r)) + svg(_misses(r)) + svg(_occupancy(r))


def _times(ax: Any, r: dict[str, Any]) -> list[float]:
    """Times of the samples, in the unit that fits. A thin tail of the trace is left out of the plot."""
    times = [s["t_ms"] for s in r["samples"]]
    most = times[round(0.98 * (len(times) - 1))]
    end = times[-1] if times[-1] - times[0] <= 1.5 * (most - times[0]) else most
    span = max(1, end - times[0])
    units = (("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000), ("ms", 1))
    unit, length = next((u, n) for u, n in units if span >= 3 * n or n == 1)
    ax.set_xlim(0, span / length)
    ax.set_xlabel(unit if end == times[-1] else f"{unit}; the last 2 % of the requests come later")
    return [(t - times[0]) / length for t in times]


def _steps(r: dict[str, Any], key: str) -> list[int]:
    """What a counter grew by between samples."""
    values = [0] + [s[key] for s in r["samples"]]
    return [b - a for a, b in pairwise(values)]


def _rates(r: dict[str, Any]) -> Any:
    f, (ax,) = figure(9, 2.6)
    x = _times(ax, r)
    samples = r["samples"]
    prompts, hits = _steps(r, "prompt_tokens"), _steps(r, "hit_tokens")
    near = [100 * h / p if p else float("nan") for h, p in zip(hits, prompts, strict=True)]
    ax.plot(
        x, near, ".", color="#8ab6d6", markersize=3, label=f"usable, {r['requests'] // len(samples):,} requests each"
    )
    ax.plot(
        x, [100 * s["full_kv_tokens"] / max(1, s["prompt_tokens"]) for s in samples], "--", color=LRU, label="full KV"
    )
    ax.plot(x, [100 * s["hit_tokens"] / max(1, s["prompt_tokens"]) for s in samples], color=OURS, label="usable so far")
    seen = [
        *(v for v in near if not isnan(v)),
        100 * samples[-1]["full_kv_tokens"] / max(1, samples[-1]["prompt_tokens"]),
    ]
    low, high = min(seen), max(seen)
    ax.set_ylim(max(0, low - 0.1 * (high - low) - 1), min(102, high + 0.1 * (high - low) + 1))
    ax.set_ylabel("% of prompt tokens")
    _legend(ax)
    return f


def _misses(r: dict[str, Any]) -> Any:
    """What was missed between samples, as a share of the prompt tokens there."""
    f, (ax,) = figure(9, 2.6)
    x = _times(ax, r)
    prompts = _steps(r, "prompt_tokens")
    rows, names = [], []
    for cause in CAUSES:
        values = [0] + [s["misses"][cause] for s in r["samples"]]
        grown = [b - a for a, b in pairwise(values)]
        if any(grown):
            rows.append([100 * g / p if p else 0.0 for g, p in zip(grown, prompts, strict=True)])
            names.append(cause)
    if rows:
        ax.stackplot(x, rows, colors=[CAUSES[n] for n in names], labels=names, linewidth=0)
        _legend(ax)
    ax.set_ylabel("missed, % of prompt tokens")
    ax.set_ylim(bottom=0)
    return f


def _occupancy(r: dict[str, Any]) -> Any:
    """Cached pages by group, in bytes."""
    f, (ax,) = figure(9, 2.6)
    x = _times(ax, r)
    scale, name = next(
        ((2**k, n) for k, n in ((40, "TiB"), (30, "GiB"), (20, "MiB")) if _bytes(r) >= 2**k), (1, "bytes")
    )
    rows, names, colours = [], [], []
    for group, colour in (("full", OURS), ("swa", LRU)):
        if r[f"{group}_pages"]:
            cost = r[f"{group}_bytes"] / r[f"{group}_pages"] / scale
            rows.append([s[f"{group}_cached"] * cost for s in r["samples"]])
            names.append(f"{group} pages")
            colours.append(colour)
    ax.stackplot(x, rows, labels=names, colors=colours, linewidth=0)
    ax.axhline(_bytes(r) / scale, color=CEILING, linewidth=1)
    ax.set(ylabel=f"cached, {name}", ylim=(0, _bytes(r) / scale * 1.05))
    _legend(ax)
    return f


def _bytes(r: dict[str, Any]) -> int:
    return int(r["full_bytes"] + r["swa_bytes"])


def _by_cause(rows: Sequence[Row]) -> str:
    """One bar a capacity, hits and misses."""
    f, (ax,) = figure(9, 0.28 * len(rows) + 1)
    names = [f"{row.model}, {row.capacity}" for row in rows]
    left = [0.0] * len(rows)
    parts: list[tuple[str, str, list[float]]] = []
    for cause, colour in CAUSES.items():
        values = [100 * row.ours["misses"][cause] / max(1, row.ours["prompt_tokens"]) for row in rows if row.ours]
        if any(values):
            parts.append((cause, colour, values))
    for cause, colour, values in parts:
        ax.barh(names, values, left=left, color=colour, label=cause, height=0.7)
        left = [a + b for a, b in zip(left, values, strict=True)]
    ax.invert_yaxis()
    ax.set_xlabel("missed, % of prompt tokens")
    _legend(ax)
    return svg(f)


def _reuse(trace: TraceRuns) -> str:
    """Tokens by the distance to their last use, in distinct tokens and in time."""
    f, (left, right) = figure(9, 2.8, 2)
    found = trace.facts["optimum"]
    total = max(1, found["prompt_tokens"])
    for ax, key, words in (
        (left, "reuse_tokens", "distinct tokens used since"),
        (right, "reuse_ms", "time since the last use"),
    ):
        buckets = found[key]
        # Ends that would not show are left out.
        used = [k for k, n in enumerate(buckets) if n >= total / 2000] or [0]
        ks = range(used[0], used[-1] + 1)
        ax.bar(list(ks), [100 * buckets[k] / total for k in ks], width=0.9, align="edge", color=OURS)
        ticks = list(ks)[:: max(1, len(ks) // 6)]
        label = _count if key == "reuse_tokens" else _time
        ax.set_xticks(ticks, [label(1 << k) for k in ticks])
        ax.set(xlabel=words, ylabel="% of prompt tokens")
    return svg(f)


def _count(n: int) -> str:
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("k", 1 << 10)):
        if n >= size:
            return f"{n // size} {unit}"
    return str(n)


def _time(ms: int) -> str:
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= size:
            return f"{ms / size:.0f} {unit}"
    return f"{ms} ms"
