"""Every bad value is a typed error with the value and what is allowed, and leaves the cache as it was.

One test for each line of what callers get wrong; `refused` compares statistics and checks integrity around each call.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mimo_cache
from helpers import NEXT, Steps, plain, refused, tables
from mimo_cache import InvalidArgument, Key, OutOfPages, PrefixCache, SequenceStateError, StepOrderError

IDS = "0 to 4294967295"


class Awkward:
    """An object whose array cannot be made."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("not today")


TOKENS: list[tuple[str, Any, str]] = [
    ("text", "abc", "of type str"),
    ("bytes", b"abc", "of type bytes"),
    ("bytearray", bytearray(b"abc"), "of type bytearray"),
    ("none", None, "of type NoneType"),
    ("one int", 5, "of type int"),
    ("a dict", {1: 2}, "of type dict"),
    ("a set", {1, 2}, "of type set"),
    ("an iterator", iter([1, 2]), "of type list_iterator"),
    ("negative", [3, -1], "-1 at index 1"),
    ("too large", [0, 2**32], "4294967296 at index 1"),
    ("huge", [2**20_000], "of type int at index 0"),
    ("bool", [1, True], "True at index 1"),
    ("float", [1, 2.0], "2.0 at index 1"),
    ("text inside", [1, "2"], "'2' at index 1"),
    ("nested", [[1, 2]], r"\[1, 2\] at index 0"),
    ("a set of them", [1, None], "None at index 1"),
    ("negative int32", np.array([1, -2], np.int32), "-2 at index 1"),
    ("negative int64", np.array([1, 2, -2], np.int64), "-2 at index 2"),
    ("negative int8", np.array([-128], np.int8), "-128 at index 0"),
    ("large int64", np.array([2**32], np.int64), "4294967296 at index 0"),
    ("large uint64", np.array([2**64 - 1], np.uint64), "18446744073709551615 at index 0"),
    ("negative, strided", np.array([1, 0, -1, 0], np.int32)[::2], "-1 at index 1"),
    ("negative, big-endian", np.array([1, -1], ">i4"), "-1 at index 1"),
    ("float64", np.array([1.0]), "float64"),
    ("float16", np.array([1.0], np.float16), "float16"),
    ("complex", np.array([1j]), "complex128"),
    ("bool array", np.array([True]), "bool"),
    ("text array", np.array(["a"]), "<U1"),
    ("object array", np.array([1], object), "object"),
    ("dates", np.array([1], "M8[s]"), "of type numpy.ndarray"),
    ("records", np.array([(1,)], [("a", "i4")]), "of type numpy.ndarray"),
    ("no axis", np.array(1), r"shape \[\]"),
    ("a scalar", np.int64(1), r"shape \[\]"),
    ("two axes", np.array([[1, 2]]), r"shape \[1, 2\]"),
    ("three axes", np.zeros((1, 1, 1), np.int32), r"shape \[1, 1, 1\]"),
    ("ctypes floats", (ctypes.c_double * 2)(1, 2), "of type"),
    ("an awkward object", Awkward(), "not today"),
]


@pytest.mark.parametrize(("value", "words"), [case[1:] for case in TOKENS], ids=[case[0] for case in TOKENS])
def test_tokens_of_a_wrong_kind(cache: PrefixCache, seq: mimo_cache.Sequence, value: Any, words: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: cache.request(value),
        lambda: cache.peek(value),
        lambda: cache.explain(value),
        lambda: cache.pin(value, ttl=1.0),
    ]
    if value is not None:  # A commit without tokens is one.
        calls.append(lambda: seq.commit(1, value))
        calls.append(lambda: cache.commit_many([seq], [1], [value]))
    for call in calls:
        if isinstance(value, type(iter([]))):
            value = iter([1, 2])
        with refused(cache, InvalidArgument, words) as info:
            call()
        assert IDS in info.value.allowed
        assert info.value.what == "tokens"
        assert info.value.value in str(info.value)


