"""Hit rate against capacity for all traces of a suite, as one SVG: the figure of docs/policies.md.

mimo-cache replay --suite FOLDER --json > suite.json
python benches/curves.py suite.json docs/policies.svg
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

MODELS = {"uniform": "every layer for every token, one pool", "mimo-v2.5-pro": "MiMo-V2.5-Pro, two pools"}
LINES = (("optimum", "optimum (hybrid: a bound)", "--", "#7a869a"), ("ours", "hit_density", "-", "#1f5fbf"))
LRU = ("lru", "LRU", ":", "#c2571a")


def rates(row: dict) -> dict[str, float]:
    """The three rates of a row, in %."""
    found = {
        "optimum": row["optimum"]["token_hit_rate"],
        "ours": row["token_hit_rate"],
        "lru": row["lru_token_hit_rate"],
    }
    return {name: 100 * rate for name, rate in found.items()}


def main() -> None:
    """Reads the suite's JSON and draws."""
    parser = argparse.ArgumentParser(description="Draws the curves of docs/policies.md.")
    parser.add_argument("suite", type=Path, help="what `mimo-cache replay --suite FOLDER --json` printed")
    parser.add_argument("out", type=Path, help="the SVG")
    args = parser.parse_args()
    rows = [row for row in json.loads(args.suite.read_text())["rows"] if "refused" not in row]
    traces = list(dict.fromkeys(row["trace"] for row in rows))
    mpl.rcParams.update({"svg.hashsalt": "mimo_cache", "font.size": 8})
    figure, axes = plt.subplots(len(MODELS), len(traces), figsize=(3 * len(traces), 5.2), squeeze=False)
    for line, (model, title) in enumerate(MODELS.items()):
        for column, trace in enumerate(traces):
            ax = axes[line][column]
            points = [(float(row["capacity"].rstrip("%")), rates(row)) for row in rows
                      if (row["trace"], row["model"]) == (trace, model)]  # fmt: skip
            for name, label, style, colour in (*LINES, LRU):
                x, y = [p for p, _ in points], [r[name] for _, r in points]
                ax.plot(x, y, style, color=colour, marker="o", markersize=3, label=label)
            ax.set(xscale="log", title=trace, xlabel="capacity, % of all bytes")
            ax.set_xticks([p for p, _ in points], [f"{p:g}" for p, _ in points])
            ax.minorticks_off()
            if column == 0:
                ax.set_ylabel(f"{title}\ntoken hit rate, %")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
