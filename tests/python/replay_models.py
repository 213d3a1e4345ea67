"""Caches as a few slow lines, to hold replays and the optimum against: no runs, no nodes, every page looked at.

A page is the path of choices from the root to it; its parent is one shorter. A prompt is the path of its last page.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Page = tuple[int, ...]


def path_of(prompt: Page) -> list[Page]:
    """The pages of a prompt, the root's child first."""
    return [prompt[: n + 1] for n in range(len(prompt))]


def write(path: Path, prompts: Iterable[Page], block: int = 64, times: Iterable[int] | None = None) -> Path:
    """A trace of these prompts; every different prefix gets an id of its own."""
    ids: dict[Page, int] = {}
    lines = [json.dumps({"block_size": block})]
    when = iter(times) if times is not None else None
    for t, prompt in enumerate(prompts):
        runs: list[list[int]] = []
        for page in path_of(prompt):
            name = ids.setdefault(page, len(ids))
            if runs and sum(runs[-1]) == name:
                runs[-1][1] += 1
            else:
                runs.append([name, 1])
        at = t if when is None else next(when)
        lines.append(json.dumps({"t": at, "s": -1, "i": len(prompt) * block + 7, "o": 1, "h": runs}))
    path.write_text("\n".join(lines) + "\n")
    return path


def some_prompts(rng: random.Random, count: int, longest: int) -> list[Page]:
    """Prompts that walk a random tree."""
    return [tuple(rng.choices((0, 1, 2), (8, 1, 1), k=rng.randrange(longest))) for _ in range(count)]


def conversations(rng: random.Random, count: int) -> list[Page]:
    """Sessions that share system prompts, grow by turns, and sometimes go back and branch."""
    fresh = iter(range(1000, 1_000_000))
    living: list[Page] = []
    out: list[Page] = []
    for _ in range(count):
        if len(living) < 4 or rng.random() < 0.1:
            system = rng.randrange(3)
            prompt: Page = (system, *[7] * (11 + 5 * system))
        else:
            # The newest sessions talk most.
            prompt = living.pop(-1 - min(rng.randrange(len(living)), rng.randrange(len(living))))
            if rng.random() < 0.12:
                prompt = prompt[: rng.randrange(len(prompt) // 2, len(prompt) + 1)]
        prompt = (*prompt, *[next(fresh) for _ in range(rng.randrange(1, 10))])
        out.append(prompt)
        if len(prompt) < 90:
            living.append(prompt)
    return out


def endless(prompts: Iterable[Page]) -> int:
    """Pages hit by a cache that keeps every layer of everything."""
    seen: set[Page] = set()
    hits = 0
    for prompt in prompts:
        path = path_of(prompt)
        hits += sum(page in seen for page in path)
        seen.update(path)
    return hits


def belady(prompts: list[Page], capacity: int) -> int:
    """Pages hit when what is used again last goes first, the deepest of equals, and what is never used is not kept."""
    cached: set[Page] = set()
    hits = 0
    for now, prompt in enumerate(prompts):
        path = path_of(prompt)
        hits += sum(page in cached for page in path)
        later = prompts[now + 1 :]

        def next_use(page: Page, later: list[Page] = later) -> int:
            return next((t for t, other in enumerate(later) if other[: len(page)] == page), len(later))

        kept = sorted(cached.union(path), key=lambda page: (next_use(page), len(page)))
        cached = {page for page in kept[:capacity] if next_use(page) < len(later)}
        if any(page[:-1] not in cached for page in cached if len(page) > 1):
            raise AssertionError("what Belady keeps is not prefix-closed")
    return hits


def leaf_first_lru(prompts: list[Page], capacity: int) -> int:
    """Pages hit by LRU over leaves. A prompt that is too long keeps its head."""
    used: dict[Page, int] = {}
    hits = 0
    for now, prompt in enumerate(prompts):
        path = path_of(prompt[:capacity])
        hit = sum(page in used for page in path)
        hits += hit
        used.update(dict.fromkeys(path[:hit], now))
        while len(used) > capacity - (len(path) - hit):
            parents = {page[:-1] for page in used}
            del used[min((page for page in used if page not in parents), key=lambda page: used[page])]
        used.update(dict.fromkeys(path, now))
    return hits


ONE_POOL: dict[str, Callable[[list[Page], int], int]] = {"lru": leaf_first_lru}
"""Slow caches of one pool by the name of the policy that they are: (prompts, pages) to pages hit, exactly."""


@dataclass(frozen=True)
class Rules:
    """A retention, as pages."""

    branch: bool = False
    sup: int = 0
    stride: int = 0
    dense: int = 0
    dense_until: int = 0
    seq_end: bool = False

    def text(self, page: int) -> str:
        """The words that the cache reads."""
        parts = ["prompt_end"]
        parts += ["branch"] * self.branch + ["seq_end"] * self.seq_end
        parts += [f"sup{self.sup}"] * bool(self.sup) + [f"stride{self.stride * page}"] * bool(self.stride)
        parts += [f"dense{self.dense * page}:{self.dense_until * page}"] * bool(self.dense)
        return "+".join(parts)


@dataclass
class Kept:
    """A checkpoint."""

    ends: bool
    """Kept as the end of a prompt (or of a sequence, which in a replay is the same boundary)."""
    other: bool
    """Kept for another reason."""
    matched: bool = False
    used: int = 0


@dataclass
class Hybrid:
    """A hybrid cache with two pools, leaf-first LRU over full pages and LRU over checkpoints."""

    rules: Rules
    need: int
    """Pages of a window."""
    full_pages: float = float("inf")
    swa_pages: float = float("inf")
    used: dict[Page, int] = field(default_factory=dict)
    kept: dict[Page, Kept] = field(default_factory=dict)
    now: int = 0

    def window(self, end: Page) -> list[Page]:
        """The pages before the boundary at the end of a page."""
        return path_of(end)[-self.need :] if self.need else []

    def swa(self) -> set[Page]:
        """Pages with SWA KV."""
        return {page for end in self.kept for page in self.window(end)}

    def lookup(self, path: list[Page]) -> tuple[int, int]:
        """p and q, in pages."""
        p = next((n for n, page in enumerate(path) if page not in self.used), len(path))
        swa = self.swa()
        q = max(n for n in range(p + 1) if swa.issuperset(path[max(0, n - self.need) : n]))
        return p, q

    def serve(self, prompt: Page) -> tuple[int, int]:
        """One request; returns p and q."""
        self.now += 1
        path = path_of(prompt)
        p, q = self.lookup(path)
        if q and path[q - 1] in self.kept:
            self.kept[path[q - 1]].matched = True
            self.kept[path[q - 1]].used = self.now
        self.used.update(dict.fromkeys(path[:p], self.now))
        self._make_room(len(path) - p)
        self.used.update(dict.fromkeys(path, self.now))
        if q and q == len(path):
            self._keep(path, q, ends=True)
        for end in range(q + 1, len(path) + 1):
            other = self._other(end) or (self.rules.branch and p > q and end == p)
            if other or end == len(path):
                self._keep(path, end, ends=end == len(path), other=other)
        return p, q

    def _other(self, end: int) -> bool:
        r = self.rules
        return bool(r.stride and end % r.stride == 0) or bool(r.dense and end % r.dense == 0 and end <= r.dense_until)

    def _keep(self, path: list[Page], end: int, ends: bool, other: bool = False) -> None:
        if not self.need:
            return
        page = path[end - 1]
        if page not in self.kept:
            while len(self.swa().union(self.window(page))) > self.swa_pages and self.kept:
                del self.kept[min(self.kept, key=lambda c: self.kept[c].used)]
            self.kept[page] = Kept(ends=False, other=False)
        kept = self.kept[page]
        kept.ends, kept.other, kept.used = kept.ends or ends, kept.other or other, self.now
        if ends and self.rules.sup:
            self._supersede(path, end)

    def _supersede(self, path: list[Page], end: int) -> None:
        """Of the ends above, those beyond the newest n go once they were matched, unless two edges leave there."""
        above = [page for page in reversed(path[:end]) if page in self.kept and self.kept[page].ends]
        for page in above[self.rules.sup :]:
            if not self.kept[page].matched or self._edges(page) > 1:
                continue
            self.kept[page].ends = False
            if not self.kept[page].other:
                del self.kept[page]

    def _edges(self, page: Page) -> int:
        return len({other[len(page)] for other in self.used if len(other) > len(page) and other[: len(page)] == page})

    def _make_room(self, more: int) -> None:
        while len(self.used) + more > self.full_pages:
            parents = {page[:-1] for page in self.used}
            leaves = [page for page in self.used if page not in parents and self.used[page] < self.now]
            # What no checkpoint makes resumable goes first.
            gone = min(leaves, key=lambda page: (page in self.kept, self.used[page]))
            del self.used[gone]
            self.kept.pop(gone, None)


def hit_pages(result: dict[str, Any], page: int = 64) -> int:
    """Pages hit by a replay."""
    pages, rest = divmod(result["hit_tokens"], page)
    if rest:
        raise AssertionError("hits are whole pages")
    return int(pages)