def test_an_empty_prompt(cache: PrefixCache) -> None:
    empty: tuple[Any, ...] = ([], (), np.array([], np.int32), np.array([], np.uint64))
    for value in empty:
        for call in (cache.request, cache.peek, cache.explain, lambda v: cache.pin(v, 1.0)):
            with refused(cache, InvalidArgument, "is 0, allowed is 1 to"):
                call(value)


def test_one_token_is_a_prompt(cache: PrefixCache) -> None:
    """It can never hit, since one token is left to compute."""
    assert Steps(plain(page_size=1)).serve([7]).misses["partial_page"] == 0
    with cache.request([0]).open() as seq:
        assert (seq.usable, seq.known) == (0, 1)
    cache.check_integrity()


def test_salts_and_names_that_are_too_long(cache: PrefixCache) -> None:
    for make in (lambda v: Key(salt=v), lambda v: Key(adapter=v), cache.set_weights):
        with refused(cache, InvalidArgument, "1048576 bytes long, allowed is at most 4096 bytes"):
            make(b"x" * (1 << 20))
        make(b"x" * 4096)
    with refused(cache, InvalidArgument, "1048576 bytes"):
        plain(weights=b"x" * (1 << 20))


@pytest.mark.parametrize("value", [5, 1.5, ["a"], object(), bytearray(b"a")])
def test_names_of_a_wrong_kind(cache: PrefixCache, value: Any) -> None:
    for make in (lambda: Key(salt=value), lambda: Key(adapter=value), lambda: cache.set_weights(value)):
        with refused(cache, InvalidArgument, "bytes or str"):
            make()
    for call in (cache.request, cache.peek, cache.explain):
        with refused(cache, InvalidArgument, "a mimo_cache.Key or None"):
            call([1], key=value)
    with refused(cache, InvalidArgument, "a mimo_cache.Key or None"):
        cache.clear(value)


def test_text_that_is_not_unicode(cache: PrefixCache) -> None:
    for call in (lambda: Key(salt="\ud800"), lambda: cache.set_weights("\ud800"), lambda: cache.dump("\ud800")):  # type: ignore[arg-type]
        with refused(cache, InvalidArgument, "surrogates"):
            call()


DIGEST = bytes(32)
SPANS: list[tuple[str, Any]] = [
    ("overlapping", [(0, 4, DIGEST), (3, 2, DIGEST)]),
    ("not sorted", [(5, 2, DIGEST), (0, 2, DIGEST)]),
    ("empty", [(1, 0, DIGEST)]),
    ("past the end", [(7, 2, DIGEST)]),
    ("far past the end", [(2**64 - 1, 2, DIGEST)]),
    ("negative start", [(-1, 2, DIGEST)]),
    ("negative length", [(1, -2, DIGEST)]),
    ("a float", [(0.5, 2, DIGEST)]),
    ("a bool", [(True, 2, DIGEST)]),
    ("short digest", [(0, 2, b"x")]),
    ("long digest", [(0, 2, b"x" * 33)]),
    ("text digest", [(0, 2, "x" * 32)]),
    ("two parts", [(0, 2)]),
    ("four parts", [(0, 2, DIGEST, 1)]),
    ("not tuples", [3]),
    ("lists inside", [[0, 2, DIGEST]]),
    ("a dict", {0: 2}),
    ("text", "spans"),
    ("too many", [(0, 1, DIGEST)] * 70_000),
]


@pytest.mark.parametrize("spans", [case[1] for case in SPANS], ids=[case[0] for case in SPANS])
def test_spans(cache: PrefixCache, spans: Any) -> None:
    tokens = list(range(8))
    for call in (cache.request, cache.peek, cache.explain):
        with refused(cache, InvalidArgument, "span"):
            call(tokens, spans=spans)
    with refused(cache, InvalidArgument, "span"):
        cache.pin(tokens, ttl=1.0, spans=spans)


NUMBERS = (-1, 2**64, 2**20_000, 1.0, "1", True, [1])


