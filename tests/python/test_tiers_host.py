"""`HostTier` and the engine above it: what goes wrong between planner, copier and engine leaves nothing behind."""

from typing import Any

import pytest
import torch

from mimo_cache import InvalidArgument, PrefixCache
from mimo_cache.runner import LLM, SamplingParams
from mimo_cache.tiers import HostTier, TierPlanner
from small_models import Sizes, config, engine, tokens, weights


def serve(made: Any, prompt: list[int], new: int = 3) -> list[int]:
    """What an engine makes of a prompt."""
    made.add(prompt, SamplingParams(max_tokens=new, ignore_eos=True))
    out = []
    while made.busy:
        out += [output.token for output in made.step()]
    return out


def with_tier() -> tuple[Any, HostTier]:
    """A small engine with a host tier that takes everything at once."""
    shape = config()
    made = engine(shape, weights(shape), sizes=Sizes(40, 60, 20))
    tier = HostTier(made.cache, made.model.pools.layout(shape.layer_kinds), write="through")
    made.tier = tier
    return made, tier


def idle(made: Any, tier: HostTier) -> None:
    """Neither tier holds anything for anybody."""
    tier.drain()
    tier.check_integrity()
    made.cache.check_integrity()
    stats, host, moved = made.cache.stats(), tier.planner.host_stats(), tier.stats()
    assert (moved.fetching, moved.saving_pages) == (0, 0)
    for pool in (stats.full, stats.swa, host.full, host.swa):
        assert (pool.private, pool.quarantined, pool.leased) == (0, 0, 0)


def test_a_small_scratch_serves_what_it_serves_without_a_host_tier() -> None:
    sizes: dict[str, Any] = {
        "page_size": 2,
        "scratch_pages": 2,
        "max_step_tokens": 8,
        "full_pages": 260,
        "swa_pages": 80,
    }
    prompts = ["The class statement defines a class object. " * n + "What else?" for n in (6, 2, 6)]
    other = [f"The {word} statement does something else. " * 9 for word in ("print", "lambda")]
    made = []
    for memory in (None, "64M"):
        llm = LLM("tiny", host_memory=memory, host_write="through", retention="prompt_end", **sizes)
        made.append(
            [llm.generate(p, SamplingParams(max_tokens=4))[0].token_ids for p in (prompts[0], *other, *prompts)]
        )
        if memory is not None:
            assert llm.tier is not None
            assert llm.tier.stats().fetched_tokens > 0
    assert made[0] == made[1]


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_copy_that_cannot_be_queued_leaves_nothing_behind(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.inference_mode():
        made, tier = with_tier()

        class Broken:
            """A copier that fails once."""

            def __init__(self, real: Any) -> None:
                self.real, self.left = real, 1

            def __getattr__(self, name: str) -> Any:
                return getattr(self.real, name)

            def save(self, *args: Any) -> Any:
                if self.left:
                    self.left -= 1
                    raise error
                return self.real.save(*args)

        monkeypatch.setattr(tier, "copier", Broken(tier.copier))
        prompt = tokens(1, 45)
        with pytest.raises(error):
            serve(made, prompt)
        idle(made, tier)
        again = serve(made, prompt)
        idle(made, tier)
        assert tier.stats().saves > 0
        assert len(again) == 3


def test_an_abort_while_pages_come_gives_everything_back() -> None:
    with torch.inference_mode():
        made, tier = with_tier()
        prompt = tokens(2, 50)
        first = serve(made, prompt)
        tier.drain()
        for seed in range(3, 8):  # they push it out of 40 pages
            serve(made, tokens(seed, 90))
        tier.drain()
        request = made.cache.request(prompt)
        seq = request.open(credit=3)
        fetch = tier.fetch(seq)
        assert fetch is not None
        seq.abort()
        assert not tier.finish(fetch)
        idle(made, tier)
        assert serve(made, prompt) == first
        idle(made, tier)


def test_a_cache_has_one_planner_and_pools_of_its_own() -> None:
    cache = PrefixCache.plain(page_size=4, window=4, full_pages=20, swa_pages=20, scratch_pages=4)
    TierPlanner(cache, full_pages=20, swa_pages=20)
    with pytest.raises(InvalidArgument, match="one with a tier planner"):
        TierPlanner(cache, full_pages=20, swa_pages=20)
    for full, swa in ((0, 20), (20, 1)):
        other = PrefixCache.plain(page_size=4, window=4, full_pages=20, swa_pages=20, scratch_pages=4)
        with pytest.raises(InvalidArgument):
            TierPlanner(other, full_pages=full, swa_pages=swa)
    with pytest.raises(InvalidArgument, match="through"):
        TierPlanner(other, full_pages=20, swa_pages=20, write="sometimes")
