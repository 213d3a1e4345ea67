"""Plays every part of `mimo-cache bench model` and collects its figures.

Times are wall times of one process, since what a caller waits for is what counts; what is compared alternates within
one run, and every ratio is the median over these pairs. Everything runs on one thread: a small model gains nothing
from more, and threads that wait for each other on a busy machine make times meaningless. Names of figures are part of
the output's contract: a check in `report.py` looks them up by name.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mimo_cache import Key, MimoCacheError
from mimo_cache.bench import MODEL_PARTS, hub_peer
from mimo_cache.bench.timing import Figure, figure, say
from mimo_cache.runner import LLM, SamplingParams

BACKENDS = ("reference", "torch")
PAGE = 16
PROMPT = 8192
"""Prompt tokens, fewer for a model with fewer positions."""
REUSED = 0.9
"""Share of the prompt's whole pages that is reused, rounded up."""
BATCHES = (1, 8)
CONTEXT = 1024
"""Prompt tokens of the sequences whose bookkeeping is measured."""
DECODED = 128
"""New tokens where decoding is measured."""
ONE = SamplingParams(max_tokens=1)


@dataclass(frozen=True)
class Options:
    """What to run. runs: pairs that each ratio is the median of. scale: below 1 for shorter prompts."""

    runs: int
    scale: float
    parts: tuple[str, ...]
    model: str = "tiny"


def run(options: Options) -> list[Figure]:
    """All figures of the chosen parts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _run(options)
    finally:
        torch.set_num_threads(threads)


def _run(options: Options) -> list[Figure]:
    parts: dict[str, Callable[[Options], list[Figure]]] = {
        "ttft": _ttft,
        "bookkeeping": _bookkeeping,
        "decode": _decode,
    }
    figures: list[Figure] = []
    for name in MODEL_PARTS:
        if name in options.parts:
            say(name)
            figures += parts[name](options)
    return figures


def _llm(options: Options, backend: str, tokens: int, sequences: int) -> LLM:
    """An engine whose pools hold `tokens` and the windows of `sequences`."""
    scratch = 512 // PAGE + 2 * sequences
    return LLM(
        options.model,
        backend=backend,
        page_size=PAGE,
        full_pages=-(-tokens // PAGE),
        swa_pages=scratch + 8 * sequences + 64,
        scratch_pages=scratch,
        max_running=sequences,
    )


def _tokens(llm: LLM, rng: np.random.Generator, count: int) -> list[int]:
    """Ids that are no end tokens. Their meaning costs nothing and changes nothing here."""
    allowed = np.setdiff1d(np.arange(min(256, llm.config.vocab_size)), np.asarray(llm.config.eos_token_ids, np.int64))
    return [int(t) for t in rng.choice(allowed, count)]


def _versus(ours: Figure, other: str, ratios: Sequence[float]) -> Figure:
    return replace(ours, against=other, ratio=statistics.median(ratios))


# --- time to the first token ---------------------------------------------------------------------------------------


def _ttft(options: Options) -> list[Figure]:
    out = []
    for backend in BACKENDS:
        prompt = max(20 * PAGE, int(PROMPT * options.scale) // PAGE * PAGE)
        llm, rng = _llm(options, backend, 4 * prompt, 1), np.random.default_rng(0)
        prompt = min(prompt, llm.config.max_positions - PAGE)
        reused = -(-int(prompt * REUSED) // PAGE) * PAGE
        prefix = _tokens(llm, rng, reused)
        llm.generate([prefix], ONE)
        cached, plain = [], []
        for i in range(-1, options.runs):
            tokens = prefix + _tokens(llm, rng, prompt - reused)
            pair = {}
            # Both orders in turn, so that neither is always the second.
            for stored in (True, False) if i % 2 else (False, True):
                key = None if stored else Key(salt=b"nothing is stored here")
                done = llm.generate([tokens], ONE, key=key, store=False)[0]
                if done.report.usable != (reused if stored else 0):
                    raise MimoCacheError(f"{done.report.usable} tokens were reused, not {reused if stored else 0}")
                pair[stored] = 1000 * done.ttft
            if i >= 0:  # the first pair warms up
                cached.append(pair[True])
                plain.append(pair[False])
                say(
                    f"{backend}: {pair[True]:.0f} ms with {reused} of {prompt} tokens reused, {pair[False]:.0f} without"
                )
        ratios = [a / b for a, b in zip(cached, plain, strict=True)]
        without = figure(f"ttft_uncached_{backend}", "ms", plain)
        ours = _versus(figure(f"ttft_reused_{backend}", "ms", cached), "the same prompt without the cache", ratios)
        out += [ours, without, figure(f"ttft_ratio_{backend}", "1", ratios)]
    return out


# --- share of the cache in a step ----------------------------------------------------------------------------------


def _bookkeeping(options: Options) -> list[Figure]:
    """Seconds inside the cache over seconds of steps, requests included; the fast backend, whose steps are short."""
    context = max(4 * PAGE, int(CONTEXT * options.scale))
    new = max(8, int(DECODED * options.scale))
    shares: dict[str, list[float]] = {f"bookkeeping_decode_{b}": [] for b in BATCHES}
    shares["bookkeeping_prefill"] = []
    llm, rng = _llm(options, "torch", BATCHES[-1] * (context + new + PAGE), BATCHES[-1]), np.random.default_rng(1)
    for i in range(-1, options.runs):
        for batch in BATCHES:
            prompts = [_tokens(llm, rng, context) for _ in range(batch)]
            prefill, decode = _steps(llm, prompts, new)
            if i >= 0:
                shares[f"bookkeeping_decode_{batch}"].append(decode)
                if batch == 1:
                    shares["bookkeeping_prefill"].append(prefill)
    return [figure(name, "1", values) for name, values in shares.items()]


def _steps(llm: LLM, prompts: list[list[int]], new: int) -> tuple[float, float]:
    """The cache's share of the time in steps of prefill and of decoding."""
    engine, tally = llm.engine, llm.engine.tally
    core, whole = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    before = tally.core_seconds
    for prompt in prompts:
        engine.add(prompt, SamplingParams(max_tokens=new, ignore_eos=True))
    core[False] = tally.core_seconds - before
    while engine.busy:
        begin = replace(tally)
        made = engine.step()
        decoding = tally.computed - begin.computed == len(made)
        core[decoding] += tally.core_seconds - begin.core_seconds
        whole[decoding] += tally.step_seconds - begin.step_seconds
    return core[False] / whole[False], core[True] / whole[True]


