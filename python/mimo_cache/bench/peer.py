"""The other side of every ratio: the peer measured beside us, or figures that were recorded before."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import Any

from mimo_cache.bench import source
from mimo_cache.bench.timing import say

NAME = "SGLang 0.5.23"

RECORDED: dict[str, dict[str, float]] = {
    # Quiet machine, which is the faster of two recordings (130 and 167 us a turn): the harder one to beat.
    "a": {"match": 45, "path": 16, "lock": 7, "insert": 58, "unlock": 5, "turn": 130, "bytes_per_token": 20},
    "b": {"match_1": 42, "match_13": 49, "match_196": 152, "path_1": 16, "path_13": 19, "path_196": 61},
    # Eviction took 159 to 299 us on average, allocation about 40.
    "c": {"evict": 159, "alloc": 40, "evict_and_alloc": 199},
    "d": {"evict_1000": 21, "evict_10000": 64, "evict_100000": 800},
    "memory": {"bytes_per_token": 20},
    "hit_rate": {"1.6 %": 0.35, "2.5 %": 0.58, "4.9 %": 0.83},
}
"""Recorded on a two-core machine without GPU, in the same scenarios, microseconds of CPU time per call."""


@dataclass
class Peer:
    """Collects the peer's runs, which are made between ours so that both sides meet the same machine."""

    enabled: bool
    scale: float
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def run(self, scenario: str) -> None:
        """One run in a fresh process; nothing when the peer is not there."""
        if not self.enabled:
            return
        answer = source.peer(scenario, self.scale)
        if answer:
            self.runs.setdefault(scenario, []).append(answer)
        else:
            say(f"{NAME} does not run here, its recorded figures are used (benches/README.md)")
            self.enabled = False

    def value(self, scenario: str, key: str) -> tuple[float, str]:
        """Median over the runs and who it is, or the recorded figure and that it is one."""
        runs = self.runs.get(scenario)
        if runs:
            values = [run[key]["usable"] if isinstance(run[key], dict) else run[key] for run in runs]
            return median(values), f"{NAME}, measured in this run"
        return RECORDED[scenario][key], f"{NAME}, recorded figure"
