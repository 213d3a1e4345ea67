"""Tokens in every form that callers have them in."""

import array
import ctypes
from typing import Any

import numpy as np
import pytest

import mimo_cache
from helpers import FakeTensor, Steps, plain, refused


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    cache = plain()
    assert cache.request(torch.arange(9)).tokens().tolist() == list(range(9))
    with pytest.raises(mimo_cache.InvalidArgument):
        cache.request(torch.arange(9.0))
    seq = cache.request(torch.arange(9, dtype=torch.int32)).open()
    seq.reserve(9)
    full, swa = torch.zeros(1, 8, dtype=torch.int32), torch.zeros(1, 8, dtype=torch.int32)
    base, lens = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    cache.fill(1, [seq], full, swa, base, lens)
    assert full[0, :3].tolist() == seq.full_table().tolist()
    assert lens.tolist() == [9]


BASE = np.array([1, 2, 2**31 - 1, 5], np.int64)


@pytest.mark.parametrize(
    "tokens",
    [
        BASE.tolist(),
        tuple(BASE.tolist()),
        [np.int64(1), np.uint8(2), 2**31 - 1, np.int32(5)],
        BASE,
        BASE.astype(np.int32),
        BASE.astype(np.uint32),
        BASE.astype(np.uint64),
        BASE.astype(">i8"),
        BASE.astype(">u4"),
        np.repeat(BASE, 3)[::3],
        np.repeat(BASE.astype(np.int32), 2)[::2],
        BASE[::-1].copy()[::-1],
        np.stack([BASE, BASE]).T[:, 0],
        array.array("I", BASE.tolist()),
        array.array("q", BASE.tolist()),
        memoryview(array.array("I", BASE.tolist())),
        # Their buffers come without strides.
        (ctypes.c_int32 * 4)(*BASE.tolist()),
        (ctypes.c_uint64 * 4)(*BASE.tolist()),
        np.frombuffer(b"\0" + BASE.astype(np.int32).tobytes(), np.int32, offset=1),
        FakeTensor(BASE),
    ],
    ids=str,
)
def test_tokens_in_every_form_are_the_same_tokens(tokens: Any) -> None:
    cache = plain(page_size=1, window=0, n_mtp=0)
    request = cache.request(tokens)
    assert request.tokens().tolist() == BASE.tolist()
    Steps(cache).serve(BASE)
    assert cache.peek(tokens).full_kv_match == 4
    assert request.peek().full_kv_match == 4


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_narrow_integers_are_tokens_too(dtype: Any) -> None:
    assert plain().request(np.arange(100, dtype=dtype)).tokens().tolist() == list(range(100))


def test_token_ids_may_use_all_of_32_bits() -> None:
    cache = plain(page_size=2, window=0, n_mtp=0)
    high = [2**32 - 1, 2**31, 7, 8]
    Steps(cache).serve(high)
    assert cache.peek(np.array(high, np.uint32)).full_kv_match == 4
    # The same bits as int32 are negative ids, although they equal what is stored.
    with pytest.raises(mimo_cache.InvalidArgument, match="-1 at index 0"):
        cache.peek(np.array(high, np.uint32).view(np.int32))


def test_negative_ids_are_found_behind_what_matches() -> None:
    cache = plain(page_size=2, window=0, n_mtp=0)
    Steps(cache).serve([1, 2, 3, 4])
    with pytest.raises(mimo_cache.InvalidArgument, match="-5 at index 6"):
        cache.peek(np.array([1, 2, 3, 4, 9, 9, -5], np.int32))


def test_an_object_that_changes_its_mind(cache: mimo_cache.PrefixCache) -> None:
    """Conversions may run any code; it meets the cache between calls, never inside one."""

    class Sneaky:
        def __index__(self) -> int:
            cache.stats()
            cache.request([5, 5, 5]).open().abort()
            return 3

    assert cache.request([Sneaky(), 2]).tokens().tolist() == [3, 2]  # type: ignore[list-item]

    class Raising:
        def __index__(self) -> int:
            raise SystemError("no")

    with refused(cache, mimo_cache.InvalidArgument, "at index 0"):
        cache.request([Raising()])  # type: ignore[list-item]
