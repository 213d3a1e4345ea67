"""Every operation of the cache in any order, driven through Python, with canaries in the pages.

`engine` is the runner and its device, `reference` the rules. After every operation: every page in a sequence's tables
holds exactly the KV of its tokens, sequences and pools add up, and `check_integrity` agrees. `MIMO_SOAK=n` runs n times
as many examples.
"""

import os
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import mimo_cache
from engine import Engine, Story, Track
from reference import Layout, Mirror
from world import PROMPT, SALTS, SMALL, WEIGHTS, Prompt, World, counters, layouts


class Machine(World):
    """One cache and everything that may happen to it. Numbers are taken modulo what is there."""

    @initialize(layout=layouts(), prompts=st.lists(PROMPT, max_size=4))
    def begin(self, layout: Layout, prompts: list[Prompt]) -> None:
        self.layout = layout
        self.cache = layout.make()
        self.engine = Engine(layout, self.cache)
        self.waiting: list[tuple[mimo_cache.Request, Story, bool]] = []
        self.stories: list[Story] = []
        self.mirror = Mirror()
        self.weights = 0
        self.clears = 0
        self.namespaces: dict[tuple[int, int], int] = {}
        for prompt in prompts:
            self.serve(prompt, chunk=8, accept=1, late=1, out=4)

    # Lookups and the lives of sequences

    @rule(prompt=PROMPT, store=st.sampled_from([True, True, True, False]), tenant=st.integers(0, 1))
    def request(self, prompt: Prompt, store: bool, tenant: int) -> None:
        if len(self.waiting) < 5:
            story = self.story(prompt)
            key = mimo_cache.Key(salt=SALTS[story.key])
            tokens = np.array(story.tokens, np.int32)
            request = self.cache.request(tokens, key=key, spans=story.spans, tenant=tenant, store=store)
            assert request.tokens().tolist() == story.tokens
            assert len(request) == len(story.tokens)
            self.waiting.append((request, story, store))

    @precondition(lambda self: self.waiting)
    @rule(number=SMALL)
    def peek(self, number: int) -> None:
        request, story, _ = self.waiting[number % len(self.waiting)]
        self.check_match(request.peek(), self.found(story))

    @rule(prompt=PROMPT)
    def look(self, prompt: Prompt) -> None:
        story = self.story(prompt)
        key, tokens = mimo_cache.Key(salt=SALTS[story.key]), np.array(story.tokens, np.uint32)
        want, before = self.found(story), self.cache.stats()
        self.check_match(self.cache.peek(tokens, key, story.spans), want)
        told = self.cache.explain(tokens, key, story.spans)
        self.check_report(told.report, len(tokens), want)
        assert str(told)
        assert counters(self.cache.stats()) == counters(before), "a lookup changed something"

    @precondition(lambda self: self.waiting)
    @rule(number=SMALL)
    def forget(self, number: int) -> None:
        self.waiting.pop(number % len(self.waiting))

    @precondition(lambda self: self.waiting and len(self.engine.tracks) < 7)
    @rule(number=SMALL, credit=st.integers(0, 12))
    def open(self, number: int, credit: int) -> None:
        self.open_waiting(number % len(self.waiting), credit)

    def open_waiting(self, number: int, credit: int) -> Track | None:
        request, story, store = self.waiting[number]
        want, before = self.found(story), self.cache.stats()
        try:
            seq = request.open(credit)
        except mimo_cache.OutOfPages as short:
            self.refused(short, before)
            assert not request.opened
            return None
        assert request.opened
        self.waiting.pop(number)
        self.check_report(seq.report, len(story.tokens), want)
        namespace = self.namespaces.setdefault((story.weights, story.key), len(self.namespaces))
        track = Track(
            seq=seq,
            story=story.cut(len(story.tokens)),
            namespace=namespace,
            prompt=len(story.tokens),
            store=store,
            committed=seq.usable,
            full_from=seq.full_kv_match,
            swa_from=seq.usable,
            done=seq.usable,
        )
        self.engine.tracks.append(track)
        return track

    @rule(
        prompt=PROMPT, chunk=st.integers(1, 12), accept=st.integers(0, 3), late=st.integers(0, 2), out=st.integers(0, 6)
    )
    def serve(self, prompt: Prompt, chunk: int, accept: int, late: int, out: int) -> None:
        """A whole life: chunked prefill, decode with drafts, finish, with steps retired up to two late."""
        track = self.fresh(prompt, out)
        if track is None:
            return
        # Out of the list while `with` owns its end, so that a failure inside shows itself and not a second one.
        try:
            with track.seq:
                self.run(track, chunk=chunk, accept=accept, late=late, out=out)
        finally:
            self.engine.tracks.remove(track)
        self.engine.tracks.append(track)
        self.ended(track)

    def fresh(self, prompt: Prompt, credit: int) -> Track | None:
        """A request made and opened at once."""
        if len(self.engine.tracks) >= 7:
            return None
        if len(self.waiting) >= 5:
            self.waiting.pop()
        self.request(prompt, store=True, tenant=0)
        return self.open_waiting(len(self.waiting) - 1, credit)

    @rule(prompts=st.lists(PROMPT, min_size=1, max_size=3), chunk=st.integers(1, 12), seed=SMALL)
    def start(self, prompts: list[Prompt], chunk: int, seed: int) -> None:
        """Sequences that are open together and have computed their prompts, but for what finds no page."""
        tracks = [track for prompt in prompts if (track := self.fresh(prompt, seed % 8))]
        for _ in range(40):
            tracks = [track for track in tracks if track.committed < track.prompt]
            progress = [track.committed for track in tracks]
            self.advance_tracks(tracks, chunk=chunk, accept=0, seed=seed, compact=seed % 4 != 1, many=seed % 8 < 4)
            if seed % 3 == 0:
                self.engine.retire()
            if progress == [track.committed for track in tracks]:
                break

    def run(self, track: Track, *, chunk: int, accept: int, late: int, out: int) -> None:
        for turn in range(60):
            if track.known >= track.prompt + out and track.committed >= track.known - 1:
                break
            how = {"compact": turn % 3 != 1, "many": turn % 2 == 0}
            self.advance_tracks([track], chunk=chunk, accept=accept, seed=turn, **how)
            while len(self.engine.running) > late:
                self.engine.retire()

    def advance_tracks(self, tracks: list[Track], **how: Any) -> None:
        self.engine.step(tracks, **how)
        for track in tracks:
            self.engine.verify(track)

    @rule(mask=SMALL, chunk=st.integers(1, 12), accept=st.integers(0, 3), seed=SMALL, retire=st.booleans())
    def advance(self, mask: int, chunk: int, accept: int, seed: int, retire: bool) -> None:
        self.advance_tracks(
            self.masked(mask), chunk=chunk, accept=accept, seed=seed, compact=seed % 4 != 1, many=seed % 8 < 4
        )
        if retire:
            self.engine.retire()

    @rule(number=SMALL, n=st.integers(0, 14))
    def reserve(self, number: int, n: int) -> None:
        if track := self.pick(number):
            self.engine.reserve(track, n)

    @rule(mask=SMALL, seed=SMALL, compact=st.booleans())
    def fill(self, mask: int, seed: int, compact: bool) -> None:
        self.engine.fill(self.masked(mask), seed, compact)

    @rule(number=SMALL, accept=st.integers(0, 4), fresh=st.integers(0, 3), fewer=st.integers(0, 2), many=st.booleans())
    def commit(self, number: int, accept: int, fresh: int, fewer: int, many: bool) -> None:
        track = self.pick(number)
        if track is None or not track.settled or track.known > self.engine.longest:
            return
        tokens = track.guess[:accept] + [(number + i) % self.layout.alphabet for i in range(fresh)]
        computed = max(0, self.engine.computable(track, tokens) - fewer)
        self.engine.commit([(track, computed, tokens)], many)

    @rule(number=SMALL)
    def trim(self, number: int) -> None:
        if track := self.pick(number):
            self.engine.trim(track)

    @rule()
    def retire(self) -> None:
        self.engine.retire()

    @rule(number=SMALL)
    def finish(self, number: int) -> None:
        if track := self.pick(number):
            self.engine.verify(track)
            track.seq.finish()
            self.ended(track)

    @precondition(lambda self: self.engine.tracks)
    @rule(number=SMALL, how=st.sampled_from(["abort", "drop", "raise"]))
    def abort(self, number: int, how: str) -> None:
        track = self.engine.tracks[number % len(self.engine.tracks)]
        if how == "abort":
            track.seq.abort()
        elif how == "raise":
            with pytest.raises(ZeroDivisionError), track.seq:
                raise ZeroDivisionError
        self.ended(track, dropped=how == "drop")

    def ended(self, track: Track, dropped: bool = False) -> None:
        self.engine.tracks.remove(track)
        self.stories = [*self.stories[-9:], track.story]
        if dropped:
            # The last reference; the cache aborts the sequence by itself.
            del track.seq
            return
        seq, report = track.seq, track.seq.report
        for call in (seq.finish, seq.abort, seq.trim, lambda: seq.reserve(1), lambda: seq.commit(0), lambda: seq.known):
            with pytest.raises(mimo_cache.SequenceStateError):
                call()
        assert seq.report == report

    @rule(number=SMALL, m=st.integers(1, 3), credit=st.integers(0, 8))
    def fork(self, number: int, m: int, credit: int) -> None:
        parent = self.pick(number)
        if parent is None or len(self.engine.tracks) + m > 7:
            return
        before = self.cache.stats()
        try:
            children = parent.seq.fork(m, credit)
        except mimo_cache.OutOfPages as short:
            self.refused(short, before)
            return
        assert len(children) == m
        for seq in children:
            track = Track(
                seq=seq,
                story=parent.story.cut(parent.known),
                namespace=parent.namespace,
                prompt=parent.known,
                store=parent.store,
                committed=parent.committed,
                full_from=parent.full_from,
                swa_from=parent.swa_from,
                done=parent.committed,
            )
            self.engine.tracks.append(track)

    @rule(number=SMALL, store=st.sampled_from([True, True, False]))
    def park(self, number: int, store: bool) -> None:
        if track := self.pick(number):
            self.engine.verify(track)
            track.seq.park(store)
            track.parked, track.reserved = True, 0
            track.guess.clear()
            self.stories = [*self.stories[-9:], track.story]

    @rule(number=SMALL, credit=st.integers(0, 8))
    def resume(self, number: int, credit: int) -> None:
        parked = [track for track in self.engine.tracks if track.parked]
        if not parked:
            return
        track = parked[number % len(parked)]
        want, before = self.found(track.story), self.cache.stats()
        try:
            track.seq.resume(credit)
        except mimo_cache.OutOfPages as short:
            self.refused(short, before)
            return
        report = track.seq.report
        self.check_report(report, track.known, want)
        track.namespace = self.namespaces.setdefault((track.story.weights, track.story.key), len(self.namespaces))
        track.parked, track.settled, track.prompt = False, False, track.known
        track.committed = track.done = track.swa_from = report.usable
        track.full_from = report.full_kv_match

    # The cache as a whole

    @rule()
    def take_copies(self) -> None:
        if taken := self.cache.take_copies():
            number, plan = taken
            assert plan
            assert number not in self.engine.moves
            self.engine.moves[number] = self.engine.execute(plan)

    @rule(number=SMALL)
    def move_done(self, number: int) -> None:
        if self.engine.moves:
            move = sorted(self.engine.moves)[number % len(self.engine.moves)]
            del self.engine.moves[move]
            self.cache.move_done(move)

    @precondition(lambda self: self.clears < 8)
    @rule(key=st.sampled_from([None, None, 0, 1, 2]), rare=st.integers(0, 3))
    def clear(self, key: int | None, rare: int) -> None:
        if rare:
            return
        self.cache.clear(None if key is None else mimo_cache.Key(salt=SALTS[key]))
        self.clears += 1
        # KV of the namespace is another's from now on: open sequences keep theirs, nobody new may see it.
        for weights, salt in list(self.namespaces):
            if key is None or (salt == key and weights == self.weights):
                self.namespaces[weights, salt] = 100 * self.clears + 10 * weights + salt
        if not self.layout.full_pages:
            # Without a full group a page's parents need not be told of, so that a mirror cannot say which are below the
            # root that was cleared; it starts again.
            self.cache.drain_events()
            self.mirror.resync(self.cache.snapshot())
        for request, story, _ in self.waiting:
            if key is None or (story.key == key and story.weights == self.weights):
                found = request.peek()
                assert (found.full_kv_match, found.usable) == (0, 0)

    @rule(version=st.sampled_from([0, 0, 1]))
    def set_weights(self, version: int) -> None:
        self.weights = version
        self.cache.set_weights(WEIGHTS[version])

    @rule(prompt=PROMPT, ttl=st.sampled_from([0.0, 0.001, 1000.0]))
    def pin(self, prompt: Prompt, ttl: float) -> None:
        story = self.story(prompt)
        full, _ = self.found(story)
        key = mimo_cache.Key(salt=SALTS[story.key])
        try:
            pinned = self.cache.pin(story.tokens, ttl, key, story.spans)
        except mimo_cache.InvalidArgument as error:
            assert "pin" in error.what  # noqa: PT017
        else:
            assert pinned <= max(full, pinned if not self.layout.full_pages else 0)

    @rule(tenant=st.integers(0, 1), full=st.sampled_from([0, 3, 10, 1 << 40]), swa=st.sampled_from([0, 3, 10, 1 << 40]))
    def set_tenant_share(self, tenant: int, full: int, swa: int) -> None:
        self.cache.set_tenant_share(tenant, full, swa)

    @rule(most=st.sampled_from([None, None, 0, 1, 5]))
    def drain(self, most: int | None) -> None:
        if not self.mirror.fold(*self.cache.drain_events(most)):
            self.cache.drain_events()
            self.mirror.resync(self.cache.snapshot())
        if most is None and self.layout.events:
            self.mirror.check(self.cache.snapshot())

    @rule(number=SMALL)
    def misuse(self, number: int) -> None:
        """Calls that must be refused, and change nothing."""
        before, step = self.cache.stats(), self.engine.next_step
        with pytest.raises(mimo_cache.StepOrderError):
            self.cache.retire(step + 3)
        with pytest.raises(mimo_cache.StepOrderError):
            self.cache.move_done(10**9)
        if step > 1:
            with pytest.raises(mimo_cache.StepOrderError):
                self.cache.fill(step + 1, [], *self.empty_tables())
        if track := self.pick(number):
            for rows, tokens in ((track.reserved + 1, [0] * 40), (0, [-1])):
                with pytest.raises(mimo_cache.InvalidArgument):
                    track.seq.commit(rows, tokens)
            with pytest.raises(mimo_cache.SequenceStateError):
                track.seq.resume()
        assert counters(self.cache.stats()) == counters(before)

    def empty_tables(self) -> list[np.ndarray[Any, Any]]:
        return [np.zeros((0, 4), np.int32), np.zeros((0, 4), np.int32), np.zeros(0, np.int32), np.zeros(0, np.int32)]

    # What holds between operations

    @invariant()
    def adds_up(self) -> None:
        self.cache.check_integrity()
        stats = self.cache.stats()
        for pool, total in ((stats.full, self.layout.full_pages), (stats.swa, self.layout.swa_pages)):
            assert pool.free + pool.private + pool.cached + pool.quarantined == pool.total == total
            assert pool.leased <= pool.cached
        assert stats.hit_tokens + sum(stats.misses.values()) == stats.prompt_tokens
        parked = sum(track.parked for track in self.engine.tracks)
        assert (stats.open_sequences, stats.parked_sequences) == (len(self.engine.tracks) - parked, parked)

    @invariant()
    def sequences_are_what_they_should_be(self) -> None:
        for track in self.engine.tracks:
            seq = track.seq
            assert seq.tokens().tolist() == track.story.tokens
            assert (seq.known, seq.parked) == (track.known, track.parked)
            if track.parked:
                track.committed = seq.committed
                continue
            assert (seq.committed, seq.reserved) == (track.committed, track.reserved)
            assert (seq.full_write_from, seq.swa_write_from) == (track.full_from, track.swa_from)
            self.check_window(track)
            self.engine.verify(track)
        self.engine.check_ownership()

    def check_window(self, track: Track) -> None:
        """O(W): SWA pages held do not grow with the sequence."""
        layout = self.layout
        reach = layout.window + layout.n_mtp
        young = track.committed < track.swa_from + reach + layout.page_size
        copies = -(-layout.window // layout.page_size) if young else 0
        most = -(-(reach + track.reserved) // layout.page_size) + 2 + copies if layout.swa_pages else 0
        assert track.seq.swa_held <= most

    def teardown(self) -> None:
        """Everything ends, and every page comes home."""
        if sys.exception() is not None or not hasattr(self, "engine"):
            return  # A failure is on its way, and would only be followed by others.
        while self.engine.tracks:
            self.abort(0, "abort")
        while self.engine.running:
            self.engine.retire()
        while self.engine.moves:
            self.move_done(0)
        self.adds_up()
        stats = self.cache.stats()
        for pool in (stats.full, stats.swa):
            assert (pool.private, pool.quarantined, pool.leased, pool.promised, pool.scratch_used) == (0, 0, 0, 0, 0)


def test_state_machine() -> None:
    soak = int(os.environ.get("MIMO_SOAK", "1"))
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=250 * soak,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
