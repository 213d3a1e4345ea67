#!/usr/bin/env python3
"""Regression gate: instructions of the hot operations under callgrind, as ratios that do not depend on the machine.

    instructions.py [--quick] [--json]

Each ratio divides the cost of one call (or one page) at a large size by that at a small one; what should not grow must
not. Exit code 0 when every bound holds, 1 when one does not. Without valgrind it says so and exits 0.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# name: (scenario, small size, large size, bound); QUICK has the large sizes of `--quick`.
RATIOS = {
    # One page, 1k leaves against 1 M: an ordered structure may add a level, a rebuilt one fails by far.
    "evict": ("evict", 1_000, 1_000_000, 1.25),
    # A waiting request of 1k tokens against one of 100k.
    "rematch": ("rematch", 1_024, 100_352, 1.1),
    # A page committed at the start of a prompt against one behind 131k tokens.
    "commit": ("commit", 0, 131_072, 1.1),
    # A page compared in a short match against one in a long one.
    "match": ("match", 8_192, 131_072, 1.1),
}
QUICK = {"evict": 50_000, "rematch": 20_480, "commit": 32_768, "match": 131_072}


def build() -> Path:
    """The bench binary, optimised."""
    command = ["cargo", "bench", "--quiet", "--no-run", "--bench", "instructions", "--message-format=json"]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message["target"]["name"] == "instructions":
            return Path(message["executable"])
    raise SystemExit("instructions: cargo built no bench named instructions")


def count(binary: Path, scenario: str, size: int) -> float:
    """Instructions per call."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}", "--quiet"]
        done = subprocess.run(
            [*command, str(binary), scenario, str(size)], check=True, stdout=subprocess.PIPE, text=True
        )
        calls = int(done.stdout.split()[-1])
        totals = re.search(r"^totals: (\d+)", out.read_text(), re.MULTILINE)
    if totals is None or int(totals[1]) == 0:
        raise SystemExit(f"instructions: callgrind counted nothing in {scenario} {size}")
    return int(totals[1]) / calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller large sizes")
    parser.add_argument("--json", action="store_true", help="the last line of stdout is one JSON object")
    args = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("instructions: valgrind is not installed, the gate was skipped", file=sys.stderr)
        if args.json:
            print(json.dumps({"ratios": {}, "counts": {}, "holds": None}))
        return 0
    binary = build()
    ratios: dict[str, float] = {}
    counts: dict[str, list[float]] = {}
    bad = []
    for name, (scenario, small, large, bound) in RATIOS.items():
        sizes = (small, QUICK[name] if args.quick else large)
        counts[name] = [count(binary, scenario, size) for size in sizes]
        ratios[name] = counts[name][1] / counts[name][0]
        verdict = "ok" if ratios[name] <= bound else "TOO MANY"
        if ratios[name] > bound:
            bad.append(name)
        print(
            f"instructions: {name}: {counts[name][0]:.0f} at {sizes[0]}, {counts[name][1]:.0f} at {sizes[1]}, "
            f"ratio {ratios[name]:.3f}, bound {bound}: {verdict}",
            file=sys.stderr,
        )
    if args.json:
        print(json.dumps({"ratios": ratios, "counts": counts, "holds": not bad}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
