"""From logits to tokens: what the parameters mean, and that a completion depends on its own seed and nothing else."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from mimo_cache import MimoCacheError
from mimo_cache.runner import RequestError, SamplingParams
from mimo_cache.runner.sampling import Sampler
from small_models import BACKENDS, Sizes, config, engine, tokens, weights

LOGITS = torch.tensor([0.0, 2.0, 1.0, 2.0, -1.0, 0.5])


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As the runner runs."""
    with torch.inference_mode():
        yield


def draws(logits: Any, count: int, **params: Any) -> list[int]:
    sampler = Sampler(SamplingParams(**params))
    return [sampler(logits) for _ in range(count)]


def test_greedy_takes_the_largest_and_the_lowest_of_equals() -> None:
    assert draws(LOGITS, 3) == [1, 1, 1]
    assert draws(LOGITS, 3, temperature=0.0, top_p=0.1, top_k=5, seed=9) == [1, 1, 1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_the_softmax(temperature: float) -> None:
    count = 4000
    found = np.bincount(draws(LOGITS, count, temperature=temperature), minlength=6) / count
    want = torch.softmax(LOGITS.double() / temperature, 0).numpy()
    # Five standard deviations; the seed is fixed.
    assert (np.abs(found - want) < 5 * np.sqrt(want * (1 - want) / count)).all()


def test_top_k_keeps_the_k_likeliest() -> None:
    assert set(draws(LOGITS, 200, temperature=5.0, top_k=1)) == {1}
    assert set(draws(LOGITS, 200, temperature=5.0, top_k=3)) == {1, 3, 2}
    assert set(draws(LOGITS, 500, temperature=5.0, top_k=100)) == set(range(6))


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    chances = torch.tensor([0.5, 0.25, 0.125, 0.125]).log()
    for top_p, kept in ((0.4, {0}), (0.6, {0, 1}), (0.74, {0, 1}), (0.8, {0, 1, 2}), (1.0, {0, 1, 2, 3})):
        assert set(draws(chances, 300, temperature=1.0, top_p=top_p)) == kept, top_p
    found = np.bincount(draws(chances, 3000, temperature=1.0, top_p=0.7), minlength=4) / 3000
    assert abs(found[0] - 2 / 3) < 0.05


def test_logits_that_rule_tokens_out() -> None:
    """Minus infinity never comes; large values do not overflow."""
    assert set(draws(torch.tensor([-np.inf, 3e4, -np.inf, 3e4]), 200, temperature=1.0)) == {1, 3}
    assert set(draws(torch.tensor([-3e38, 3e38]), 20, temperature=0.01)) == {1}


def test_a_seed_is_a_stream_of_its_own() -> None:
    one, again, other = (draws(LOGITS, 40, temperature=1.0, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert draws(LOGITS, 5, temperature=1.0, seed=2**64 - 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -1),
        ("max_tokens", 2**20 + 1),
        ("max_tokens", 1.5),
        ("max_tokens", "7"),
        ("max_tokens", True),
        ("max_tokens", None),
        ("temperature", -0.1),
        ("temperature", 101),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("temperature", None),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 0.5),
        ("stop_token_ids", 7),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", "ab"),
        ("stop_token_ids", [1.5]),
    ],
)
def test_bad_parameters_are_refused(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{field} is .*, allowed is ") as info:
        SamplingParams(**{field: value})
    assert isinstance(info.value, MimoCacheError)


def test_numbers_of_numpy_are_numbers() -> None:
    params = SamplingParams(
        max_tokens=np.int64(3),  # type: ignore[arg-type]
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        seed=np.uint64(2**64 - 1),  # type: ignore[arg-type]
        stop_token_ids=np.array([3, 4]),  # type: ignore[arg-type]
    )
    assert draws(LOGITS, 4, seed=3, temperature=1) == draws(LOGITS, 4, seed=3, temperature=1.0)
    assert Sampler(params)(LOGITS) in range(6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_completion_does_not_depend_on_company_or_chunks(backend: str) -> None:
    """Seeded requests alone, all together, in small chunks, and from the cache: the same tokens, and in the reference
    backend the same bits of logits."""
    made = config()
    drawn = weights(made)
    prompts = [tokens(seed, n) for seed, n in ((1, 5), (2, 30), (3, 17), (4, 1), (2, 30))]
    params = [
        SamplingParams(max_tokens=8, temperature=t, top_k=k, seed=s, ignore_eos=True, keep_logits=True)
        for t, k, s in ((1.0, 0, 1), (0.7, 5, 2), (0.0, 0, 0), (1.5, 0, 3), (0.7, 5, 4))
    ]

    def run(together: bool, **options: Any) -> list[tuple[list[int], Any]]:
        server = engine(made, drawn, backend, page=4, **options)
        out: dict[int, list[Any]] = {}
        uids = []
        for prompt, param in zip(prompts, params, strict=True):
            uids.append(server.add(np.array(prompt), param))
            while server.busy and not together:
                for output in server.step():
                    out.setdefault(output.uid, []).append(output)
        while server.busy:
            for output in server.step():
                out.setdefault(output.uid, []).append(output)
        return [([o.token for o in out[u]], torch.stack([o.logits for o in out[u]])) for u in uids]

    alone = run(False)
    assert alone[1][0] != alone[4][0], "the same prompt with another seed"
    for found in (run(True), run(True, chunk=5), run(True, max_running=2, chunk=3), run(False, sizes=Sizes(40, 30, 4))):
        for (ids, logits), (want, bits) in zip(found, alone, strict=True):
            assert ids == want
            assert (logits - bits).abs().max() <= 1e-4
            if backend == "reference":
                assert torch.equal(logits, bits)