# --- decoding beside transformers ----------------------------------------------------------------------------------


def _decode(options: Options) -> list[Figure]:
    """New tokens per second of one sequence, greedy, its short prompt included."""
    new = max(8, int(DECODED * options.scale))
    llm = _llm(options, "torch", 4 * (new + 8 * PAGE), 1)
    prompt = _tokens(llm, np.random.default_rng(2), 4 * PAGE)
    params = SamplingParams(max_tokens=new, ignore_eos=True)

    def ours() -> list[int]:
        return llm.generate([prompt], params, store=False)[0].token_ids

    theirs, who = hub_peer.generator(llm.path, prompt, new)
    rates: dict[str, list[float]] = {"ours": [], "theirs": []}
    for i in range(-1, options.runs):
        sides: list[tuple[str, Callable[[], list[int]]]] = [("ours", ours)]
        if theirs is not None:
            sides.insert(i % 2, ("theirs", theirs))
        tokens: dict[str, Any] = {}
        for name, side in sides:
            begin = time.perf_counter()
            tokens[name] = side()
            if i >= 0:
                rates[name].append(new / (time.perf_counter() - begin))
        if i < 0 and theirs is not None and tokens["ours"] != tokens["theirs"]:
            say("the two made different tokens, which only a near tie of two logits excuses")
    speed = figure("decode_torch", "tokens/s", rates["ours"])
    if theirs is None:
        return [replace(speed, against=who)]
    ratios = [a / b for a, b in zip(rates["ours"], rates["theirs"], strict=True)]
    return [
        _versus(speed, who, ratios),
        figure("decode_transformers", "tokens/s", rates["theirs"]),
        figure("decode_ratio", "1", ratios),
    ]
