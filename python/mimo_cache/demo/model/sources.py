"""Where the prompt tokens of turns came from, and what a source costs until the first token."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mimo_cache.runner import Sources

if TYPE_CHECKING:
    from .run import Served

REUSED = {
    "device": "L1, device",
    "host": "L2, host memory",
    "gcache_memory": "L3, GCache's memory",
    "gcache_disk": "L3, GCache's disk",
    "gcache_remote": "L3, object store",
}
"""Sources of reused tokens, the nearest first, in words."""
MOSTLY = 0.8
"""Share of a prompt that must be reused for a turn to count as one of its source."""


def counted(sources: Sources) -> dict[str, int]:
    """Tokens by source, those that were computed last."""
    found = asdict(sources)
    return {name: found[name] for name in (*REUSED, "computed")}


def total(turns: Iterable[Served]) -> dict[str, int]:
    """Tokens of all prompts by source."""
    sums = dict.fromkeys((*REUSED, "computed"), 0)
    for turn in turns:
        for name, tokens in counted(turn.sources).items():
            sums[name] += tokens
    return sums


def main_source(turn: Served) -> str | None:
    """The source of more than half of what a turn reused, where that was most of its prompt."""
    tokens = counted(turn.sources)
    computed = tokens.pop("computed")
    reused = turn.prompt - computed
    name = max(tokens, key=lambda source: tokens[source])
    return name if reused >= MOSTLY * turn.prompt and 2 * tokens[name] > reused else None


@dataclass(frozen=True, slots=True)
class Times:
    """Turns of one source: how many, and medians. prompt, computed: tokens; cached, plain: seconds to the first token
    with and without the cache."""

    turns: int
    prompt: float
    computed: float
    cached: float
    plain: float

    @classmethod
    def of(cls, turns: Sequence[Served]) -> Times:
        """Medians of at least one turn."""

        def median(values: Iterable[float]) -> float:
            return statistics.median(values)

        return cls(
            len(turns),
            median(t.prompt for t in turns),
            median(t.sources.computed for t in turns),
            median(t.cached for t in turns),
            median(t.plain for t in turns),
        )


def by_source(turns: Iterable[Served], again: bool = False) -> dict[str, Times]:
    """Times for each source that has turns. Only turns that arrived alone count: the others waited for one another.
    again: only questions asked again, of which nothing but the last page is computed, so that the sources' own cost is
    most of the time."""
    found: dict[str, list[Served]] = {}
    for turn in turns:
        source = main_source(turn)
        if source is not None and not turn.beside and (turn.kind == "retry" or not again):
            found.setdefault(source, []).append(turn)
    return {source: Times.of(found[source]) for source in REUSED if source in found}
