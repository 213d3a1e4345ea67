"""The growth plot of `docs/performance.md` as SVG, with nothing but text."""

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


def growth(figures: Sequence[Figure]) -> str:
    """Four panels over the cached tokens, each from 0 to a little above its largest value."""
    body = [_panel(figures, name, title, i) for i, (name, title) in enumerate(PANELS)]
    width, height = 2 * (LEFT + WIDTH + GAP), 2 * (TOP + HEIGHT + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


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


def first_tokens(figures):
    return ""
