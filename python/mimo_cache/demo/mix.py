"""The demo's whole workload: the shipped traces and sessions over CPython's own text, mixed.

Everything is a function of the seed and, for the text, of the running interpreter.
"""

from __future__ import annotations

import numpy as np

from . import text, trace
from .workload import Session


def build(seed: int, scale: float, max_output: int = 160) -> list[Session]:
    """All sessions in order of arrival. `scale` is the share of the sessions that is kept, above 0 and at most 1."""
    rng = np.random.default_rng(seed)
    sessions: list[Session] = []
    for name in ("claude_code", "tau_airline"):
        sessions += thin(trace.sessions(name, max_output, rng), scale)
    sessions += thin(text.sessions(40, rng, max_output), scale)
    sessions.sort(key=lambda s: s.start)
    return sessions


def thin(sessions: list[Session], scale: float) -> list[Session]:
    """Keeps an even share of the sessions, at least two."""
    keep = min(len(sessions), max(2, round(len(sessions) * scale)))
    picked = np.linspace(0, len(sessions) - 1, keep).round().astype(int)
    return [sessions[i] for i in picked]
