"""The cache's rules the slow way: matching token by token, and a mirror that only reads events.

Everything is written from the documents, not from the core, and meant to be read in a minute.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import mimo_cache
from key_vectors import chain
from mimo_cache import _core

Span = tuple[int, int, bytes]


@dataclass(frozen=True)
class Layout:
    """Sizes of a cache and of the engine on top of it."""

    page_size: int
    window: int
    n_mtp: int
    drafts: int
    full_pages: int
    swa_pages: int
    scratch_pages: int
    retention: str = "prompt_end+branch"
    policy: str = _core.DEFAULT_POLICY
    events: int = 4096
    ghosts: int = 16
    alphabet: int = 2
    """Token ids are below this; few, so that prefixes meet."""

    def make(self) -> mimo_cache.PrefixCache:
        return mimo_cache.PrefixCache.plain(
            page_size=self.page_size,
            window=self.window,
            n_mtp=self.n_mtp,
            full_pages=self.full_pages,
            swa_pages=self.swa_pages,
            scratch_pages=self.scratch_pages,
            retention=self.retention,
            policy=self.policy,
            events=self.events,
            ghosts=self.ghosts,
        )

    @property
    def quota(self) -> int:
        """SWA pages of one sequence's window."""
        return -(-(self.window + 2 * self.n_mtp + 1) // self.page_size) + 2


def match(full: Sequence[bool], swa: Sequence[bool], window: int, page_size: int) -> tuple[int, int]:
    """p and q by their definitions. `full[i]` and `swa[i]` say whether token i's KV is resident."""
    tokens = len(full)
    p = next((i for i in range(tokens) if not full[i]), tokens) // page_size * page_size
    resumable = [
        q for q in range(0, min(p, tokens - 1) + 1, page_size) if all(swa[i] for i in range(max(0, q - window), q))
    ]
    return p, max(resumable)


@dataclass
class Resident:
    """What lookups can find on one page."""

    parent: bytes = b""
    root: bytes = b""
    full: bool = False
    swa: bool = False
    window_safe: bool = False


@dataclass
class Mirror:
    """What a router that reads nothing but events believes to be cached."""

    number: int = 0
    pages: dict[bytes, Resident] = field(default_factory=dict)

    def fold(self, events: Iterable[mimo_cache.Event], lost: int) -> bool:
        """Takes events in; `False` after a gap, when only a snapshot helps."""
        if lost:
            return False
        for event in events:
            assert event.number == self.number + 1, "event numbers are consecutive"
            self.number = event.number
            self._apply(event)
        return True

    def _apply(self, event: mimo_cache.Event) -> None:
        keys = event.keys
        if event.kind == "cleared":
            assert event.root is not None
            assert not keys
            self.pages = {key: page for key, page in self.pages.items() if page.root != event.root}
            return
        assert keys, "an event names at least one page"
        parent = event.parent
        for key in keys:
            page = self.pages.setdefault(key, Resident())
            if event.group is not None:
                assert event.kind in ("stored", "removed")
                now = event.kind == "stored"
                assert getattr(page, event.group) != now, f"event {event.number} says what was said before"
                setattr(page, event.group, now)
            else:
                page.window_safe = event.kind == "window_safe"
            if event.kind == "stored":
                assert parent is not None
                assert event.root is not None
                page.parent, parent, page.root = parent, key, event.root

    def resync(self, snapshot: mimo_cache.Snapshot) -> None:
        """Starts again, as after a gap."""
        self.number = snapshot.number
        self.pages = {page.key: _resident(page) for page in snapshot.pages}

    def check(self, snapshot: mimo_cache.Snapshot) -> None:
        """The events, folded, are the snapshot. Without a full group that also names pages on the way with no KV."""
        assert self.number == snapshot.number
        ours = {key: page for key, page in self.pages.items() if page.full or page.swa}
        theirs = {page.key: _resident(page) for page in snapshot.pages if page.full or page.swa}
        assert ours == theirs


def _resident(page: mimo_cache.SnapshotPage) -> Resident:
    return Resident(page.parent, page.root, page.full, page.swa, page.window_safe)


def lookup(
    snapshot: mimo_cache.Snapshot,
    roots: Iterable[bytes],
    tokens: Sequence[int],
    spans: Iterable[Span],
    layout: Layout,
) -> tuple[int, int]:
    """What a lookup must find, from a dump of what is resident. `roots` are the candidates for the namespace's root.

    Without a full group p is the length of the tree's path, of which a dump shows only a lower bound.
    """
    resident = {page.key: page for page in snapshot.pages}
    parents = {page.parent for page in snapshot.pages}
    root = next((root for root in roots if root in parents), None)
    keys = [] if root is None else chain(root, list(tokens), list(spans), layout.page_size)
    pages = [resident.get(key) for key in keys]
    pages += [None] * (len(tokens) // layout.page_size + 1 - len(pages))
    path = max((i + 1 for i, page in enumerate(pages) if page is not None), default=0)
    here = [pages[i // layout.page_size] for i in range(len(tokens))]
    if layout.full_pages:
        full = [page is not None and page.full for page in here]
    else:
        full = [i < path * layout.page_size for i in range(len(tokens))]
    swa = [page is not None and page.swa for page in here]
    return match(full, swa, layout.window if layout.swa_pages else 0, layout.page_size)
