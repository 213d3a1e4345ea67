"""Pools that share one memory: the API of `Region`, and the state machine on a device where both pools are strided
views of the same bytes, so that a page used through the wrong pool shows somebody else's rows.
"""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test

import mimo_cache
from engine import HEADS, ROW, Engine, Rows
from helpers import Steps, plain, refused, tables
from mimo_cache import Geometry, InvalidArgument, OutOfPages, PrefixCache, Region, _core
from reference import Layout
from test_state_machine import Machine
from world import RETENTION, SMALL, Prompt

assert HEADS >= 3


def region(**changes: Any) -> Region:
    """A few chunks of 6 full or 2 SWA pages, half of them each pool's."""
    sizes: dict[str, Any] = {"chunks": 16, "full_pages": 6, "swa_pages": 2, "full_chunks": 8}
    return Region(**{**sizes, **changes})


def shared(adaptive: bool = False, **changes: Any) -> PrefixCache:
    """A small cache over it: pages of 4 tokens, W 5, one MTP head."""
    return plain(
        full_pages=0,
        swa_pages=0,
        scratch_pages=changes.pop("scratch_pages", 4),
        region=region(adaptive=adaptive, **changes),
    )


def test_a_region_says_what_it_is() -> None:
    r = region(min_full_chunks=2)
    assert (r.chunks, r.full_pages, r.swa_pages, r.full_chunks) == (16, 6, 2, 8)
    assert (r.min_full_chunks, r.min_swa_chunks, r.adaptive) == (2, 1, True)
    assert repr(r) == (
        "Region(chunks=16, full_pages=6, swa_pages=2, full_chunks=8, min_full_chunks=2, min_swa_chunks=1, "
        "adaptive=True)"
    )
    assert eval(repr(r)) == r != region()
    cache = plain(full_pages=0, swa_pages=0, scratch_pages=4, region=r)
    assert (cache.full_pages, cache.swa_pages, cache.scratch_pages) == (96, 32, 4)
    # W 5, one MTP head and four tokens a page: a window takes 4 pages, a checkpoint up to 3, scratch 4.
    assert cache.region == region(min_full_chunks=2, min_swa_chunks=6)
    assert plain().region is None
    assert plain().chunk_owners() == []
    assert plain().stats().split == mimo_cache.PrefixCache.plain(page_size=1, full_pages=3).stats().split


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chunks": 1}, "2 to 4096"),
        ({"chunks": 1 << 20}, "2 to 4096"),
        ({"full_pages": 0}, "1 to 65536"),
        ({"swa_pages": 1 << 17}, "1 to 65536"),
        ({"full_chunks": 16}, "1 to 15"),
        ({"full_chunks": 0}, "1 to 15"),
        ({"min_full_chunks": 9}, "9 to 15"),
        ({"min_full_chunks": 9, "min_swa_chunks": 8}, "at most 16 together"),
        ({"chunks": -1}, "an int from 0"),
        ({"chunks": True}, "an int from 0"),
        ({"adaptive": 1}, "True or False"),
    ],
)
def test_bad_regions_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        region(**changes)


def test_a_cache_refuses_a_region_that_does_not_fit_it() -> None:
    with pytest.raises(InvalidArgument, match="at least 7"):
        plain(
            full_pages=0,
            swa_pages=0,
            scratch_pages=4,
            region=Region(chunks=4, full_pages=6, swa_pages=2, full_chunks=1),
        )
    with pytest.raises(InvalidArgument, match="0 and 0 with a region"):
        plain(region=region())
    with pytest.raises(InvalidArgument, match="one group"):
        PrefixCache(Geometry.preset("uniform"), region=region())
    with pytest.raises(InvalidArgument, match="Region or None"):
        plain(full_pages=0, swa_pages=0, region=16)
    with refused(plain(), InvalidArgument, "region"):
        plain().reassign("full")


