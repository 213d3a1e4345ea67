"""The plots of `docs/performance.md` as SVG, with nothing but text: growth, and first tokens by tier."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mimo_cache.bench.timing import Figure

PANELS = (
    ("growth_match", "match of a stored 32k-token prompt, µs"),
    ("growth_turn", "turn of 2,048 tokens on 32k, µs"),
    ("growth_chunk", "evict and allocate 8,192 tokens, µs"),
    ("growth_bytes_per_token", "resident bytes per token"),
)
WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 190, 48, 34, 40
FIRST_TOKENS = (
    ("recompute", "computed", "#444444"),
    ("disk", "L3 disk", "#b5651d"),
    ("memory", "L3 memory", "#c2185b"),
    ("host", "L2", "#2e7d32"),
    ("device", "L1", "#1f5fa8"),
)
"""Part of the figures' names, label, colour."""
LEGEND = 90


def growth(figures: Sequence[Figure]) -> str:
    """Four panels over the cached tokens, each from 0 to a little above its largest value."""
    body = [_panel(figures, name, title, i) for i, (name, title) in enumerate(PANELS)]
    width, height = 2 * (LEFT + WIDTH + GAP), 2 * (TOP + HEIGHT + GAP)
    return _svg(width, height, body)


def _panel(figures: Sequence[Figure], name: str, title: str, index: int) -> str:
    points = []
    for f in figures:
        size = f.name.removeprefix(name + "_")
        if f.name.startswith(name + "_") and size[:-1].isdigit():
            points.append((int(size[:-1]), f))
    x0 = LEFT + index % 2 * (LEFT + WIDTH + GAP)
    y0 = TOP + index // 2 * (TOP + HEIGHT + GAP)
    top = max((f.median * (1 + f.spread) for _, f in points), default=1.0) * 1.15

    def x(millions: float) -> float:
        return x0 + math.log10(millions) / 2 * WIDTH

    def y(value: float) -> float:
        return y0 + HEIGHT * (1 - value / top)

    out = [
        f'<text x="{x0}" y="{y0 - 10}" font-size="13">{title}</text>',
        f'<path d="M{x0} {y0}V{y0 + HEIGHT}H{x0 + WIDTH}" fill="none" stroke="#444"/>',
    ]
    for i in range(5):
        value = top * i / 4
        out.append(f'<path d="M{x0} {y(value):.1f}h{WIDTH}" stroke="#ddd"/>')
        out.append(f'<text x="{x0 - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for millions, f in points:
        out.append(f'<text x="{x(millions):.1f}" y="{y0 + HEIGHT + 16}" text-anchor="middle">{millions} M</text>')
        out.append(f'<circle cx="{x(millions):.1f}" cy="{y(f.median):.1f}" r="3" fill="#1f5fa8"/>')
    line = " ".join(f"{x(m):.1f},{y(f.median):.1f}" for m, f in points)
    out.append(f'<polyline points="{line}" fill="none" stroke="#1f5fa8" stroke-width="1.5"/>')
    return "\n".join(out)


def first_tokens(figures: Sequence[Figure]) -> str:
    """A line for each source: milliseconds to the first token over the tokens of the prefix, both axes logarithmic."""
    lines = {name: _medians(figures, f"ttft_{name}_") for name, _, _ in FIRST_TOKENS}
    prefixes = sorted({tokens for line in lines.values() for tokens, _ in line})
    values = [value for line in lines.values() for _, value in line]
    width, height = 2 * WIDTH, 2 * HEIGHT
    low, high = math.floor(math.log10(min(values, default=1.0))), math.ceil(math.log10(max(values, default=10.0)))
    first, last = math.log2(min(prefixes, default=1)), math.log2(max(prefixes, default=2))

    def x(tokens: int) -> float:
        return LEFT + (math.log2(tokens) - first) / max(last - first, 1.0) * width

    def y(ms: float) -> float:
        return TOP + height * (1 - (math.log10(ms) - low) / max(high - low, 1))

    body = [
        f'<text x="{LEFT}" y="{TOP - 14}" font-size="13">time to the first token, ms, by tokens of the prefix</text>',
        f'<path d="M{LEFT} {TOP}V{TOP + height}H{LEFT + width}" fill="none" stroke="#444"/>',
    ]
    for power in range(low, high + 1):
        body.append(f'<path d="M{LEFT} {y(10.0**power):.1f}h{width}" stroke="#ddd"/>')
        body.append(f'<text x="{LEFT - 6}" y="{y(10.0**power) + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for tokens in prefixes:
        body.append(f'<text x="{x(tokens):.1f}" y="{TOP + height + 16}" text-anchor="middle">{tokens // 1024}k</text>')
    for i, (name, label, colour) in enumerate(FIRST_TOKENS):
        points = [(x(tokens), y(value)) for tokens, value in lines[name]]
        body += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        body.append(f'<text x="{LEFT + width + 12}" y="{TOP + 14 + 18 * i}" fill="{colour}">{label}</text>')
    return _svg(LEFT + width + LEGEND, TOP + height + GAP, body)


def _medians(figures: Sequence[Figure], prefix: str) -> list[tuple[int, float]]:
    """(number, median) of the figures that are called `prefix` and a number, ascending."""
    named = [(f.name.removeprefix(prefix), f.median) for f in figures if f.name.startswith(prefix)]
    return sorted((int(number), median) for number, median in named if number.isdecimal())


def _svg(width: int, height: int, body: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )
