"""A fake engine and its device. Pages hold canaries instead of KV: each row says exactly what it was computed from.

The engine does what a real one does and no more than the API allows. Pages are never cleared, so whatever a wrong table
points at is some other sequence's KV, as on a real device.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

import mimo_cache
from reference import Layout, Span

STALE = -1
"""An MTP row made with a token that nobody knew."""

HEADS = 3
ROW = np.dtype(
    [
        ("group", "u1"),  # 1 full, 2 swa
        ("namespace", "i4"),
        ("prefix", "u8"),  # stands for all tokens and spans up to the position
        ("position", "i8"),
        ("writer", "i8"),  # id of the sequence, for reading a failure
        ("mtp", "i8", (HEADS,)),  # the token after which head k made its row; SWA only
    ]
)
IDENTITY = ["group", "namespace", "prefix", "position"]
Rows = npt.NDArray[np.void]


@dataclass
class Story:
    """Tokens of one conversation and where they live."""

    tokens: list[int]
    spans: list[Span] = field(default_factory=list)
    key: int = 0
    weights: int = 0

    def cut(self, length: int) -> "Story":
        """The first `length` tokens; spans are cut with them."""
        spans = [(start, min(size, length - start), digest) for start, size, digest in self.spans if start < length]
        return Story(self.tokens[:length], spans, self.key, self.weights)

    def prefixes(self, namespace: int, guess: list[int]) -> list[int]:
        """One number for each position that stands for everything its KV depends on."""
        state, out = hash((namespace, 77)), []
        for position, token in enumerate(self.tokens + guess):
            inside = [
                (position - start, digest) for start, size, digest in self.spans if start <= position < start + size
            ]
            state = hash((state, token, *((at, digest[0]) for at, digest in inside)))
            out.append(state & 0xFFFF_FFFF_FFFF_FFFF)
        return out


@dataclass(eq=False)
class Track:
    """A sequence as the engine knows it."""

    seq: mimo_cache.Sequence
    story: Story
    namespace: int
    prompt: int
    store: bool
    committed: int
    full_from: int
    swa_from: int
    reserved: int = 0
    done: int = 0  # rows below this were computed, from known tokens and then from `guess`
    guess: list[int] = field(default_factory=list)
    settled: bool = False  # no copy is pending for its pages
    parked: bool = False

    @property
    def known(self) -> int:
        return len(self.story.tokens)

    def rows(self, group: int, start: int, end: int) -> Rows:
        """The rows that this sequence's model writes at positions [start, end) now."""
        tokens = np.array(self.story.tokens + self.guess + [STALE] * (HEADS + 1), np.int64)
        out: Rows = np.zeros(end - start, ROW)
        position = np.arange(start, end)
        out["group"], out["namespace"], out["writer"], out["position"] = group, self.namespace, self.seq.id, position
        out["prefix"] = np.array(self.story.prefixes(self.namespace, self.guess)[start:end], np.uint64)
        if group == 2:
            ahead = position[:, None] + np.arange(1, HEADS + 1)
            out["mtp"] = tokens[np.minimum(ahead, len(tokens) - 1)]
        return out

    def learn(self, tokens: list[int]) -> None:
        """Tokens became known; rows of drafts that were right stay, what follows a wrong one is garbage."""
        right = _agree(tokens, self.guess)
        if right == len(tokens):
            del self.guess[:right]
        else:
            self.done = min(self.done, self.known + right)
            self.guess.clear()
        self.story.tokens += tokens


