"""`LLM`: arguments that are refused, calls that fail or end early, and calls that overlap."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mimo_cache import FileError, Key, MimoCacheError, OutOfPages
from mimo_cache.kernels import UnknownBackend
from mimo_cache.runner import LLM, RequestError, SamplingParams
from mimo_cache.runner.llm import default_page
from small_models import checkpoint

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, keep_logits=True)
PROMPTS = ["A page never spans two prefixes.", "the window", "x" * 50]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("checkpoint"), max_positions=200)


@pytest.fixture
def llm(path: Path) -> Iterator[LLM]:
    """A fresh one; at the end nothing is left in it."""
    made = LLM(path, backend="reference", memory="4M")
    yield made
    empty(made)


def empty(llm: LLM) -> None:
    """Nobody waits, and nobody holds a page or an answer."""
    llm.cache.check_integrity()
    stats = llm.cache.stats()
    assert not llm.engine.busy
    assert stats.open_sequences == 0
    for pool in (stats.full, stats.swa):
        assert (pool.private, pool.quarantined, pool.leased, pool.promised, pool.scratch_used) == (0, 0, 0, 0, 0)
    assert not llm._boxes
    assert not llm._refusals


def ids(llm: LLM, prompts: Any = PROMPTS, params: Any = PARAMS) -> list[list[int]]:
    return [made.token_ids for made in llm.generate(prompts, params)]


# --- what the constructor refuses -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"backend": "cuda9"}, UnknownBackend, "backend is 'cuda9', allowed is one of reference, torch"),
        ({"max_running": 0}, RequestError, "max_running is 0, allowed is 1 to 65536"),
        ({"max_step_tokens": 0}, RequestError, "max_step_tokens is 0"),
        ({"max_step_tokens": 1 << 17}, RequestError, "max_step_tokens is 131072"),
        ({"memory": "1K"}, RequestError, "memory is 1024 bytes, at least"),
        ({"memory": "-5"}, RequestError, "memory is '-5'"),
        ({"memory": "8 apples"}, RequestError, "memory is '8 apples', allowed is a number of bytes such as 512M or 8G"),
        ({"page_size": 3}, MimoCacheError, "3"),
        ({"page_size": -16}, MimoCacheError, "-16"),
        ({"retention": "all"}, MimoCacheError, "all"),
        ({"policy": "random"}, MimoCacheError, "random"),
        ({"dtype": "int7"}, MimoCacheError, "int7"),
        ({"full_pages": 10, "swa_pages": 2, "scratch_pages": 1}, MimoCacheError, "the window of one sequence"),
        ({"full_pages": -1, "swa_pages": 20}, MimoCacheError, "-1"),
    ],
)
def test_bad_options_are_refused(path: Path, options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match) as info:
        LLM(path, **options)
    assert isinstance(info.value, MimoCacheError)


def test_a_directory_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    broken = checkpoint(tmp_path)
    (broken / "tokenizer.json").write_text("{}")
    with pytest.raises(FileError, match=r"tokenizer\.json: no tokenizer can be read from it"):
        LLM(broken)
    (broken / "tokenizer.json").unlink()
    with pytest.raises(FileError, match=r"tokenizer\.json"):
        LLM(broken)
    with pytest.raises(FileError, match="nowhere"):
        LLM(tmp_path / "nowhere")


def test_the_page_follows_the_window(path: Path) -> None:
    assert [default_page(w) for w in (0, 1, 2, 3, 16, 17, 127, 128, 4096)] == [64, 1, 2, 2, 16, 16, 64, 64, 64]
    assert LLM(path, memory="4M").cache.page_size == 16
    assert LLM(path, memory="4M", page_size=8).cache.page_size == 8


# --- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompts", "params", "error", "match"),
    [
        ("", PARAMS, RequestError, "the prompt is empty"),
        ([PROMPTS[0], ""], PARAMS, RequestError, "the prompt is empty"),
        ([PROMPTS[0], []], PARAMS, RequestError, "the prompt is empty"),
        ([PROMPTS[0], [1, 320]], PARAMS, RequestError, "a token id is 320, allowed is 0 to 319"),
        ([PROMPTS[0], [-1]], PARAMS, RequestError, "a token id is -1"),
        ([PROMPTS[0], "x" * 195], PARAMS, RequestError, "allowed are 200, the model's positions"),
        (PROMPTS, [PARAMS], RequestError, "there are 1 parameters for 3 prompts, allowed is one or as many"),
        (PROMPTS[0], [PARAMS, PARAMS], RequestError, "there are 2 parameters for 1 prompts"),
    ],
)
def test_one_bad_prompt_refuses_the_call_and_runs_none(
    llm: LLM, prompts: Any, params: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        llm.generate(prompts, params)
    assert llm.engine.tally.steps == 0
    empty(llm)
    assert len(ids(llm)) == 3


def test_prompts_may_be_texts_or_ids(llm: LLM) -> None:
    text = PROMPTS[0]
    tokens = list(text.encode())
    want = ids(llm, text)[0]
    for prompt in (tokens, np.array(tokens), np.array(tokens, np.uint16), tuple(tokens), torch.tensor(tokens)):
        assert ids(llm, [prompt]) == [want]
    assert ids(llm, tokens) == [want]
    assert ids(llm, [text, tokens, np.array(tokens)]) == [want] * 3
    assert llm.generate([]) == []


def test_a_prompt_beyond_the_pools_among_good_ones(path: Path) -> None:
    """The error names the pool, nothing of the call stays behind, and the next call is served."""
    for backend in ("reference", "torch"):
        llm = LLM(path, backend=backend, full_pages=5, swa_pages=40, scratch_pages=8)
        with pytest.raises(OutOfPages) as info:
            llm.generate([PROMPTS[0], "y" * 150, PROMPTS[1]], PARAMS)
        assert info.value.needed > info.value.total == 5
        assert info.value.pool == "full"
        empty(llm)
        assert len(ids(llm, PROMPTS[:2])) == 2
        with pytest.raises(OutOfPages):
            next(iter(llm.stream("y" * 150, PARAMS)))
        empty(llm)


def test_nothing_is_published_without_store_or_under_another_key(llm: LLM) -> None:
    text = PROMPTS[2]
    llm.generate(text, PARAMS, store=False)
    assert llm.generate(text, PARAMS, key=Key(salt="a"))[0].report.usable == 0
    assert llm.generate(text, PARAMS)[0].report.usable == 0
    assert llm.generate(text, PARAMS, store=False)[0].report.usable == 48
    assert llm.generate(text, PARAMS, key=Key(salt="a"))[0].report.usable == 48


def test_logits_come_only_when_asked_for(llm: LLM) -> None:
    with_logits, without = llm.generate(PROMPTS[:2], [PARAMS, SamplingParams(max_tokens=4, ignore_eos=True)])
    assert with_logits.logits.shape == (6, 320)
    assert with_logits.logits.argmax(1).tolist() == with_logits.token_ids
    assert without.logits is None
    assert (with_logits.finish, with_logits.ttft > 0) == ("length", True)


def test_end_tokens_end_it_unless_ignored(path: Path) -> None:
    """The model's own end token is 256; it is the last token of a completion and no text."""
    llm = LLM(path, memory="4M")
    llm.engine.model.lm_head = llm.engine.model.lm_head.clone()
    llm.engine.model.lm_head[256] = 0
    llm.engine.model.lm_head[256, :] = llm.engine.model.lm_head[ids(llm, PROMPTS[0])[0][0]] * 1.5
    found = llm.generate(PROMPTS[0], SamplingParams(max_tokens=9))[0]
    assert (found.finish, found.token_ids, found.text) == ("stop", [256], "")
    assert llm.generate(PROMPTS[0], SamplingParams(max_tokens=9, ignore_eos=True))[0].finish == "length"