@pytest.mark.parametrize("value", NUMBERS, ids=("negative", "2^64", "huge", "float", "text", "bool", "list"))
def test_numbers_of_a_wrong_kind_or_size(cache: PrefixCache, seq: mimo_cache.Sequence, value: Any) -> None:
    request = cache.request([1, 2])
    calls: dict[str, Callable[[], object]] = {
        "credit": lambda: request.open(value),
        "n": lambda: seq.reserve(value),
        "computed": lambda: seq.commit(value),
        "m": lambda: seq.fork(value),
        "step": lambda: cache.retire(value),
        "move_id": lambda: cache.move_done(value),
        "max": lambda: cache.drain_events(value),
        "tenant": lambda: cache.request([1], tenant=value),
        "full_pages": lambda: cache.set_tenant_share(1, value, 1),
        "swa_pages": lambda: cache.set_tenant_share(1, 1, value),
        "swa_page": lambda: cache.mtp_record(value),
        "slots": lambda: cache.swa_width(value),
    }
    for what, call in calls.items():
        with refused(cache, InvalidArgument, "an int") as info:
            call()
        assert info.value.what == what
    for call in (lambda: cache.fill(value, [], *tables(0)), lambda: cache.commit_many([seq], [value], [[]])):
        with refused(cache, InvalidArgument, "an int"):
            call()


def test_numbers_that_the_core_refuses(cache: PrefixCache, seq: mimo_cache.Sequence) -> None:
    request = cache.request([1, 2])
    for call in (lambda: request.open(2**63), lambda: seq.reserve(2**40), lambda: seq.fork(1, 2**63)):
        with refused(cache, InvalidArgument, "allowed is .*2147479"):
            call()
    for m in (0, 2**32 - 1):
        with refused(cache, InvalidArgument, "1 to 4096"):
            seq.fork(m)


@pytest.mark.parametrize("ttl", [-1, float("nan"), float("inf"), 1e12, "1", None, True])
def test_times_to_live(cache: PrefixCache, ttl: Any) -> None:
    with refused(cache, InvalidArgument, "ttl is .* allowed is seconds from 0"):
        cache.pin([0, 1, 2, 3, 4], ttl)


@pytest.mark.parametrize("store", [1, "yes", None])
def test_flags(cache: PrefixCache, seq: mimo_cache.Sequence, store: Any) -> None:
    if store is None:  # The default.
        return
    with refused(cache, InvalidArgument, "True or False"):
        cache.request([1], store=store)
    with refused(cache, InvalidArgument, "True or False"):
        seq.park(store)
    with refused(cache, InvalidArgument, "True or False"):
        seq.park(store=store)


def test_more_committed_than_reserved(cache: PrefixCache, seq: mimo_cache.Sequence) -> None:
    with refused(cache, InvalidArgument, "is 5, allowed is at most 4"):
        seq.commit(5, [9, 9, 9])
    with refused(cache, InvalidArgument, "is 5, allowed is at most 4"):
        cache.commit_many([seq], [5], [[9, 9, 9]])
    assert (seq.committed, seq.known, seq.reserved) == (40, 43, 4)


def test_more_committed_than_known(cache: PrefixCache, seq: mimo_cache.Sequence) -> None:
    with refused(cache, InvalidArgument, "at most 3 rows, or more tokens"):
        seq.commit(4)
    seq.commit(4, [9])


def test_calls_after_the_end(cache: PrefixCache, seq: mimo_cache.Sequence) -> None:
    seq.commit(3)
    seq.finish()
    calls: list[Callable[[], object]] = [
        lambda: seq.commit(0),
        lambda: seq.commit(1, [5]),
        lambda: cache.commit_many([seq], [0], [[]]),
        lambda: seq.reserve(1),
        seq.reservable,
        seq.trim,
        lambda: seq.fork(1),
        seq.park,
        seq.resume,
        seq.finish,
        seq.abort,
        seq.tokens,
        seq.full_table,
        seq.swa_table,
        lambda: seq.committed,
        lambda: cache.fill(NEXT, [seq], *tables(1)),
    ]
    for call in calls:
        with refused(cache, SequenceStateError, "allowed is") as info:
            call()
        assert info.value.state
        assert info.value.call
    assert "ended" in repr(seq)


