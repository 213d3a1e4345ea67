"""One self-contained page about a run of the demo: inline SVG, no script, nothing fetched."""

from __future__ import annotations

import html
from typing import Any

from ..html import STYLE, figure, svg
from . import sources
from .phases import Phase
from .report import after, text
from .run import Result
from .sources import REUSED, Times

COLOURS = {
    "device": "#2f6690",
    "host": "#8ab6d6",
    "gcache_memory": "#f2a65a",
    "gcache_disk": "#b9722d",
    "gcache_remote": "#7d5ba6",
    "computed": "#c9c9c9",
}
PLAIN = "#b23a48"
PLACES = ("device", "host", "gcache_memory", "gcache_disk", "gcache_remote", "computed")


def page(r: Result) -> str:
    """The whole page."""
    verdict = (
        "<p class=ok>identical: every turn computed the same with the cache and without it</p>"
        if r.valid
        else f"<p class=bad>NOT identical: {html.escape(r.verdict.first or 'nothing was compared')}</p>"
    )
    parts = [("Where the prompt tokens came from, turn by turn", tokens(r)), ("Time to the first token", times(r))]
    found = sources.by_source(r.served)
    if found:
        parts.append(("Time to the first token by source", by_source(r, found)))
    if r.sizes is not None:
        parts.insert(0, ("What happened", "".join(_story(r, phase) for phase in r.phases)))
    parts.append(("Report", f"<pre>{html.escape(text(r))}</pre>"))
    body = "".join(f"<h2>{title}</h2>{content}" for title, content in parts)
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>mimo-cache demo</title><style>{STYLE}</style>"
        f"<h1>mimo-cache demo: {len(r.served)} turns of {r.sessions} sessions</h1>{verdict}{body}</html>"
    )


def _story(r: Result, phase: Phase) -> str:
    turns = r.phase(phase)
    words = html.escape(" ".join([*phase.before, *after(phase, turns)]))
    return f"<p><b>{html.escape(phase.title)}, turns {phase.first} to {phase.first + len(turns) - 1}.</b> {words}</p>"


def tokens(r: Result) -> str:
    """One bar a turn, stacked by source."""
    f, (ax,) = figure(9, 4)
    numbers, bottom = [s.number for s in r.served], [0] * len(r.served)
    for name in PLACES:
        values = [sources.counted(s.sources)[name] for s in r.served]
        if any(values):
            words = REUSED.get(name, "computed")
            ax.bar(numbers, values, 0.85, bottom, color=COLOURS[name], label=words, linewidth=0)
            bottom = [a + b for a, b in zip(bottom, values, strict=True)]
    ax.set(xlabel="turn", ylabel="prompt tokens")
    ax.yaxis.set_major_formatter("{x:,.0f}")
    _phases(r, ax)
    f.legend(fontsize=8, loc="outside lower center", ncols=6, frameon=False)
    return svg(f)


def times(r: Result) -> str:
    """Both times of each turn, those with the cache in the colour of their source: other turns have less than `MOSTLY`
    reused, or no source has more than half of it."""
    f, (ax,) = figure(9, 4)
    ax.plot([s.number for s in r.served], [s.plain for s in r.served], "x", color=PLAIN, markersize=5, label="no cache")
    for name in PLACES:
        some = [s for s in r.served if (sources.main_source(s) or "computed") == name]
        if some:
            words = f"cache, mostly {REUSED[name]}" if name in REUSED else "cache, other turns"
            x, y = [s.number for s in some], [s.cached for s in some]
            ax.plot(x, y, "o", color=COLOURS[name], markersize=5, label=words)
    ax.set(xlabel="turn", ylabel="seconds to the first token", yscale="log")
    _phases(r, ax)
    f.legend(fontsize=8, loc="outside lower center", ncols=3, frameon=False)
    return svg(f)


def by_source(r: Result, found: dict[str, Times]) -> str:
    """Medians of turns by source, beside the same turns without the cache; and of questions that were asked again."""
    f, axes = figure(9, 2.9, 2)
    for ax, again in zip(axes, (False, True), strict=True):
        rows = sources.by_source(r.served, again) if again else found
        names = list(reversed(rows))
        for offset, colours, kind in (
            (0.2, [COLOURS[name] for name in names], "cached"),
            (-0.2, [COLOURS["computed"]] * len(names), "plain"),
        ):
            values = [1000 * getattr(rows[name], kind) for name in names]
            bars = ax.barh([i + offset for i in range(len(names))], values, 0.38, color=colours)
            ax.bar_label(bars, [f" {value:,.0f}" for value in values], fontsize=8)
        ax.set_yticks(range(len(names)), [f"{REUSED[name]} ({rows[name].turns})" for name in names], fontsize=8)
        ax.set(xlabel="ms, median; grey: without the cache", xscale="log", xlim=(1, None))
        ax.set_title("questions asked again" if again else "turns with 80 % reused", fontsize=9)
    return svg(f)


def _phases(r: Result, ax: Any) -> None:
    """A line where a phase begins, with its title; titles of neighbours at two heights, since phases may be short."""
    ax.set_xlim(0, len(r.served) + 1)
    for i, phase in enumerate(r.phases[1:]):
        ax.axvline(phase.first - 0.5, color="#444444", linewidth=0.8, linestyle="--")
        height = 1.0 + 0.06 * (i % 2)
        ax.text(phase.first - 0.5, height, phase.title, transform=ax.get_xaxis_transform(), fontsize=8, va="bottom")