# --- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0, 1, 3, 6])
@pytest.mark.parametrize("how", ["close", "drop", "throw"])
def test_a_stream_that_ends_early_leaves_nothing(llm: LLM, after: int, how: str) -> None:
    stream: Any = llm.stream(PROMPTS[0], PARAMS)
    taken = [next(stream).token_id for _ in range(after)]
    if how == "close":
        stream.close()
    elif how == "throw":
        with pytest.raises(KeyboardInterrupt):
            stream.throw(KeyboardInterrupt())
    del stream
    gc.collect()
    empty(llm)
    whole = ids(llm, PROMPTS[0])[0]
    assert whole[:after] == taken


def test_a_refused_stream_says_so_when_it_is_read(llm: LLM) -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        next(iter(llm.stream("")))


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_streams_and_calls_overlap(path: Path, backend: str) -> None:
    """Two streams read in turns, with whole calls in between: each gets all of its own tokens."""
    llm = LLM(path, backend=backend, memory="4M")
    want = ids(llm)
    one, two = llm.stream(PROMPTS[0], PARAMS), llm.stream(PROMPTS[1], PARAMS)
    first, second = [next(one)], [next(two)]
    assert ids(llm, PROMPTS[2]) == [want[2]]
    for _ in range(3):
        first.append(next(one))
    second += list(two)
    assert ids(llm, PROMPTS[1:]) == want[1:]
    first += list(one)
    assert [[piece.token_id for piece in pieces] for pieces in (first, second)] == want[:2]
    for pieces in (first, second):
        assert [piece.finish for piece in pieces] == [None] * 5 + ["length"]
    empty(llm)


def test_a_refusal_goes_to_the_call_it_is_about(path: Path) -> None:
    """A stream whose step finds out that another stream's prompt can never be served goes on."""
    llm = LLM(path, backend="reference", full_pages=5, swa_pages=40, scratch_pages=8, max_running=2)
    want = ids(llm, PROMPTS[:2])
    one, two = llm.stream(PROMPTS[0], PARAMS), llm.stream(PROMPTS[1], PARAMS)
    first, second = [next(one)], [next(two)]
    with pytest.raises(OutOfPages):
        llm.generate([PROMPTS[1], "y" * 150], PARAMS)
    big = llm.stream("y" * 150, PARAMS)
    with pytest.raises(OutOfPages):
        next(big)
    first += list(one)
    second += list(two)
    assert [[piece.token_id for piece in pieces] for pieces in (first, second)] == want
    empty(llm)


# --- interrupts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 5, 18, 40])
def test_an_interrupt_inside_generate_leaves_a_usable_model(llm: LLM, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    kernels, left = llm.engine.model.kernels, at

    def attention(*args: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return type(kernels).attention(kernels, *args)

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "attention", attention)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, PARAMS)
    empty(llm)
    interrupted = ids(llm)
    llm.cache.clear()
    assert interrupted == ids(llm)


def test_a_stream_whose_step_failed_elsewhere_is_told(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request took part in the step that another call interrupted."""
    stream = llm.stream(PROMPTS[0], PARAMS)
    next(stream)

    def attention(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.model.kernels, "attention", attention)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS[1], PARAMS)
    with pytest.raises(RequestError, match="the request has ended"):
        next(stream)
    empty(llm)
