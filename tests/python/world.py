"""What the state machine chooses from, and what lookups must find: the parts of it that are no operations."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

import mimo_cache
from engine import Engine, Story, Track
from key_vectors import root_key
from mimo_cache import _core
from reference import Layout, lookup

SALTS = (b"", b"s", b"other")
WEIGHTS = (b"", b"w1")
RETENTION = (
    "prompt_end+branch",
    "prompt_end",
    "prompt_end+branch+seq_end",
    "branch+seq_end+sup1",
    "branch+stride4+sup2",
    "branch+seq_end+dense2:16+stride8+sup1",
)
SMALL = st.integers(0, 255)
PROMPT = st.tuples(SMALL, SMALL, SMALL, st.integers(0, 31))
Prompt = tuple[int, int, int, int]
"""Which old story it begins like, how much of it, the tail that follows, and flags for key and span."""


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """The sweep: page 1 to 4, W 0 to 8, 0 to 3 MTP heads, one group or both, pools from tiny to roomy."""
    groups = draw(st.sampled_from(["both", "both", "both", "full", "swa"]))
    has_swa = groups != "full"
    sizes: dict[str, Any] = {
        "page_size": draw(st.sampled_from([1, 2, 4])),
        "window": draw(st.integers(0, 8)),
        "n_mtp": draw(st.integers(0, 3)) if has_swa else 0,
    }
    scratch = draw(st.sampled_from([0, 1, 4, 8])) if has_swa else 0
    probe = Layout(**sizes, drafts=0, full_pages=0, swa_pages=0, scratch_pages=0)
    windows = probe.quota * draw(st.sampled_from([1, 2, 2, 3, 5])) + draw(st.integers(0, 6))
    return Layout(
        **sizes,
        drafts=draw(st.integers(0, 3)),
        full_pages=0 if groups == "swa" else draw(st.integers(3, 48)),
        swa_pages=windows + scratch if has_swa else 0,
        scratch_pages=scratch,
        retention=draw(st.sampled_from(RETENTION)),
        policy=draw(st.sampled_from(_core.POLICIES)),
        events=draw(st.sampled_from([4096, 4096, 3, 0])),
        ghosts=draw(st.sampled_from([0, 4, 64])),
        alphabet=draw(st.sampled_from([2, 2, 3, 50])),
    )


def counters(stats: mimo_cache.Stats) -> dict[str, object]:
    """All but the tree's own memory: an order may grow when a pin runs out, whatever call comes next."""
    return {name: value for name, value in stats.as_dict().items() if name != "tree_bytes"}


class World(RuleBasedStateMachine):
    """A cache, the engine on top of it, and what was told to it so far."""

    layout: Layout
    cache: mimo_cache.PrefixCache
    engine: Engine
    stories: list[Story]
    weights: int
    clears: int

    def story(self, prompt: Prompt) -> Story:
        """The beginning of an old story and a tail that many share."""
        base, keep, tail, flags = prompt
        if self.stories:
            old = self.stories[base % len(self.stories)]
            cut = min(len(old.tokens), self.engine.longest - 1) * min(keep, 200) // 200
            if keep % 4:  # Mostly at a boundary, where pages are shared and MTP rows go stale.
                cut -= cut % self.layout.page_size
            story = old.cut(cut)
        else:
            story = Story([])
        story.weights = self.weights
        if not story.tokens:
            story.key = flags % 8 % 3
        start = len(story.tokens)
        for i in range(min(1 + tail % (5 * self.layout.page_size + 2), self.engine.longest - start)):
            story.tokens.append((base + i * (tail % 2)) % self.layout.alphabet)
        if flags >= 28:
            at = start + tail % (len(story.tokens) - start)
            story.spans.append((at, 1 + base % (len(story.tokens) - at), bytes([keep % 2]) * 32))
        return story

    def open_tracks(self) -> list[Track]:
        return [track for track in self.engine.tracks if not track.parked]

    def pick(self, number: int) -> Track | None:
        tracks = self.open_tracks()
        return tracks[number % len(tracks)] if tracks else None

    def masked(self, mask: int) -> list[Track]:
        return [track for i, track in enumerate(self.open_tracks()) if mask >> i % 8 & 1]

    def found(self, story: Story) -> tuple[int, int]:
        """p and q by brute force."""
        roots = [
            root_key(bytes(32), WEIGHTS[story.weights], b"", SALTS[story.key], generation)
            for generation in range(self.clears, -1, -1)
        ]
        return lookup(self.cache.snapshot(), roots, story.tokens, story.spans, self.layout)

    def check_match(self, match: mimo_cache.Match | mimo_cache.Report, want: tuple[int, int]) -> None:
        assert match.usable == want[1], f"the residency allows {want}, the lookup found {match}"
        if self.layout.full_pages:
            assert match.full_kv_match == want[0], f"the residency allows {want}, the lookup found {match}"
        else:
            assert match.full_kv_match >= want[0]

    def check_report(self, report: mimo_cache.Report, tokens: int, want: tuple[int, int]) -> None:
        self.check_match(report, want)
        page, p, q, misses = self.layout.page_size, report.full_kv_match, report.usable, report.misses
        resumable, whole = min(p, tokens - 1) // page * page, tokens // page * page
        assert report.prompt_tokens == tokens == q + sum(misses.values())
        assert (misses["window"], misses["last_token"]) == (resumable - q, p - resumable)
        assert misses["partial_page"] == tokens - whole
        assert report.promised == report.delivered == q

    def refused(self, short: mimo_cache.OutOfPages, before: mimo_cache.Stats) -> None:
        assert counters(self.cache.stats()) == counters(before), f"a refused call changed something: {short}"
        assert short.needed > 0
        pool = before.full if short.pool == "full" else before.swa
        assert short.total <= pool.total
        assert str(short.needed) in str(short)
