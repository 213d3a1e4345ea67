"""One self-contained page with the demo's plots: inline SVG, no script, nothing fetched."""

from __future__ import annotations

import html
import io
from collections import defaultdict
from typing import Any

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from .report import CAUSES, STATES, Result, text

COLOURS = {
    "free": "#e8e8e8",
    "private": "#f2a65a",
    "cached": "#8ab6d6",
    "leased": "#2f6690",
    "quarantined": "#b23a48",
    "window": "#f2a65a",
    "last_token": "#d9d375",
    "evicted": "#b23a48",
    "in_flight": "#7d5ba6",
    "capacity": "#444444",
    "never_seen": "#8ab6d6",
    "partial_page": "#c9c9c9",
}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em; color: #222 }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em } svg { max-width: 100%; height: auto }
.ok { background: #dff0d8 } .bad { background: #f2dede } .ok, .bad { padding: .5em 1em; border-radius: 4px }
table { border-collapse: collapse } td { padding: .1em 1em .1em 0 } td.n { text-align: right }
pre { background: #f6f6f6; padding: 1em; overflow-x: auto; font-size: 13px }
"""


def page(r: Result) -> str:
    """The whole page."""
    verdict = (
        f"<p class=ok>verified: {r.verdict.rows:,} rows in {r.verdict.tables:,} page tables held exactly the KV of "
        "their token sequence</p>"
        if r.verified
        else "<p class=bad>NOT VERIFIED: "
        + html.escape("; ".join(r.verdict.messages) or f"{r.tally.requests} requests were served")
        + "</p>"
    )
    t = r.tally
    rows = [("prompt tokens", t.prompt, ""), ("hits", t.hits, f"full-KV match {100 * r.full_kv_rate:.1f} %")]
    rows += [(cause, t.misses[cause], why) for cause, why in CAUSES.items()]
    table = "".join(
        f"<tr><td>{html.escape(name)}<td class=n>{n:,}<td class=n>{100 * n / max(1, t.prompt):.1f} %"
        f"<td>{html.escape(why)}"
        for name, n, why in rows
    )
    parts = [
        ("Where the prompt tokens came from", f"<table>{table}</table>" + misses(r)),
        ("Hit rate over time", hit_rate(r)),
        ("Pools by state", pools(r)),
        (
            "The prefix tree at the end",
            "<p>Depth runs down, one column a branch. Light: full KV only. Dark: full and SWA KV. Dots: boundaries "
            "from which a request can go on.</p>"
            + (tree(r.snapshot, r.page) if r.snapshot is not None else "<p>The run broke off.</p>"),
        ),
        ("Report", f"<pre>{html.escape(text(r))}</pre>"),
    ]
    body = "".join(f"<h2>{title}</h2>{content}" for title, content in parts)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>mimo-cache demo --canary</title><style>{STYLE}</style>"
        f"<h1>mimo-cache demo --canary: {r.sessions} sessions, {t.requests:,} requests, {t.steps:,} steps</h1>"
        f"{verdict}{body}</html>"
    )


def figure(width: float, height: float, columns: int = 1) -> tuple[Any, list[Any]]:
    """An empty figure and its axes, without a display."""
    f = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(f)
    axes = f.subplots(1, columns, squeeze=False)[0]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    return f, list(axes)


def svg(f: Any) -> str:
    """The figure as an SVG element."""
    out = io.StringIO()
    f.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()[out.getvalue().index("<svg") :]


def misses(r: Result) -> str:
    """One bar a cause."""
    causes = [c for c in reversed(CAUSES) if r.tally.misses[c]]
    f, (ax,) = figure(9, 0.4 * len(causes) + 0.9)
    bars = ax.barh(causes, [r.tally.misses[c] for c in causes], color=[COLOURS[c] for c in causes])
    ax.bar_label(bars, [f" {r.tally.misses[c]:,}" for c in causes], fontsize=8)
    ax.set_xlabel("prompt tokens that missed")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    return svg(f)


def hit_rate(r: Result) -> str:
    """Usable and full-KV hit rate, over all so far and within a moving stretch of requests."""
    f, (ax,) = figure(9, 3)
    s = [x for x in r.tally.samples if x[1]]
    steps = [x[0] for x in s]
    reach = max(1, len(s) // 20)
    near = [(b[2] - a[2]) / (b[1] - a[1]) if b[1] > a[1] else float("nan") for a, b in zip(s, s[reach:], strict=False)]
    ax.plot(steps[reach:], near, ".", color="#8ab6d6", markersize=3, label=f"usable, last {8 * reach} steps")
    ax.plot(steps, [x[3] / x[1] for x in s], "--", color="#f2a65a", label="full-KV match so far")
    ax.plot(steps, [x[2] / x[1] for x in s], color="#2f6690", label="usable so far")
    ax.set(ylim=(0, 1.02), xlabel="step", ylabel="share of prompt tokens")
    ax.legend(fontsize=8, loc="lower right")
    return svg(f)


def pools(r: Result) -> str:
    """Both pools, stacked by state, over time."""
    f, axes = figure(9, 3, 2)
    steps = [x[0] for x in r.tally.samples]
    names = ("leased", "cached", "private", "quarantined", "free")
    for ax, pool in zip(axes, ("full", "swa"), strict=True):
        stats = [getattr(x[4], pool) for x in r.tally.samples]
        series = {k: [getattr(s, k) for s in stats] for k in STATES}
        series["cached"] = [c - leased for c, leased in zip(series["cached"], series["leased"], strict=True)]
        labels = [n if n != "cached" else "cached, not leased" for n in names]
        ax.stackplot(steps, [series[n] for n in names], colors=[COLOURS[n] for n in names], labels=labels, linewidth=0)
        ax.set(title=f"{pool} pool", xlabel="step", ylabel="pages")
        ax.yaxis.set_major_formatter("{x:,.0f}")
    axes[0].legend(fontsize=7, loc="lower right")
    return svg(f)


def tree(snapshot: Any, page: int) -> str:
    """The tree as stretches between branches: x is the order of leaves, y the depth in tokens."""
    children: dict[bytes, list[bytes]] = defaultdict(list)
    pages = {p.key: p for p in snapshot.pages}
    for p in snapshot.pages:
        children[p.parent].append(p.key)
    leaves: dict[bytes, int] = {}
    for p in reversed(snapshot.pages):  # parents come first, so this sees children before their parents
        leaves[p.key] = sum(leaves[k] for k in children[p.key]) or 1
    f, (ax,) = figure(9, 5)
    bars: dict[bool, list[tuple[float, float, float, float]]] = {False: [], True: []}
    safe: tuple[list[float], list[float]] = ([], [])
    stack = []
    x = 0.0
    for root in (p for p in children if p not in pages):
        for key in children[root]:
            stack.append((key, x, 0))
            x += leaves[key]
    total = x
    while stack:
        key, x, depth = stack.pop()
        first, swa, start = key, pages[key].swa, depth
        while True:  # one stretch: the same branch in the same state
            depth += 1
            if pages[key].window_safe:
                safe[0].append(x + leaves[key] / 2)
                safe[1].append(depth * page)
            below = children[key]
            if len(below) != 1 or pages[below[0]].swa != swa:
                break
            key = below[0]
        bars[swa].append((x, leaves[first], start * page, (depth - start) * page))
        for child in below:
            stack.append((child, x, depth))
            x += leaves[child]
    for swa, colour in ((False, "#c7dceb"), (True, "#2f6690")):
        left, width, bottom, height = zip(*bars[swa], strict=True) if bars[swa] else ((), (), (), ())
        ax.bar(left, height, width, bottom, align="edge", color=colour, edgecolor="white", linewidth=0.2)
    ax.plot(*safe, ".", color="#b23a48", markersize=2)
    ax.set(xlim=(0, max(1.0, total)), xlabel=f"branches ({total:,.0f} leaves)", ylabel="depth in tokens")
    ax.invert_yaxis()
    ax.yaxis.set_major_formatter("{x:,.0f}")
    return svg(f)