def test_reassign_by_name() -> None:
    cache = shared()
    assert cache.chunk_owners() == [("full", False)] * 8 + [("swa", False)] * 8
    for wrong in ("Full", "both", ""):
        with refused(cache, InvalidArgument, "'full' or 'swa'"):
            cache.reassign(wrong)  # type: ignore[arg-type]
    for chunk, words in ((3, "other pool"), (16, "0 to 15"), (-1, "an int")):
        with refused(cache, InvalidArgument, words):
            cache.reassign("full", chunk)
    # Nothing is in use, so the chunk changes at once.
    assert cache.reassign("swa", 3)
    assert cache.chunk_owners()[3] == ("swa", False)
    assert cache.reassign("full")
    stats = cache.stats()
    assert (stats.full.total, stats.swa.total) == (48, 16)
    assert (stats.split.to_full, stats.split.to_swa, stats.split.draining) == (1, 1, None)
    assert set(stats.as_dict()["split"]) >= {"full_chunks", "draining", "kept"}
    # Scratch, a window and a checkpoint stay the SWA pool's, one chunk the full pool's.
    while cache.reassign("full"):
        pass
    assert [owner for owner, _ in cache.chunk_owners()].count("swa") == 6
    while cache.reassign("swa"):
        pass
    assert [owner for owner, _ in cache.chunk_owners()].count("full") == 1


def test_cached_pages_move_with_the_next_plan_and_nobody_hears_of_it() -> None:
    cache = shared()
    steps = Steps(cache)
    prompt = np.arange(100, 140, dtype=np.int32)
    steps.serve(prompt)
    cache.drain_events()
    before = cache.peek(prompt)
    assert before.usable == 36
    assert cache.reassign("swa", 0)
    assert cache.stats().split.draining == "full"
    with cache.request(np.arange(5, dtype=np.int32)).open() as seq:
        seq.reserve(5)
        plan = cache.fill(steps.next, [seq], *tables(1))
        copies = [(group, src, dst) for group, src, dst in plan.copies]
        # Chunk 0 is pages 1 to 6; the prompt's other pages are in chunk 1, and so are the new ones.
        assert [(group, src) for group, src, _ in copies] == [("full", page) for page in range(1, 7)]
        assert all(7 <= dst <= 48 for _, _, dst in copies)
        assert cache.chunk_owners()[0] == ("full", True)
        assert cache.peek(prompt) == before
        cache.retire(steps.next)
        steps.next += 1
        assert cache.chunk_owners()[0] == ("swa", False)
        seq.commit(5)
    stats = cache.stats().split
    assert (stats.to_swa, stats.full_relocated, stats.swa_relocated) == (1, 6, 0)
    again = steps.serve(prompt)
    assert again.usable == 36
    cache.check_integrity()


