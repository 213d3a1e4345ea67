"""What must hold besides the canaries: the event stream, and the books at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import PrefixCache
from .engine import Tally


class Mirror:
    """What a router that only sees the events believes to be cached."""

    def __init__(self) -> None:
        self.pages: dict[str, set[bytes]] = {"full": set(), "swa": set()}
        self.safe: set[bytes] = set()
        self.events = 0
        self.lost = 0

    def apply(self, events: Iterable[Any], lost: int) -> None:
        """Takes drained events in order."""
        self.lost += lost
        for event in events:
            self.events += 1
            if event.kind == "stored":
                self.pages[event.group].update(event.keys)
            elif event.kind == "removed":
                self.pages[event.group].difference_update(event.keys)
            elif event.kind == "window_safe":
                self.safe.update(event.keys)
            elif event.kind == "window_unsafe":
                self.safe.difference_update(event.keys)

    def differences(self, snapshot: Any) -> list[str]:
        """How the belief differs from the cache's own list; nothing when events were lost, which is announced."""
        if self.lost:
            return [f"{self.lost} events were lost though the ring was drained in time"]
        out = []
        for name, believed, listed in (
            ("full pages", self.pages["full"], {p.key for p in snapshot.pages if p.full}),
            ("SWA pages", self.pages["swa"], {p.key for p in snapshot.pages if p.swa}),
            ("window-safe boundaries", self.safe, {p.key for p in snapshot.pages if p.window_safe}),
        ):
            if believed != listed:
                more, less = len(believed - listed), len(listed - believed)
                out.append(f"events and snapshot differ in {name}: {more} too many and {less} missing of {len(listed)}")
        return out


def books(cache: PrefixCache, tally: Tally) -> list[str]:
    """What does not add up once every sequence has ended and every step has retired."""
    stats, out = cache.stats(), []
    for name, pool in (("full", stats.full), ("swa", stats.swa)):
        held = {k: getattr(pool, k) for k in ("private", "leased", "quarantined", "promised")}
        if any(held.values()) or pool.free + pool.cached != pool.total:
            out.append(f"{name} pool at the end: {pool.free} free and {pool.cached} cached of {pool.total}, {held}")
    if stats.open_sequences or stats.parked_sequences:
        out.append(f"{stats.open_sequences} open and {stats.parked_sequences} parked sequences at the end")
    for name, theirs, ours in (
        ("prompt tokens", stats.prompt_tokens, tally.prompt + tally.resumed),
        ("hit tokens", stats.hit_tokens, tally.hits + tally.resumed_hits),
    ):
        if theirs != ours:
            out.append(f"the cache counts {theirs} {name}, the engine {ours}")
    if tally.prompt != tally.hits + sum(tally.misses.values()):
        out.append(f"{tally.prompt} prompt tokens, but {tally.hits} hits and misses {dict(tally.misses)}")
    return out