def test_a_request_is_used_up_by_open(cache: PrefixCache) -> None:
    request = cache.request([1, 2, 3])
    seq = request.open()
    with refused(cache, SequenceStateError, "opened"):
        request.open()
    seq.abort()


def test_parked_sequences(cache: PrefixCache, seq: mimo_cache.Sequence) -> None:
    with refused(cache, SequenceStateError):
        seq.resume()
    seq.park()
    for call in (lambda: seq.reserve(1), lambda: seq.commit(0), seq.park, lambda: cache.fill(NEXT, [seq], *tables(1))):
        with refused(cache, SequenceStateError, "parked"):
            call()


def test_steps_out_of_order_or_twice(cache: PrefixCache, seq: mimo_cache.Sequence) -> None:
    with refused(cache, StepOrderError, "out of order"):
        cache.retire(5)
    cache.fill(NEXT, [seq], *tables(1))
    for wrong in (NEXT, NEXT + 2, NEXT - 1, 0, 2**64 - 1):
        with refused(cache, StepOrderError) as info:
            cache.fill(wrong, [seq], *tables(1))
        assert info.value.value == wrong
        assert info.value.expected
    cache.fill(NEXT + 1, [seq], *tables(1))
    for wrong in (NEXT + 1, NEXT - 1, NEXT + 2):
        with refused(cache, StepOrderError, f"allowed is {NEXT}"):
            cache.retire(wrong)
    cache.retire(NEXT)
    with refused(cache, StepOrderError):
        cache.retire(NEXT)
    cache.retire(NEXT + 1)


def test_moves_that_do_not_exist(cache: PrefixCache) -> None:
    for wrong in (0, 1, 2**64 - 1):
        with refused(cache, StepOrderError):
            cache.move_done(wrong)


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


WIDE: list[tuple[str, Any]] = [
    ("one axis", np.zeros(64, np.int32)),
    ("too few rows", np.zeros((0, 64), np.int32)),
    ("too many rows", np.zeros((2, 64), np.int32)),
    ("three axes", np.zeros((1, 8, 8), np.int32)),
    ("int64", np.zeros((1, 64), np.int64)),
    ("uint32", np.zeros((1, 64), np.uint32)),
    ("float32", np.zeros((1, 64), np.float32)),
    ("big-endian", np.zeros((1, 64), ">i4")),
    ("every other column", np.zeros((1, 128), np.int32)[:, ::2]),
    ("columns first", np.zeros((64, 1), np.int32).T[::-1, ::-1]),
    ("misaligned", np.frombuffer(bytearray(257), np.int32, 64, offset=1).reshape(1, 64)),
    ("read-only", read_only(np.zeros((1, 64), np.int32))),
    ("bytes", bytes(256)),
    ("bytearray", bytearray(256)),
    ("a list", [[0] * 64]),
    ("none", None),
    ("text", "table"),
    ("an awkward object", Awkward()),
    ("too narrow", np.zeros((1, 1), np.int32)),
    ("no columns", np.zeros((1, 0), np.int32)),
]


@pytest.mark.parametrize("table", [case[1] for case in WIDE], ids=[case[0] for case in WIDE])
@pytest.mark.parametrize("place", [0, 1])
def test_page_tables_of_a_wrong_kind(cache: PrefixCache, seq: mimo_cache.Sequence, table: Any, place: int) -> None:
    buffers: list[Any] = list(tables(1))
    buffers[place] = table
    with refused(cache, InvalidArgument):
        cache.fill(NEXT, [seq], *buffers)
    assert not any(np.asarray(buffer).any() for i, buffer in enumerate(buffers) if i != place)
    cache.fill(NEXT, [seq], *tables(1))


