#!/usr/bin/env python3
"""Curves over capacity for docs/policies.md, from the rows that `cargo bench --bench policies -- … --json ROWS` wrote.

    policy_curves.py FOLDER ROWS.jsonl [FILE.svg]

A row's best share of the bytes counts. Without FILE the numbers are printed as a table. The optimum and LRU over one
pool are computed here, from the traces in FOLDER.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mimo_cache.replay import optimum

TRACES = ("claude_code_dev", "conversation", "tau_airline", "magagent", "miniswe")
PAGE = 64
# Bytes of all layers over bytes of the full-attention layers, for a token of MiMo-V2.5-Pro.
RATIO = 7
STYLES = {
    "hit_density": ("#0b6e4f", "-", 2.0),
    "lru": ("#c1440e", "-", 1.4),
    "turn_hazard": ("#7a5195", ":", 1.0),
    "arc": ("#777777", "--", 1.0),
    "s3fifo": ("#aaaaaa", "-.", 1.0),
}

Curves = dict[str, dict[float, tuple[float, float]]]


def read(path: Path) -> dict[tuple[str, str], Curves]:
    """Of each trace and model by policy: the best hit rate at each percentage, and its SWA share."""
    found: dict[tuple[str, str], Curves] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["retention"] != "default" or row["page_size"] != PAGE:
            continue
        curve = found.setdefault((row["trace"], row["model"]), {}).setdefault(row["policy"], {})
        best = (100 * row["token_hit_rate"], row["swa_share"])
        curve[row["percent"]] = max(best, curve.get(row["percent"], best))
    return found


def bounds(trace: Path, model: str, percents: list[float]) -> tuple[list[float], list[float], float]:
    """At these percentages what no cache can beat and LRU over one pool, and the ceiling; in percent."""
    unique = optimum(trace, [1], PAGE)
    # What is new is what an infinite cache misses.
    pages = (unique["prompt_tokens"] - unique["endless"]) / PAGE
    scale = 1 if model == "uniform" else RATIO
    sizes = [int(pages * percent / 100) for percent in percents]
    best = optimum(trace, [size * scale for size in sizes], PAGE)
    one = optimum(trace, sizes, PAGE)
    total = unique["prompt_tokens"]
    return (
        [100 * hits / total for hits in best["belady"]],
        [100 * hits / total for hits in one["lru"]],
        100 * unique["endless"] / total,
    )


def table(folder: Path, rows: dict[tuple[str, str], Curves]) -> None:
    """One line a trace, model and percentage."""
    names = list(STYLES)
    print("| trace | model | % | " + " | ".join(names) + " | LRU, one pool | optimum |")
    print("|" + " --- |" * (len(names) + 5))
    for (trace, model), curves in sorted(rows.items()):
        percents = sorted({p for curve in curves.values() for p in curve})
        best, one, _ = bounds(folder / f"{trace}.jsonl.gz", model, percents)
        for i, percent in enumerate(percents):
            cells = []
            for name in names:
                rate, share = curves.get(name, {}).get(percent, (None, 0.0))
                cells.append("" if rate is None else f"{rate:.2f}" + (f" @{share:g}" if share else ""))
            print(f"| {trace} | {model} | {percent:g} | {' | '.join(cells)} | {one[i]:.2f} | {best[i]:.2f} |")


def draw(folder: Path, rows: dict[tuple[str, str], Curves], out: Path) -> None:
    """One panel a trace and model."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "mimo"
    from matplotlib import pyplot as plt

    models = ("uniform", "mimo-v2.5-pro")
    figure, axes = plt.subplots(len(TRACES), 2, figsize=(10, 15), squeeze=False)
    for i, trace in enumerate(TRACES):
        for j, model in enumerate(models):
            ax = axes[i][j]
            curves = rows.get((trace, model), {})
            percents = sorted({p for curve in curves.values() for p in curve})
            if not percents:
                ax.set_axis_off()
                continue
            span = percents[-1] / percents[0]
            grid = [percents[0] * span ** (k / 40) for k in range(41)]
            best, one, ceiling = bounds(folder / f"{trace}.jsonl.gz", model, grid)
            ax.plot(grid, best, color="#333333", lw=1, label="optimum" if j == 0 else "bound")
            if j:
                ax.plot(grid, one, color="#5b8db8", lw=1, label="LRU, one pool")
            ax.axhline(ceiling, color="#cccccc", lw=0.8)
            for name, (colour, dash, width) in STYLES.items():
                points = sorted(curves.get(name, {}).items())
                if points:
                    xs, ys = [p for p, _ in points], [y for _, (y, _) in points]
                    ax.plot(xs, ys, color=colour, ls=dash, lw=width, marker=".", ms=4, label=name)
            ax.set_xscale("log")
            ax.set_xticks(percents, [f"{p:g}" for p in percents])
            ax.set_xticks([], minor=True)
            ax.set_title(f"{trace}, {'one pool' if j == 0 else 'two pools'}", fontsize=10)
            ax.set_ylim(bottom=0)
            ax.grid(alpha=0.2)
            if i == 0:
                ax.legend(fontsize=7, loc="lower right")
    figure.supxlabel("bytes, in % of all layers for all unique tokens of the trace")
    figure.supylabel("token hit rate, %")
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", type=Path)
    parser.add_argument("svg", type=Path, nargs="?")
    args = parser.parse_args()
    rows = read(args.rows)
    if args.svg is None:
        table(args.folder, rows)
    else:
        draw(args.folder, rows, args.svg)


if __name__ == "__main__":
    main()
