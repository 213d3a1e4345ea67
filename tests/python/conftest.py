"""A cache with something in it, for tests that must not damage it; and which tests need torch."""

from importlib.util import find_spec

import pytest

import mimo_cache
from helpers import Steps, plain
from mimo_cache import PrefixCache

if find_spec("torch") is None:  # the package was installed without its extra `runner`
    collect_ignore_glob = ["test_kernels.py", "test_runner_*.py", "test_tiers_gcache.py"]


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