@pytest.mark.parametrize("place", [2, 3])
@pytest.mark.parametrize(
    "vector",
    [np.zeros((1, 1), np.int32), np.zeros(2, np.int32), np.zeros(0, np.int32), np.zeros(1, np.int64), [0], "x", 3],
    ids=str,
)
def test_vectors_of_a_wrong_kind(cache: PrefixCache, seq: mimo_cache.Sequence, vector: Any, place: int) -> None:
    buffers: list[Any] = list(tables(1))
    buffers[place] = vector
    with refused(cache, InvalidArgument, "allowed is a writable C-contiguous int32 array"):
        cache.fill(NEXT, [seq], *buffers)


def test_lens_cannot_be_left_out(cache: PrefixCache, seq: mimo_cache.Sequence) -> None:
    full, swa, base, _ = tables(1)
    with refused(cache, InvalidArgument, "lens"):
        cache.fill(NEXT, [seq], full, swa, base, None)  # type: ignore[arg-type]


def test_page_tables_that_overlap(cache: PrefixCache, seq: mimo_cache.Sequence) -> None:
    memory = np.zeros(1000, np.int32)
    full, swa, base, lens = memory[:64].reshape(1, 64), memory[63:127].reshape(1, 64), memory[200:201], memory[300:301]
    with refused(cache, InvalidArgument, "overlaps full_out"):
        cache.fill(NEXT, [seq], full, swa, base, lens)
    with refused(cache, InvalidArgument, "overlaps swa_base"):
        cache.fill(NEXT, [seq], full, memory[400:464].reshape(1, 64), lens, lens)


def test_sequences_of_a_wrong_kind(cache: PrefixCache, seq: mimo_cache.Sequence) -> None:
    other = plain().request([1]).open()
    bad: list[Any] = [None, seq, iter([seq]), {seq: 1}, [1], [None], [seq, "x"], [other], [seq, seq]]
    for seqs in bad:
        rows = len(seqs) if isinstance(seqs, list) else 1
        with refused(cache, InvalidArgument, "seq"):
            cache.fill(NEXT, seqs, *tables(rows))
        with refused(cache, InvalidArgument, "seq"):
            cache.commit_many(seqs, [0] * rows, [[]] * rows)


def test_commits_of_unequal_length(cache: PrefixCache, seq: mimo_cache.Sequence) -> None:
    bad: list[tuple[Any, Any]] = [
        ([], [[]]),
        ([1], []),
        ([1, 1], [[]]),
        ([1], [[], []]),
        (1, [[]]),
        ([1], None),
        ([1], [5]),
    ]
    for computed, tokens in bad:
        with refused(cache, InvalidArgument):
            cache.commit_many([seq], computed, tokens)


def test_commit_many_is_all_or_nothing(cache: PrefixCache, seq: mimo_cache.Sequence) -> None:
    other = cache.request([1, 2, 3]).open(4)
    other.reserve(3)
    bad: list[tuple[list[int], list[list[int]]]] = [([3, 9], [[], []]), ([3, 1], [[], [-1]])]
    for computed, tokens in bad:
        with refused(cache, InvalidArgument):
            cache.commit_many([other, seq], computed, tokens)
        assert (other.committed, seq.committed) == (0, 40)


def test_dump_formats(cache: PrefixCache) -> None:
    bad: tuple[Any, ...] = ("svg", "", 5)
    for value in bad:
        with refused(cache, InvalidArgument):
            cache.dump(value)


def test_prompts_larger_than_the_pool(cache: PrefixCache) -> None:
    with refused(cache, OutOfPages, "can never be served") as info:
        cache.request(list(range(1000))).open()
    assert (info.value.needed, info.value.total) == (250, 64)
    request = cache.request([1, 2, 3])
    with refused(cache, OutOfPages) as info:
        request.open(credit=2**30)
    assert request.open().known == 3


def test_chunks_larger_than_the_scratch() -> None:
    cache = plain(scratch_pages=2)
    seq = cache.request(list(range(100))).open()
    with refused(cache, OutOfPages, "scratch") as info:
        seq.reserve(100)
    assert info.value.pool == "scratch"
    most = seq.reservable()
    assert 0 < most < 100
    with refused(cache, OutOfPages):
        seq.reserve(most + 1)
    seq.reserve(most)
