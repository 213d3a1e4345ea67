"""The runner against transformers on the same checkpoints, in fp32: logits within 1e-4 with and without cache, in any
chunks, and the same greedy text. transformers knows no MTP heads; `oracle.py` stands in for it there."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mimo_cache.models import load
from mimo_cache.runner import LLM, SamplingParams
from mimo_cache.runner.llm import TINY
from paged import Paged
from small_models import BACKENDS, checkpoint, chunks, distance, fill_nan, parts, scramble, tokens

transformers = pytest.importorskip("transformers", "5.20", reason="its window counts the query's own key from 5.20 on")

NEAR = 1e-4
LENGTH = 90
"""Tokens of a prompt: several windows of 16 and several pages."""


def saved_by_transformers(path: Path) -> Path:
    """Flash's geometry in small, written by transformers itself in its own spelling."""
    config = transformers.MiMoV2FlashConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=64,
        moe_intermediate_size=24,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=24,
        v_head_dim=16,
        layer_types=["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"],
        mlp_layer_types=["dense"] + ["sparse"] * 4,
        sliding_window=12,
        n_routed_experts=6,
        num_experts_per_tok=3,
        attention_value_scale=0.612,
        max_position_embeddings=512,
        eos_token_id=96,
    )
    model = transformers.MiMoV2FlashForCausalLM(config)
    scramble(model, 3)
    model.save_pretrained(path)
    tokenizer = checkpoint(path / "other") / "tokenizer.json"
    tokenizer.rename(path / "tokenizer.json")
    return path


@pytest.fixture(scope="module", params=["saved by transformers", "both spellings", "shipped"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints that both load."""
    made = tmp_path_factory.mktemp("checkpoint")
    if request.param == "shipped":
        return TINY
    return saved_by_transformers(made) if request.param == "saved by transformers" else checkpoint(made)


@pytest.fixture(scope="module")
def other(path: Path) -> Any:
    """transformers' model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    return model.eval()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend."""
    return str(request.param)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As the runner runs."""
    with torch.inference_mode():
        yield


def prompt(llm: LLM, seed: int, length: int = LENGTH) -> list[int]:
    return tokens(seed, length, min(llm.config.vocab_size, 256))


def want(other: Any, ids: list[int]) -> Any:
    """Logits [tokens, vocab] of transformers."""
    return other(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("sizes", [[LENGTH], chunks(1, LENGTH, 20), [1] * LENGTH], ids=["whole", "chunks", "decode"])
def test_all_logits(path: Path, other: Any, backend: str, sizes: list[int]) -> None:
    llm = LLM(path, backend=backend, memory="8M")
    fill_nan(llm.engine.model.pools)
    ids = prompt(llm, 1)
    seq = Paged(llm.engine.model).run(ids, sizes)
    assert distance(torch.stack(seq.logits), want(other, ids)) <= NEAR


@pytest.mark.parametrize("chunk", [512, 13, 3])
def test_logits_of_completions_with_and_without_cache(path: Path, other: Any, backend: str, chunk: int) -> None:
    """A fresh prompt, the same again, one that continues it and one that branches off, alone and together."""
    llm = LLM(path, backend=backend, memory="8M", max_step_tokens=chunk)
    first = prompt(llm, 1)
    params = SamplingParams(max_tokens=5, ignore_eos=True, keep_logits=True)
    continued, branched = [*first, *prompt(llm, 2, 30)], [*first[:77], *prompt(llm, 3, 20)]
    hits = []
    for prompts in ([first], [first], [continued], [continued, branched, first[:40]], [branched, first]):
        for ids, made in zip(prompts, llm.generate(prompts, params), strict=True):
            whole = want(other, ids + made.token_ids)
            assert distance(made.logits, whole[len(ids) - 1 : -1]) <= NEAR
            hits.append(made.report.usable)
    assert hits[0] == 0
    page = llm.cache.page_size
    assert hits[1] == hits[-1] == (LENGTH - 1) // page * page
    assert hits[2] > 0
    assert hits[3] > hits[2]


def test_greedy_text(path: Path, other: Any, backend: str) -> None:
    llm = LLM(path, backend=backend, memory="8M")
    for seed in (4, 4, 5):
        ids = prompt(llm, seed, 50)
        made = llm.generate(ids, SamplingParams(max_tokens=40))[0]
        given = torch.tensor([ids])
        theirs = other.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=40, do_sample=False)
        assert made.token_ids == theirs[0, 50:].tolist()
    assert made.report.usable == 0


@pytest.mark.parametrize("off", [-1, 0, 1])
def test_the_window_is_that_of_transformers(path: Path, other: Any, backend: str, off: int) -> None:
    """With one key less or more in the window, logits are far away."""
    config, weights = load(path)
    model, _ = parts(replace(config, window_keys=config.window_keys + off), weights, backend, 8)
    ids = tokens(1, LENGTH, 90)
    gap = distance(torch.stack(Paged(model).run(ids, [LENGTH]).logits), want(other, ids))
    assert gap <= NEAR if off == 0 else gap > 100 * NEAR


def test_half_of_the_prompt_elsewhere_gives_other_logits(path: Path, other: Any) -> None:
    """A guard for the comparisons above: logits of another text are far away."""
    llm = LLM(path, memory="8M")
    ids = prompt(llm, 1)
    changed = [*ids[:10], (ids[10] + 1) % 90, *ids[11:]]
    gap = (want(other, ids) - want(other, changed)).abs().max(1).values
    assert (gap[:10] <= NEAR).all()
    assert np.asarray(gap[10:]).max() > 0.1
