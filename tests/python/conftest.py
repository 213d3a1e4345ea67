"""A cache with something in it, for tests that must not damage it."""

import pytest

import mimo_cache
from helpers import Steps, plain
from mimo_cache import PrefixCache


@pytest.fixture
def cache() -> PrefixCache:
    """A cache with something in it, so that damage would show."""
    cache = plain()
    Steps(cache).serve(list(range(40)), chunk=40)
    return cache


@pytest.fixture
def seq(cache: PrefixCache) -> mimo_cache.Sequence:
    """An open sequence with four reserved slots."""
    seq = cache.request([*range(40), 1, 2, 3]).open(credit=8)
    seq.reserve(4)
    return seq
