"""Replays against slow caches: exact where nothing is evicted or there is one pool, close in small hybrid caches; and
what must hold after every request, for every policy and every rule of retention."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import Steps, plain
from mimo_cache import InvalidArgument, _core
from mimo_cache.replay import optimum, replay
from reference import Layout, lookup
from replay_models import (
    ONE_POOL,
    Hybrid,
    Page,
    Rules,
    belady,
    conversations,
    endless,
    hit_pages,
    leaf_first_lru,
    path_of,
    write,
)

PAGE = 64
NEED = 2  # pages of W = 128

POLICIES = _core.POLICIES
"""Every policy by name; ONE_POOL has those of which a few slow lines say exactly what they do."""

RULES = (
    Rules(),
    Rules(branch=True),
    Rules(branch=True, seq_end=True),
    Rules(stride=3),
    Rules(branch=True, dense=2, dense_until=6),
    Rules(sup=1),
    Rules(branch=True, sup=2),
    Rules(branch=True, sup=1, stride=4),
)

PROMPTS = st.lists(
    st.lists(st.sampled_from((0, 0, 0, 0, 0, 1, 2)), max_size=11).map(tuple), min_size=1, max_size=30
).filter(any)
QUICK = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rules", RULES, ids=lambda r: r.text(PAGE))
@QUICK
@given(prompts=PROMPTS)
def test_equals_a_cache_that_never_evicts(tmp_path: Path, policy: str, rules: Rules, prompts: list[Page]) -> None:
    trace = write(tmp_path / "t.jsonl", prompts)
    options: dict[str, Any] = {"model": "mimo-v2-flash", "capacity": "100k", "swa_share": 0.8, "policy": policy}
    result = replay(trace, retention=rules.text(PAGE), **options)
    slow = Hybrid(rules, NEED)
    found = [slow.serve(prompt) for prompt in prompts]
    assert hit_pages(result) == sum(q for _, q in found)
    assert result["full_kv_tokens"] == PAGE * sum(p for p, _ in found) == PAGE * endless(prompts)


@pytest.mark.parametrize("policy", sorted(ONE_POOL))
@QUICK
@given(prompts=PROMPTS, capacity=st.integers(1, 40))
def test_one_pool_equals_a_slow_cache(tmp_path: Path, policy: str, prompts: list[Page], capacity: int) -> None:
    trace = write(tmp_path / "t.jsonl", prompts)
    # One page more, for the token after the last block.
    result = replay(trace, model="uniform", capacity=f"{(capacity + 1) * PAGE}", policy=policy)
    assert hit_pages(result) == ONE_POOL[policy](prompts, capacity)


AGAINST_LRU = {
    "lru": (-0.005, -0.001, 0.003),
    "arc": (-0.06, 0.02, 0.2),
    "s3fifo": (-0.08, 0.02, 0.2),
    "turn_hazard": (-0.02, 0.03, 0.2),
    "hit_density": (-0.02, 0.05, 0.2),
}
"""Hit rates against a slow LRU in small caches: the least worst difference, the least mean, the highest mean."""


@pytest.mark.parametrize("policy", POLICIES)
def test_small_hybrid_caches_against_a_slow_lru(tmp_path: Path, policy: str) -> None:
    """LRU is the slow cache's equal; it protects ends of stretches, so it may be a little better. What learns is much
    better where little fits, and nowhere much worse."""
    least, low, high = AGAINST_LRU[policy]
    differences = []
    for seed, rules in enumerate(RULES):
        prompts = conversations(random.Random(seed), 300)
        trace = write(tmp_path / "t.jsonl", prompts)
        total = sum(map(len, prompts))
        for capacity, share in ((150, 0.5), (250, 0.6), (500, 0.5)):
            result = replay(
                trace,
                model="mimo-v2-flash",
                capacity=f"{capacity * PAGE}",
                swa_share=share,
                retention=rules.text(PAGE),
                policy=policy,
            )
            slow = Hybrid(rules, NEED, result["full_pages"] - 1, result["swa_pages"])
            theirs = sum(slow.serve(prompt)[1] for prompt in prompts) / total
            assert theirs > 0.1, "a trace with something to hit"
            differences.append(result["token_hit_rate"] - theirs)
    assert min(differences) > least, differences
    assert low < sum(differences) / len(differences) < high, differences


@QUICK
@given(prompts=PROMPTS, capacity=st.integers(0, 40))
def test_the_optimum_equals_a_slow_belady(tmp_path: Path, prompts: list[Page], capacity: int) -> None:
    trace = write(tmp_path / "t.jsonl", prompts)
    found = optimum(trace, [capacity], PAGE)
    assert found["belady"] == [belady(prompts, capacity) * PAGE]
    assert found["lru"] == [leaf_first_lru(prompts, capacity) * PAGE]
    assert found["endless"] == endless(prompts) * PAGE == sum(found["reuse_tokens"]) == sum(found["reuse_ms"])
    assert found["prompt_tokens"] == sum(map(len, prompts)) * PAGE


@pytest.mark.parametrize("policy", POLICIES)
@QUICK
@given(
    prompts=PROMPTS,
    pages=st.integers(2, 60),
    share=st.floats(0.1, 0.95),
    rules=st.sampled_from(RULES),
    model=st.sampled_from(("uniform", "mimo-v2-flash", "mimo-v2.5-pro")),
)
def test_nothing_beats_the_optimum(
    tmp_path: Path, policy: str, prompts: list[Page], pages: int, share: float, rules: Rules, model: str
) -> None:
    trace = write(tmp_path / "t.jsonl", prompts)
    options: dict[str, Any] = {"model": model, "retention": rules.text(PAGE), "policy": policy}
    try:
        result = replay(
            trace,
            capacity=f"{pages * PAGE}",
            swa_share=None if model == "uniform" else share,
            optimum=True,
            **options,
        )
    except InvalidArgument as error:
        # The split may leave a pool of no use, which is an answer as well.
        assert error.what == "capacity"  # noqa: PT017
        return
    best = result["optimum"]
    assert result["token_hit_rate"] <= best["token_hit_rate"] + 1e-12 <= result["ceiling"] + 2e-12
    assert best["kind"] == ("belady" if model == "uniform" else "upper_bound")
    assert best["token_hit_rate"] >= best.get("one_pool_token_hit_rate", 0.0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rules", RULES, ids=lambda r: r.text(4))
def test_what_is_cached_is_prefix_closed_and_safe_after_every_request(policy: str, rules: Rules) -> None:
    """Each lookup is foretold by its definition from a dump of what is resident, in caches that evict all the time."""
    rng = random.Random(len(rules.text(4)))
    evicted = dropped = 0
    for full, swa in ((24, 14), (40, 20), (70, 40)):
        layout = Layout(4, window=5, n_mtp=0, drafts=0, full_pages=full, swa_pages=swa + 12, scratch_pages=12)
        sizes = {"full_pages": full, "swa_pages": swa + 12, "scratch_pages": 12, "n_mtp": 0}
        cache = plain(**sizes, retention=rules.text(4), policy=policy)
        steps = Steps(cache)
        for prompt in conversations(rng, 40):
            tokens = [*(token for page in path_of(prompt[: full - 1]) for token in _tokens(page)), 0]
            snapshot = cache.snapshot()
            known = {page.key: page for page in snapshot.pages}
            for page in snapshot.pages:
                assert not page.full or page.parent == page.root or known[page.parent].full, "a hole above full KV"
            want = lookup(snapshot, {page.root for page in snapshot.pages}, tokens, [], layout)
            report = steps.serve(tokens, chunk=12)
            assert (report.full_kv_match, report.usable) == want
            cache.check_integrity()
        evicted += cache.stats().full_evicted
        dropped += cache.stats().checkpoints_evicted
    assert evicted
    assert dropped


def _tokens(page: Page) -> list[int]:
    return [hash((page, k)) % (1 << 31) for k in range(4)]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_seed_changes_nothing(tmp_path: Path, policy: str) -> None:
    trace = write(tmp_path / "t.jsonl", conversations(random.Random(3), 200))

    def run(seed: int) -> dict[str, Any]:
        result = replay(
            trace, model="mimo-v2.5-pro", capacity="9000", swa_share=0.6, policy=policy, seed=seed, samples=9
        )
        return {k: v for k, v in result.items() if k not in ("seconds", "requests_per_second")}

    assert run(0) == run(0) == run(987_654_321)
    assert run(0)["full_evicted"]
