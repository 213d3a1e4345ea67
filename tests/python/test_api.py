"""What an engine engineer sees: names, a life of a sequence, tokens in every form, reports, events, exceptions."""

import array
import ast
import ctypes
import gc
import inspect
import pickle
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mimo_cache
from helpers import FakeTensor, Steps, plain, tables
from mimo_cache import Key

OF_PARTS = {"BlockIds", "DEFAULT_POLICY", "DEFAULT_RETENTION", "POLICIES", "crc32c", "explain", "optimum", "replay"}
OF_PARTS |= {"CopyJob", "DeviceLayout", "HostRegion", "KvCopier"}
OF_PARTS |= {"TierFetch", "TierLoan", "TierPlanner", "TierReceive", "TierSave", "TierStats"}
"""What `mimo_cache.replay`, `mimo_cache.gcache` and `mimo_cache.tiers` use or export; not in the package itself."""


def test_the_package_names_everything_it_exports() -> None:
    public = {name for name in vars(mimo_cache._core) if not name.startswith("_")} - OF_PARTS
    assert public | {"__version__"} == set(mimo_cache.__all__)
    assert sorted(mimo_cache.__all__) == mimo_cache.__all__
    assert mimo_cache.__version__


def test_help_says_what_the_stubs_say() -> None:
    path = mimo_cache.__path__[0]
    stubs = ast.parse(Path(path, "_core.pyi").read_text(encoding="utf-8"))
    classes = [node for node in stubs.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    for node in classes:
        made = getattr(mimo_cache._core, node.name)
        if not issubclass(made, Exception):
            assert inspect.getdoc(made) == ast.get_docstring(node)
        methods = {f.name: ast.get_docstring(f) for f in node.body if isinstance(f, ast.FunctionDef)}
        told = {name: inspect.getdoc(getattr(made, name)) for name in methods if not name.startswith("__")}
        assert told == {name: doc for name, doc in methods.items() if not name.startswith("__")}, node.name
        assert None not in told.values()


def test_everything_has_the_same_default_policy_and_retention() -> None:
    core = mimo_cache._core
    assert core.DEFAULT_POLICY in core.POLICIES
    makers: list[Callable[..., Any]] = [
        mimo_cache.PrefixCache,
        mimo_cache.PrefixCache.plain,
        core.replay,
        core.explain,
    ]
    for maker in makers:
        given = inspect.signature(maker).parameters
        assert (given["policy"].default, given["retention"].default) == (core.DEFAULT_POLICY, core.DEFAULT_RETENTION)


def test_importing_needs_numpy_only() -> None:
    code = (
        "import sys, mimo_cache, numpy; mimo_cache.PrefixCache.plain(page_size=1, full_pages=1).request([1]).tokens();"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    extra = set(out.stdout.split()) - set(sys.stdlib_module_names) - {"numpy", "mimo_cache", "__main__"}
    assert {name for name in extra if not name.startswith(("_", "sitecustomize"))} == set()


def test_a_second_turn_starts_where_the_first_one_ended() -> None:
    cache = plain()
    steps = Steps(cache)
    prompt = np.arange(30, dtype=np.int32)
    with cache.request(prompt).open(credit=3) as seq:
        assert (seq.full_kv_match, seq.usable, seq.committed, seq.known) == (0, 0, 0, 30)
        steps.run(seq, 30, [100])
        steps.run(seq, 1, [101])
        assert (seq.committed, seq.known, seq.reserved) == (31, 32, 0)
        assert seq.tokens().tolist() == [*range(30), 100, 101]
        assert seq.tokens().dtype == np.uint32
        assert len(seq.full_table()) == 8
        first, pages = seq.swa_table()
        assert first <= seq.swa_base
        assert seq.swa_held == len(pages)
    turn = cache.request([*range(30), 100, 101, 7, 8])
    found = turn.peek()
    assert (found.full_kv_match, found.usable) == (28, 28)
    assert found == cache.peek([*range(30), 100, 101, 7, 8])
    with turn.open() as seq:
        assert turn.opened
        assert (seq.usable, seq.full_write_from, seq.swa_write_from) == (28, 28, 28)
        report = seq.report
        assert (report.prompt_tokens, report.usable, report.promised, report.delivered, report.turn) == (
            34,
            28,
            28,
            28,
            2,
        )
        assert sum(report.misses.values()) == 6
        steps.run(seq, 6)
    assert report == seq.report, "a report stays readable"
    cache.check_integrity()


def test_fill_writes_tables_into_the_callers_memory() -> None:
    cache = plain()
    seqs = [cache.request(list(range(start, start + 9))).open() for start in (0, 100)]
    for seq in seqs:
        seq.reserve(9)
    full, swa, base, lens = (np.full(shape, -7, np.int32) for shape in ((2, 5), (2, cache.swa_width(9)), (2,), (2,)))
    plan = cache.fill(1, seqs, full, swa, base, lens)
    assert not plan
    assert (plan.copies, plan.rebuilds) == ([], [])
    assert lens.tolist() == [9, 9]
    for row, seq in enumerate(seqs):
        assert full[row].tolist() == [*seq.full_table().tolist(), 0, 0]
        assert base[row] == seq.swa_base == 0
        assert swa[row].tolist()[:3] == seq.swa_table()[1].tolist()
    assert len({*full[:, :3].ravel().tolist()}) == 6
    cache.commit_many(seqs, np.array([9, 9]), [[7], np.array([8], np.int64)])
    assert [seq.known for seq in seqs] == [10, 10]
    cache.retire(1)


def test_fill_takes_any_writable_int32_buffer_and_a_full_length_swa_table() -> None:
    cache = plain()
    seq = cache.request(list(range(20))).open(4)
    steps = Steps(cache)
    steps.run(seq, 20)
    seq.reserve(1)
    full = (ctypes.c_int32 * 6 * 1)()
    swa = memoryview(bytearray(24)).cast("i", (1, 6))
    lens = array.array("i", [-1])
    cache.fill(steps.next, [seq], full, swa, None, lens)
    assert list(full[0]) == seq.full_table().tolist()
    first, pages = seq.swa_table()
    row = list(struct.unpack("6i", swa))
    assert row[: seq.swa_base] == [0] * seq.swa_base
    assert row[seq.swa_base :] == pages.tolist()[seq.swa_base - first :]
    assert lens[0] == 21


def test_fill_writes_into_a_tensors_memory() -> None:
    cache = plain()
    seq = cache.request([1, 2, 3]).open()
    seq.reserve(3)
    full, swa, base, lens = tables(1, 8)
    cache.fill(1, [seq], FakeTensor(full), FakeTensor(swa), FakeTensor(base), FakeTensor(lens))
    assert full[0, 0] == seq.full_table()[0]
    assert lens[0] == 3


def test_keys_separate_and_hash() -> None:
    assert Key(salt="a") == Key(salt=b"a")
    assert len({Key(), Key(salt=b"a"), Key(adapter="a"), Key(b"a", "a"), Key(salt=b"a")}) == 4
    assert (Key(b"a", "b").salt, Key(b"a", "b").adapter) == (b"a", "b")
    assert eval(repr(Key(b"a", "b")), {"Key": Key}) == Key(b"a", "b")
    cache = plain()
    steps = Steps(cache)
    steps.serve(list(range(16)), key=Key(salt=b"a"))
    assert cache.peek(list(range(16)), Key(salt=b"a")).full_kv_match == 16
    for other in (None, Key(salt=b"b"), Key(adapter="a"), Key(b"a", "a")):
        assert cache.peek(list(range(16)), key=other).full_kv_match == 0


def test_spans_are_part_of_the_prefix() -> None:
    cache = plain()
    cat, dog = [(2, 6, b"c" * 32)], [(2, 6, b"d" * 32)]
    Steps(cache).serve(list(range(16)), spans=cat)
    assert cache.peek(list(range(16)), spans=cat).full_kv_match == 16
    assert cache.peek(list(range(16)), spans=tuple(dog)).full_kv_match == 0
    assert cache.peek(list(range(16))).full_kv_match == 0


def test_store_false_reads_and_leaves_nothing() -> None:
    cache = plain()
    steps = Steps(cache)
    steps.serve(list(range(16)))
    cached = cache.stats().full.cached
    assert steps.serve([*range(16), *range(50, 66)], store=False).usable > 0
    assert cache.stats().full.cached == cached


def test_leaving_a_block_by_an_exception_aborts() -> None:
    cache = plain()
    seq = cache.request(list(range(16))).open()
    seq.reserve(16)
    with pytest.raises(KeyboardInterrupt), seq:
        raise KeyboardInterrupt
    assert cache.stats().open_sequences == 0
    assert cache.stats().full.private == 0
    with pytest.raises(mimo_cache.SequenceStateError):
        seq.finish()


def test_a_sequence_may_end_inside_its_block() -> None:
    cache = plain()
    for end in ("finish", "abort"):
        with cache.request([1]).open() as seq:
            getattr(seq, end)()
    assert cache.stats().open_sequences == 0


def test_a_dropped_sequence_aborts_itself() -> None:
    cache = plain()
    seq = cache.request(list(range(16))).open()
    seq.reserve(16)
    assert cache.stats().full.private == 4
    gone = weakref.ref(seq)
    del seq
    gc.collect()
    assert gone() is None
    assert (cache.stats().open_sequences, cache.stats().full.private) == (0, 0)
    cache.check_integrity()


def test_sequences_keep_their_cache_alive() -> None:
    cache = plain()
    seq = cache.request([1, 2]).open()
    del cache
    gc.collect()
    seq.reserve(2)
    assert seq.reserved == 2


def test_fork_park_resume() -> None:
    cache = plain()
    steps = Steps(cache)
    parent = cache.request(list(range(10))).open(8)
    steps.run(parent, 10, [50])
    left, right = parent.fork(2, credit=4)
    assert {parent.id, left.id, right.id} == {parent.id} | {left.id} | {right.id}
    assert (left.committed, left.known, left.reserved) == (10, 11, 0)
    plan = steps.run(left, 1, [60])
    assert plan
    assert {group for group, _, _ in plan.copies} <= {"full", "swa"}
    assert all(isinstance(n, int) for copy in plan.copies for n in copy[1:])
    right.park()
    assert (right.parked, cache.stats().parked_sequences) == (True, 1)
    right.resume(credit=2)
    assert (right.parked, cache.stats().parked_sequences) == (False, 0)
    assert right.report.prompt_tokens == 11
    assert right.usable == right.committed
    for seq in (parent, left, right):
        seq.finish()
    cache.check_integrity()


def test_copies_can_run_outside_a_step() -> None:
    cache = plain()
    steps = Steps(cache)
    parent = cache.request(list(range(10))).open(8)
    steps.run(parent, 10, [50])
    assert cache.take_copies() is None
    (child,) = parent.fork(1)
    taken = cache.take_copies()
    assert taken is not None
    move, plan = taken
    assert plan.copies
    child.abort()
    cache.move_done(move)
    with pytest.raises(mimo_cache.StepOrderError):
        cache.move_done(move)
    cache.check_integrity()


def test_copies_for_forks_that_ended_are_forgotten() -> None:
    """A fork of a fork, none of which ever ran: the copies between them hold nothing once all have ended."""
    cache = plain()
    parent = cache.request(list(range(10))).open(8)
    Steps(cache).run(parent, 10, [50])
    (child,) = parent.fork(1)
    parent.abort()
    (grandchild,) = child.fork(1)
    child.abort()
    grandchild.abort()
    stats = cache.stats()
    assert stats.swa.private == stats.full.private == stats.swa.promised == 0
    assert cache.take_copies() is None


def test_out_of_pages_tells_everything_and_changes_nothing() -> None:
    cache = plain(full_pages=4, swa_pages=16, scratch_pages=4)
    request = cache.request(list(range(40)))
    before = cache.stats()
    with pytest.raises(mimo_cache.OutOfPages, match="out of full pages") as info:
        request.open()
    error = info.value
    assert (error.pool, error.needed, error.total, error.free, error.quarantined) == ("full", 10, 4, 4, 0)
    assert error.evictable == error.promised == 0
    assert "never" in str(error)
    assert cache.stats() == before
    assert not request.opened
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.pool, copy.needed, str(copy)) == (type(error), "full", 10, str(error))


def test_exceptions_form_one_family() -> None:
    names = [name for name in mimo_cache.__all__ if name.endswith(("Error", "Argument", "OutOfPages"))]
    assert len(names) == 10
    for name in names:
        error = getattr(mimo_cache, name)
        assert issubclass(error, mimo_cache.MimoCacheError)
        assert error.__doc__
        assert error.__module__ == "mimo_cache"
    assert issubclass(mimo_cache.InvalidArgument, ValueError)
    assert issubclass(mimo_cache.ConfigError, ValueError)
    assert issubclass(mimo_cache.TraceError, ValueError)
    assert issubclass(mimo_cache.FileError, OSError)
    assert mimo_cache.OutOfPages.needed == 0


def test_explain_tells_a_story() -> None:
    cache = plain()
    steps = Steps(cache)
    steps.serve(list(range(32)))
    told = cache.explain([*range(32), 1, 2, 3])
    assert told.report.usable == 32
    assert told.report.misses["partial_page"] == 3
    assert [checkpoint.boundary for checkpoint in told.checkpoints] == [32]
    assert told.checkpoints[0].kinds == ["PROMPT_END"]
    assert told.checkpoints[0].turn == 1
    assert str(told).splitlines() == told.lines
    assert "32" in str(told)


def test_events_fold_into_the_snapshot() -> None:
    cache = plain()
    steps = Steps(cache)
    steps.serve(list(range(32)), key=Key(salt=b"x"))
    events, lost = cache.drain_events()
    assert lost == 0
    assert [event.number for event in events] == list(range(1, len(events) + 1))
    assert {event.kind for event in events} <= {"stored", "removed", "window_safe", "window_unsafe"}
    stored = [key for event in events if (event.kind, event.group) == ("stored", "full") for key in event.keys]
    snapshot = cache.snapshot()
    assert snapshot.number == len(events)
    assert [page.key for page in snapshot.pages if page.full] == stored
    assert all(len(key) == 32 for key in stored)
    assert snapshot.pages[1].parent == snapshot.pages[0].key
    assert [page.window_safe for page in snapshot.pages][-1]
    cache.clear(Key(salt=b"x"))
    (cleared,), lost = cache.drain_events(max=10)
    assert (cleared.kind, cleared.root, cleared.keys) == ("cleared", snapshot.pages[0].parent, [])
    assert cache.snapshot().pages == []
    assert cache.drain_events() == ([], 0)


def test_events_lost_are_counted() -> None:
    cache = plain(events=4)
    Steps(cache).serve(list(range(64)), chunk=4)
    events, lost = cache.drain_events()
    assert lost > 0
    assert events[0].number == lost + 1


def test_clear_and_weights_make_new_namespaces() -> None:
    cache = plain(weights="v1")
    steps = Steps(cache)
    steps.serve(list(range(16)))
    cache.set_weights(b"v2")
    assert cache.peek(list(range(16))).full_kv_match == 0
    cache.set_weights("v1")
    assert cache.peek(list(range(16))).full_kv_match == 16
    cache.clear()
    assert cache.peek(list(range(16))).full_kv_match == 0


def test_pin_lasts_as_long_as_it_says() -> None:
    def survives(ttl: float, wait: float) -> bool:
        cache = plain(full_pages=16)
        steps = Steps(cache)
        steps.serve(list(range(16)))
        assert cache.pin(list(range(16)), ttl=ttl) == 16
        time.sleep(wait)
        for other in range(6):
            steps.serve(list(range(100 * other + 100, 100 * other + 116)))
        return cache.peek(list(range(16))).full_kv_match == 16

    assert survives(ttl=1000, wait=0)
    assert not survives(ttl=0.005, wait=0.05)


def test_tenant_shares_bound_what_stays() -> None:
    cache = plain()
    cache.set_tenant_share(3, full_pages=5, swa_pages=64)
    Steps(cache).serve(list(range(64)), tenant=3)
    assert cache.stats().full.cached <= 5


def test_stats_and_dumps() -> None:
    cache = plain()
    Steps(cache).serve(list(range(32)))
    stats = cache.stats()
    assert stats == cache.stats()
    assert stats != plain().stats()
    numbers = stats.as_dict()
    assert numbers["full"] == stats.full.as_dict()
    assert numbers["misses"] == stats.misses
    assert all(getattr(stats, name) == value for name, value in numbers.items() if isinstance(value, int))
    assert all(getattr(stats.swa, name) == value for name, value in stats.swa.as_dict().items())
    assert "PROMPT_END" in cache.dump()
    assert cache.dump(format="dot").startswith("digraph")