def _agree(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


class Engine:
    """Runs sequences of one cache on the fake device, and checks every page it is handed."""

    def __init__(self, layout: Layout, cache: mimo_cache.PrefixCache) -> None:
        self.layout = layout
        self.cache = cache
        size = layout.page_size
        self.full: Rows = np.zeros((layout.full_pages + 1, size), ROW)
        self.swa: Rows = np.zeros((layout.swa_pages + 1, size), ROW)
        self.tracks: list[Track] = []
        self.next_step = 1
        self.running: list[tuple[int, set[tuple[str, int]]]] = []
        self.moves: dict[int, set[tuple[str, int]]] = {}
        self.held: set[tuple[int, int, str, int]] = set()
        self.refusals: list[mimo_cache.OutOfPages] = []

    # Steps

    def step(self, tracks: list[Track], *, chunk: int, accept: int, seed: int, compact: bool, many: bool) -> None:
        """One model step: chunks for those in prefill, drafts for those in decode; left running."""
        for track in tracks:
            left = track.known - track.committed
            want = min(chunk, left) if left > 1 else left + self.layout.drafts
            self.reserve(track, max(0, want - track.reserved))
        ready = [track for track in tracks if track.reserved]
        self.fill(ready, seed, compact)
        commits = []
        for track in ready:
            sampled = track.committed + track.reserved >= track.known and track.known < self.longest
            fresh = [(seed + track.known) % self.layout.alphabet] if sampled else []
            tokens = track.guess[: accept if sampled else 0] + fresh
            commits.append((track, self.computable(track, tokens), tokens))
        self.commit(commits, many)
        for track in ready:
            self.trim(track)

    @property
    def longest(self) -> int:
        return 10 * self.layout.page_size + 2 * self.layout.window + 12

    def reserve(self, track: Track, n: int) -> bool:
        """Reserves `n` slots, or as many as there are after retiring what runs."""
        for attempt in range(2):
            try:
                most = track.seq.reservable()
                track.seq.reserve(n)
                assert n <= most
                track.reserved += n
                return True
            except mimo_cache.OutOfPages as short:
                self.refusals.append(short)
                assert n > most
                if attempt == 0:
                    while self.running:
                        self.retire()
                n = min(n, track.seq.reservable())
        return False

    def trim(self, track: Track) -> None:
        assert track.seq.trim() == track.reserved
        track.reserved, track.done = 0, track.committed
        track.guess.clear()

    def fill(self, tracks: list[Track], seed: int, compact: bool) -> None:
        """Starts a step, runs its plan, checks what it reads and writes the rows it computes."""
        self.check_ownership()
        layout, count = self.layout, len(tracks)
        ends = [track.committed + track.reserved for track in tracks]
        pages = max((self.pages(end) for end in ends), default=0)
        slots = max((track.reserved for track in tracks), default=0)
        narrow = self.cache.swa_width(slots)
        full = np.full((count, pages), -7, np.int32) if layout.full_pages else None
        swa = np.full((count, narrow if compact else pages), -7, np.int32) if layout.swa_pages else None
        base = np.full(count, -7, np.int32) if compact else None
        lens = np.full(count, -7, np.int32)
        plan = self.cache.fill(self.next_step, [track.seq for track in tracks], full, swa, base, lens)
        touched = self.execute(plan)
        assert lens.tolist() == ends
        for row, track in enumerate(tracks):
            full_table = self.full_table(track)
            swa_table = self.swa_table(track)
            if full is not None:
                ids = full[row].tolist()
                assert ids == [full_table.get(page, 0) for page in range(pages)]
                touched |= {("full", page) for page in ids if page}
            if swa is not None:
                first = int(base[row]) if base is not None else 0
                low = max(0, track.committed - layout.window) // layout.page_size
                assert first == (low if compact else 0)
                ids = swa[row].tolist()
                assert ids == [swa_table.get(p, 0) if p >= low else 0 for p in range(first, first + len(ids))]
                assert all(ids[p - first] for p in range(low, self.pages(ends[row]))), "a hole inside the window"
                touched |= {("swa", page) for page in ids if page}
            self.verify(track)
            self.compute(track, ends[row], full_table, swa_table, seed)
        self.running.append((self.next_step, touched))
        self.next_step += 1

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.layout.page_size)

    def full_table(self, track: Track) -> dict[int, int]:
        return dict(enumerate(track.seq.full_table().tolist())) if self.layout.full_pages else {}

    def swa_table(self, track: Track) -> dict[int, int]:
        if not self.layout.swa_pages:
            return {}
        first, ids = track.seq.swa_table()
        return dict(enumerate(ids.tolist(), first))

    def execute(self, plan: mimo_cache.Plan) -> set[tuple[str, int]]:
        """Runs copies and rebuilds; the pages they touch."""
        touched: set[tuple[str, int]] = set()
        for group, src, dst in plan.copies:
            assert 0 not in (src, dst)
            assert src != dst
            assert not self.busy((group, dst)), f"{group} page {dst} is copied to while in use"
            rows = self.full if group == "full" else self.swa
            rows[dst] = rows[src]
            touched |= {(group, src), (group, dst)}
        by_id = {track.seq.id: track for track in self.tracks}
        for number, page, start, end in plan.rebuilds:
            track, at = by_id[number], np.arange(start, end) % self.layout.page_size
            want = track.rows(2, start, end)
            assert start < end <= track.committed
            # The hidden states that rows are rebuilt from lie in the same page and must be the reader's own.
            assert (self.swa[page, at][IDENTITY] == want[IDENTITY]).all(), (
                f"a rebuild from others' states: {plan.rebuilds}"
            )
            self.swa[page, at] = want
            touched.add(("swa", page))
        for track in self.tracks:
            track.settled = True
        return touched

    def compute(self, track: Track, end: int, full: dict[int, int], swa: dict[int, int], seed: int) -> None:
        while track.known + len(track.guess) < end:
            track.guess.append((seed * 7 + track.known + len(track.guess)) % self.layout.alphabet)
        for group, pool, table, first in ((1, self.full, full, track.full_from), (2, self.swa, swa, track.swa_from)):
            start = max(first, track.done)
            if table and start < end:
                self.write(pool, table, track.rows(group, start, end))
        track.done = end

    def write(self, pool: Rows, table: dict[int, int], rows: Rows) -> None:
        size = self.layout.page_size
        for row in rows:
            page = table[int(row["position"]) // size]
            assert page != 0, "the null page was handed out for writing"
            pool[page, int(row["position"]) % size] = row

    # Checks

    def verify(self, track: Track) -> None:
        """Every committed row that the next step reads is this sequence's own KV."""
        if not track.settled or track.parked:
            return
        # Full KV up to p is the tree's; tables show it as soon as slots reach there.
        self._verify(track, 1, 0, min(max(track.committed, track.full_from), track.committed + track.reserved))
        self._verify(track, 2, max(0, track.committed - self.layout.window), track.committed)

    def _verify(self, track: Track, group: int, low: int, high: int) -> None:
        pool, table = (self.full, self.full_table(track)) if group == 1 else (self.swa, self.swa_table(track))
        if len(pool) == 1 or low >= high:
            return
        position = np.arange(low, high)
        pages = np.array([table[int(page)] for page in position // self.layout.page_size])
        found, want = pool[pages, position % self.layout.page_size], track.rows(group, low, high)
        wrong = found[IDENTITY] != want[IDENTITY]
        if group == 2 and self.layout.n_mtp:
            ahead = position[:, None] + np.arange(1, HEADS + 1)
            counts = (ahead < track.known) & (np.arange(HEADS) < self.layout.n_mtp)
            wrong |= ((found["mtp"] != want["mtp"]) & counts).any(axis=1)
        if wrong.any():
            at = int(np.argmax(wrong))
            raise AssertionError(f"{track.seq} was handed page {pages[at]} with {found[at]}, not {want[at]}")

    def busy(self, page: tuple[str, int]) -> bool:
        """A running step or an unfinished move may touch this page."""
        return any(page in touched for _, touched in self.running) or any(page in t for t in self.moves.values())

    def check_ownership(self) -> None:
        """Pages that will be written belong to one sequence alone, and no running step touched them when handed out."""
        held: set[tuple[int, int, str, int]] = set()
        owners: dict[tuple[str, int], int] = {}
        for track in self.tracks:
            if not track.parked:
                for group, table in (("full", self.full_table(track)), ("swa", self.swa_table(track))):
                    held |= {(track.seq.id, logical, group, page) for logical, page in table.items()}
        for _, _, group, page in held:
            assert page != 0
            owners[group, page] = owners.get((group, page), 0) + 1
        by_id = {track.seq.id: track for track in self.tracks}
        for place in held:
            number, logical, group, page = place
            track = by_id[number]
            final = max(track.committed, track.full_from) if group == "full" else track.committed
            if (logical + 1) * self.layout.page_size <= final:
                continue
            assert owners[group, page] == 1, f"{group} page {page}, which {track.seq} will write, is held by others too"
            assert place in self.held or not self.busy((group, page)), (
                f"{group} page {page} was handed out while in use"
            )
        self.held = held

    # Commits

    def computable(self, track: Track, tokens: list[int]) -> int:
        """Rows that are final once `tokens` are known."""
        valid = min(track.done, track.known + _agree(tokens, track.guess))
        return min(max(0, valid - track.committed), track.reserved)

    def commit(self, commits: list[tuple[Track, int, list[int]]], many: bool) -> None:
        for track, computed, tokens in commits:
            track.learn(tokens)
            self.renew_mtp(track, track.committed - self.layout.n_mtp, track.committed + computed)
        if many:
            seqs = [track.seq for track, _, _ in commits]
            self.cache.commit_many(seqs, [n for _, n, _ in commits], [tokens for _, _, tokens in commits])
        else:
            for track, computed, tokens in commits:
                track.seq.commit(computed, np.array(tokens, np.int64))
        for track, computed, _ in commits:
            track.committed += computed
            track.reserved -= computed
            track.done = max(track.done, track.committed)

    def renew_mtp(self, track: Track, start: int, end: int) -> None:
        """MTP heads make the rows of [start, end) again with the tokens that became known, as real ones do."""
        table, size = self.swa_table(track), self.layout.page_size
        if not table or not self.layout.n_mtp:
            return
        start = max(start, min(max(0, track.swa_from - self.layout.window), end), min(table) * size)
        others = {
            page
            for other in self.tracks
            if other is not track and not other.parked
            for page in self.swa_table(other).values()
        }
        for row in track.rows(2, start, end) if start < end else ():
            page, at = table[int(row["position"]) // size], int(row["position"]) % size
            heads = max(0, min(self.layout.n_mtp, track.known - int(row["position"]) - 1))
            if page in others or self.cache.mtp_record(page) is not None:
                # Read by others too: never written again, and right as far as tokens are known.
                assert (self.swa[page, at]["mtp"][:heads] == row["mtp"][:heads]).all(), "a shared page has a stale row"
            else:
                self.swa[page, at] = row

    def retire(self) -> None:
        if self.running:
            step, _ = self.running.pop(0)
            self.cache.retire(step)

    def drop(self, track: Track) -> None:
        self.tracks.remove(track)