def test_fit_and_layout() -> None:
    geometry = Geometry.preset("mimo-v2.5-pro", tp_size=8)
    full, swa = geometry.full, geometry.swa
    assert full is not None
    assert swa is not None
    swa_bytes = swa.rank_page_bytes + geometry.rank_hidden_page_bytes
    r = Region.fit(geometry, 64 << 30, swa_share=0.1, scratch_pages=130)
    chunk, full_stride, swa_stride, waste = r.layout(geometry)
    assert full_stride * r.full_pages == swa_stride * r.swa_pages == chunk <= 1 << 30
    assert full_stride >= full.rank_page_bytes
    assert swa_stride >= swa_bytes
    assert 0 <= waste < 0.01
    assert 64 <= r.chunks <= 128
    kept = (r.chunks - r.full_chunks) * r.swa_pages - 130
    assert kept * swa_bytes / (64 << 30) == pytest.approx(0.1, abs=0.02)
    # Another rank with other bytes a page takes the same chunks; it may waste more.
    other = Geometry.preset("mimo-v2.5-pro", tp_size=8, layer_range=(0, 35))
    chunk, full_stride, swa_stride, _ = r.layout(other)
    assert full_stride * r.full_pages == swa_stride * r.swa_pages == chunk
    for arguments, words in (
        ({"size": 0}, "size"),
        ({"size": 1 << 30, "chunk_bytes": 1000}, "bytes of a chunk"),
        ({"size": 1 << 30, "swa_share": 1.5}, "swa_share"),
        ({"size": 1 << 30, "align": 3}, "power of two"),
        ({"size": 1 << 20}, "size is 1048576 bytes, allowed is at least"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            Region.fit(geometry, **arguments)
    with pytest.raises(InvalidArgument, match="single group"):
        Region.fit(Geometry.preset("uniform"), 1 << 30)


@pytest.mark.parametrize("page_size", [1, 64])
@pytest.mark.parametrize(("size", "scratch"), [(1 << 31, 10), (64 << 30, 130), (1 << 45, 8193)])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_cache_takes_whatever_region_fits(page_size: int, size: int, scratch: int, share: float) -> None:
    geometry = Geometry.preset("mimo-v2.5-pro", tp_size=8, page_size=page_size)
    if size == 1 << 45 and page_size == 1:
        with pytest.raises(InvalidArgument, match="size is 35184372088832 bytes, allowed is at most"):
            Region.fit(geometry, size, swa_share=share, scratch_pages=scratch)
        return
    r = Region.fit(geometry, size, swa_share=share, scratch_pages=scratch)
    chunk, _, _, waste = r.layout(geometry)
    assert size - chunk < r.chunks * chunk <= size
    assert waste < 0.05
    assert r.min_full_chunks <= r.full_chunks <= r.chunks - r.min_swa_chunks
    cache = PrefixCache(geometry, region=r, scratch_pages=scratch, events=0, ghosts=0)
    assert cache.region == r


def test_a_pool_that_may_get_larger_says_so() -> None:
    cache = shared()
    with pytest.raises(OutOfPages, match="reassign some") as info:
        cache.request(np.arange(50 * 4, dtype=np.int32)).open()
    error = info.value
    assert (error.needed, error.total, error.most) == (50, 48, 60)
    with pytest.raises(OutOfPages, match="never be served") as info:
        cache.request(np.arange(61 * 4, dtype=np.int32)).open()
    assert info.value.needed > info.value.most == 60


# The state machine


@dataclass(frozen=True)
class Shared(Layout):
    """A layout whose pools share a region; `full_pages` and `swa_pages` are the ids of all its chunks."""

    region: Region | None = None

    def make(self) -> PrefixCache:
        return PrefixCache.plain(
            page_size=self.page_size,
            window=self.window,
            n_mtp=self.n_mtp,
            scratch_pages=self.scratch_pages,
            retention=self.retention,
            policy=self.policy,
            events=self.events,
            ghosts=self.ghosts,
            region=self.region,
        )


class Tiles:
    """The pages of one pool as a view of the region: where the pool's stride is longer than a page, its rows are
    written and read that many times over, so that every byte of the stride is the page's."""

    def __init__(self, memory: Rows, before: int, chunks: int, per: int, tiles: int, size: int) -> None:
        count = chunks * per
        first = memory[(before - tiles) * size :][: (count + 1) * tiles * size]
        self.pages = first.reshape(count + 1, tiles, size)

    def __len__(self) -> int:
        return len(self.pages)

    def __getitem__(self, index: Any) -> Any:
        page, at = index if isinstance(index, tuple) else (index, slice(None))
        rows = self.pages[page, 0, at].copy()
        for tile in range(1, self.pages.shape[1]):
            other = self.pages[page, tile, at]
            assert (other == rows).all(), f"page {page} was written over by the other pool"
        return rows

    def __setitem__(self, index: Any, rows: Any) -> None:
        page, at = index if isinstance(index, tuple) else (index, slice(None))
        for tile in range(self.pages.shape[1]):
            self.pages[page, tile, at] = rows


class SharedEngine(Engine):
    """The fake device with one memory for both pools."""

    def __init__(self, layout: Shared, cache: PrefixCache) -> None:
        super().__init__(layout, cache)
        assert layout.region is not None
        r, size = layout.region, layout.page_size
        unit = int(np.lcm(r.full_pages, r.swa_pages))
        before = max(unit // r.full_pages, unit // r.swa_pages)
        memory = np.zeros((before + r.chunks * unit) * size, ROW)
        self.full = Tiles(memory, before, r.chunks, r.full_pages, unit // r.full_pages, size)  # type: ignore[assignment]
        self.swa = Tiles(memory, before, r.chunks, r.swa_pages, unit // r.swa_pages, size)  # type: ignore[assignment]

    def bytes_of(self, page: tuple[str, int]) -> tuple[int, int]:
        """First and one past the last unit of a page."""
        pool: Any = self.full if page[0] == "full" else self.swa
        tiles = pool.pages.shape[1]
        return (page[1] - 1) * tiles, page[1] * tiles

    def busy(self, page: tuple[str, int]) -> bool:
        low, high = self.bytes_of(page)
        touched = [pages for _, pages in self.running] + list(self.moves.values())
        spans = (self.bytes_of(other) for pages in touched for other in pages)
        return any(start < high and low < end for start, end in spans)


@st.composite
def shared_layouts(draw: st.DrawFn) -> Shared:
    """Small pages, every shape of chunk, and one to four chunks more than must be."""
    sizes: dict[str, Any] = {
        "page_size": draw(st.sampled_from([1, 2, 4])),
        "window": draw(st.integers(0, 8)),
        "n_mtp": draw(st.integers(0, 3)),
    }
    scratch = draw(st.sampled_from([0, 1, 4]))
    quota = Layout(**sizes, drafts=0, full_pages=0, swa_pages=0, scratch_pages=0).quota
    checkpoint = -(-sizes["window"] // sizes["page_size"]) + 1
    full, swa = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    swa_chunks, full_chunks = -(-(quota + checkpoint + scratch) // swa), -(-draw(st.integers(3, 20)) // full)
    more = draw(st.integers(1, 4))
    r = Region(
        chunks=swa_chunks + full_chunks + more,
        full_pages=full,
        swa_pages=swa,
        full_chunks=full_chunks + draw(st.integers(0, more)),
        min_full_chunks=draw(st.sampled_from([1, full_chunks])),
        adaptive=draw(st.booleans()),
    )
    return Shared(
        **sizes,
        drafts=draw(st.integers(0, 3)),
        full_pages=r.chunks * full,
        swa_pages=r.chunks * swa,
        scratch_pages=scratch,
        retention=draw(st.sampled_from(RETENTION)),
        policy=draw(st.sampled_from(_core.POLICIES)),
        events=draw(st.sampled_from([4096, 4096, 0])),
        ghosts=draw(st.sampled_from([0, 64])),
        alphabet=draw(st.sampled_from([2, 3, 50])),
        region=r,
    )


class SharedMachine(Machine):
    """The same operations, and chunks that change hands among them."""

    @initialize(layout=shared_layouts(), prompts=st.just([]))
    def begin(self, layout: Layout, prompts: list[Prompt]) -> None:
        super().begin(layout, prompts)
        assert isinstance(layout, Shared)
        self.engine = SharedEngine(layout, self.cache)

    @rule(to=st.sampled_from(["full", "swa"]), number=SMALL)
    def reassign(self, to: Any, number: int) -> None:
        theirs = [chunk for chunk, (owner, _) in enumerate(self.cache.chunk_owners()) if owner != to]
        before = self.cache.stats().split
        begun = self.cache.reassign(to, theirs[number % len(theirs)] if number % 4 else None)
        assert begun or self.cache.stats().split == before

    @invariant()
    def adds_up(self) -> None:
        self.cache.check_integrity()
        stats, layout = self.cache.stats(), self.layout
        assert isinstance(layout, Shared)
        assert layout.region is not None
        owners = self.cache.chunk_owners()
        for name, pool, per in (
            ("full", stats.full, layout.region.full_pages),
            ("swa", stats.swa, layout.region.swa_pages),
        ):
            assert pool.free + pool.private + pool.cached + pool.quarantined == pool.total
            draining = stats.split.draining_pages if stats.split.draining == name else 0
            assert pool.total == per * owners.count((name, False)) + draining  # type: ignore[arg-type]
        for track in self.engine.tracks:
            if not track.parked:
                for page in self.engine.full_table(track).values():
                    assert owners[(page - 1) // layout.region.full_pages][0] == "full"
                for page in self.engine.swa_table(track).values():
                    assert owners[(page - 1) // layout.region.swa_pages][0] == "swa"


def test_state_machine_in_one_region() -> None:
    soak = int(os.environ.get("MIMO_SOAK", "1"))
    run_state_machine_as_test(
        SharedMachine,
        settings=settings(
            max_examples=120 * soak,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
