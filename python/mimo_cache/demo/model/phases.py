"""The story of a run with a cluster, in four phases: sessions, both upper tiers dropped, a node killed, and restarted.

`Story` owns the engine of now. Between two phases it closes that engine, whose device and host memory are gone then,
and makes an empty one of the same weights on the same nodes. Every number in a sentence comes from a counter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from mimo_cache import Stats
from mimo_cache.runner import LLM, Tally
from mimo_cache.runner.lane import Lane

from .cluster import MIB, Cluster
from .compare import MtpRows
from .scenario import Turn

TITLES = {
    "sessions": "Sessions on three tiers",
    "dropped": "L1 and L2 dropped",
    "killed": "A node killed with -9",
    "restarted": "The node started again",
}
SHARES = (0.45, 0.7, 0.83)
"""Of all turns, after which the second, third and fourth phase begin."""
PATIENCE = 20.0
"""Seconds that an engine waits before it is closed, for nodes to take what waits to be written."""


def stops(turns: int) -> tuple[int, ...]:
    """Turns after which a phase begins, each phase one turn at least, as far as there are turns."""
    found: list[int] = []
    for i, share in enumerate(SHARES):
        least, most = (found[-1] if found else 0) + 1, turns - len(SHARES) + i
        found.append(max(least, min(round(share * turns), most)))
    return tuple(stop for stop in found if stop < turns)


@dataclass(slots=True)
class Phase:
    """One phase. first: number of its first turn, from 1. before: what was done, in sentences. misses: GCache's, by
    cause, in prefetches and objects; failed: objects that could not be written; left: prefixes that waited to be
    written when the engine was closed."""

    name: str
    first: int
    before: list[str] = field(default_factory=list)
    misses: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    left: int = 0

    @property
    def title(self) -> str:
        """In words."""
        return TITLES[self.name]


@dataclass(slots=True)
class Books:
    """Sums over the engines of a run. copying: seconds that copy threads spent on bringing pages up; stats: of the last
    engine's cache."""

    tally: Tally = field(default_factory=Tally)
    full_evicted: int = 0
    checkpoints_evicted: int = 0
    copying: float = 0.0
    gcache: Counter[str] = field(default_factory=Counter)
    stats: Stats | None = None

    def add(self, llm: LLM) -> None:
        """An engine has ended."""
        for one in fields(Tally):
            setattr(self.tally, one.name, getattr(self.tally, one.name) + getattr(llm.engine.tally, one.name))
        self.stats = llm.cache.stats()
        self.full_evicted += self.stats.full_evicted
        self.checkpoints_evicted += self.stats.checkpoints_evicted
        self.copying += llm.tier.watch.read()["copied"] if llm.tier is not None else 0.0
        if llm.remote is not None:
            self.gcache.update({k: v for k, v in llm.remote.stats().items() if isinstance(v, int)})


