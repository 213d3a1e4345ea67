"""Clocks, and figures made of several runs.

Times are CPU time of this process, so that what else runs on a shared machine counts as little as possible; a run that
shares its caches with a neighbour is still slower, which is why every ratio is taken within one run of the bench.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

cpu_ns: Callable[[], int] = time.process_time_ns
"""CPU time of this process in nanoseconds."""


@dataclass(frozen=True)
class Figure:
    """One number of the report."""

    name: str
    unit: str
    median: float
    spread: float = 0.0
    """(largest - smallest) / median over the runs; 0 for a single run."""
    against: str | None = None
    """What `ratio` compares with."""
    ratio: float | None = None
    """median / the other's median."""

    def versus(self, other: float, name: str) -> Figure:
        """The same figure with a ratio."""
        return replace(self, against=name, ratio=self.median / other if other else None)

    def as_json(self) -> dict[str, object]:
        """The fields of `docs/cli.md`."""
        return {
            "name": self.name,
            "value": self.median,
            "unit": self.unit,
            "median": self.median,
            "spread": self.spread,
            "against": self.against,
            "ratio": self.ratio,
        }


def figure(name: str, unit: str, runs: Sequence[float]) -> Figure:
    """The median and the spread of some runs."""
    middle = statistics.median(runs)
    return Figure(name, unit, middle, (max(runs) - min(runs)) / middle if middle else 0.0)


def per_call_us(calls: int, function: Callable[[], object]) -> float:
    """Microseconds of CPU time per call, over `calls` calls."""
    repeat = range(calls)
    start = cpu_ns()
    for _ in repeat:
        function()
    return (cpu_ns() - start) / calls / 1e3


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def available_bytes() -> int:
    """Memory that this machine could still give."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def last_level_cache_bytes() -> int:
    """Size of the largest processor cache as the kernel reports it; 32 MiB when it does not."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * factor)
    return max(sizes, default=32 << 20)


def say(text: str) -> None:
    """Progress."""
    print(f"bench: {text}", file=sys.stderr, flush=True)