class Story:
    """The phases of a run, and the engine that serves now. Without a cluster there is one phase and one engine."""

    def __init__(self, make: Callable[[], LLM], cluster: Cluster | None, turns: int) -> None:
        self.make, self.cluster, self.turns = make, cluster, turns
        self.stops: Sequence[int] = stops(turns) if cluster is not None else ()
        self.books, self.phases = Books(), [Phase("sessions", 1)]
        self.killed: tuple[str, int, int] | None = None
        self._dead: str | None = None
        self.llm = make()
        self.rows = MtpRows(self.llm.engine)
        if cluster is not None:
            self.phases[0].before.append(_beginning(cluster, self.llm))

    @property
    def first_phase(self) -> int:
        """Turns of the first phase."""
        return self.stops[0] if self.stops else self.turns

    def wave(self, done: int, wave: Sequence[Turn]) -> None:
        """Turns begin after `done` others: begins the phase that is due, and kills a node while they are computed where
        its phase comes after them."""
        if self.cluster is None:
            return
        if done in self.stops:
            self._next(self.cluster, done)
        self._dead = self.cluster.killed.name if self.cluster.killed is not None else None
        if len(self.stops) > 1 and done + len(wave) == self.stops[1]:
            # Of a session that asks again whatever happens: of a wave that is the one with the highest number.
            last = max(range(len(wave)), key=lambda i: wave[i].session.number)
            self._kill_in_a_step(self.cluster, wave[last].prompt, done + last + 1)

    def end(self) -> tuple[int, int]:
        """Ends the engine. Returns the tokens whose full KV its device and host memory had."""
        llm = self.llm
        llm.cache.check_integrity()
        if llm.tier is not None and llm.remote is not None:
            llm.tier.drain()
            llm.remote.writer.flush(PATIENCE)
            llm.tier.check_integrity()
            stats = llm.remote.stats()
            self.phases[-1].misses.update({cause: n for cause, n in stats["misses"].items() if n})
            self.phases[-1].failed, self.phases[-1].left = stats["pages_failed"], stats["writes_queued"]
        self.books.add(llm)
        had = _held(llm)
        self.close()
        return had

    def close(self) -> None:
        """Ends the engine's threads and connections, also in the middle of a phase."""
        self.llm.close()
        if self.llm.tier is not None:
            self.llm.tier.close()

    def missing(self, prompt: list[int], start: int, end: int) -> bool:
        """Whether a node that was dead when the turn began owns a page of tokens [start, end) of its prompt."""
        page = self.llm.geometry.page_size
        return self._dead is not None and self._dead in self._owners(prompt, start // page, end // page)

    def _next(self, cluster: Cluster, done: int) -> None:
        name = tuple(TITLES)[1 + self.stops.index(done)]
        device, host = self.end()
        phase = Phase(name, done + 1)
        if name == "killed":
            assert self.killed is not None
            node, process, turn = self.killed
            phase.before.append(f"{node} (process {process}) was killed with -9 while turn {turn} was being computed.")
        elif name == "restarted":
            phase.before.append(_restarted(cluster))
        phase.before.append(
            f"The engine was closed, and with it L1 and L2: KV of {device:,} tokens on the device and of {host:,} "
            "in host memory. A new one of the same weights began empty on the same nodes."
        )
        if name != "killed":
            held = cluster.holdings().values()
            memory, disk = sum(h.memory for h in held), sum(h.disk for h in held)
            phase.before.append(f"GCache had {memory:,} objects in memory and {disk:,} on disk.")
        phase.before.append(
            "First, sessions that had been served asked their last question again, as far as there were turns for it."
        )
        self.phases.append(phase)
        self.llm = self.make()
        self.rows = MtpRows(self.llm.engine)

    def _kill_in_a_step(self, cluster: Cluster, prompt: list[int], turn: int) -> None:
        """When the next step of this prompt has computed its rows, kills a node without which it is not whole: of those
        that own pages of it the one whose first page comes last, so that what is before can still be had."""
        engine = self.llm.engine
        seen = engine.on_rows
        assert seen is not None

        def kill(lane: Lane, work: Any) -> None:
            if lane.ids[: lane.prompt].tolist() != prompt:
                seen(lane, work)
                return
            engine.on_rows = seen
            owners = self._owners(prompt, 0, (len(prompt) - 1) // self.llm.geometry.page_size)
            name = max(owners, key=owners.index)
            self.killed = (name, cluster.kill(name), turn)
            seen(lane, work)

        engine.on_rows = kill

    def _owners(self, prompt: list[int], start: int, end: int) -> list[str]:
        """Names of the nodes that own the pages [start, end) of a prompt."""
        remote = self.llm.remote
        assert remote is not None
        extents = remote.objects.extents(remote.host.planner.names(prompt), start, end)
        return [remote.client.locate(extent) for extent in extents]


def _beginning(cluster: Cluster, llm: LLM) -> str:
    assert llm.tier is not None
    page, sizes = llm.geometry.page_size, cluster.sizes
    host = llm.tier.planner.host_stats().full.total * page
    return (
        f"{len(cluster.nodes)} GCache nodes were started, each with {sizes.memory / MIB:g} MiB of memory and "
        f"{sizes.disk / MIB:g} MiB of disk; above them host memory for KV of {host:,} tokens, and device pools for "
        f"{llm.cache.stats().full.total * page:,}."
    )


def _restarted(cluster: Cluster) -> str:
    node = cluster.restart()
    return (
        f"{node.name} was started again (process {node.process.pid}) and found {node.objects:,} values in its memory "
        "file, and what is on its disk."
    )


def _held(llm: LLM) -> tuple[int, int]:
    """Tokens whose full KV an engine's device and host memory have."""
    page, tier = llm.geometry.page_size, llm.tier
    below = tier.planner.host_stats().full.cached if tier is not None else 0
    return llm.cache.stats().full.cached * page, below * page
