"""`_core.replay` against a model of a few lines, and its manners: progress, signals, the GIL."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import mimo_cache
from mimo_cache.replay import best_split, replay

PAGE = 64
WINDOW_PAGES = 2  # W = 128

Path_ = tuple[int, ...]


def write(path: Path, prompts: list[Path_], block: int = PAGE) -> Path:
    """Prompts as paths of choices from the root; every different prefix gets an id of its own."""
    ids: dict[Path_, int] = {}
    lines = [json.dumps({"block_size": block})]
    for t, prompt in enumerate(prompts):
        names = [ids.setdefault(prompt[: n + 1], len(ids)) for n in range(len(prompt))]
        tokens = len(prompt) * block + 7
        lines.append(json.dumps({"t": t, "s": -1, "i": tokens, "o": 1, "h": [[name, 1] for name in names]}))
    path.write_text("\n".join(lines) + "\n")
    return path


def some_prompts(rng: random.Random, count: int, longest: int) -> list[Path_]:
    return [tuple(rng.choices((0, 1, 2), (8, 1, 1), k=rng.randrange(longest))) for _ in range(count)]


def endless(prompts: list[Path_], branch: bool) -> tuple[int, int]:
    """Pages hit and pages with full KV in a cache that never evicts: PROMPT_END, and BRANCH if asked."""
    full: set[Path_] = set()
    swa: set[Path_] = set()
    hits = full_hits = 0
    for prompt in prompts:
        path = [prompt[: n + 1] for n in range(len(prompt))]
        p = next((n for n, page in enumerate(path) if page not in full), len(path))
        q = max(n for n in range(p + 1) if swa.issuperset(path[max(0, n - WINDOW_PAGES) : n]))
        hits += q
        full_hits += p
        full.update(path)
        swa.update(path[-WINDOW_PAGES:])
        if branch and p > q:
            swa.update(path[max(0, p - WINDOW_PAGES) : p])
    return hits, full_hits


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("branch", [False, True])
def test_equals_a_cache_that_never_evicts(tmp_path: Path, seed: int, branch: bool) -> None:
    prompts = some_prompts(random.Random(seed), 60, 14)
    rules = "prompt_end+branch" if branch else "prompt_end"
    trace = write(tmp_path / "t.jsonl", prompts)
    result = replay(trace, model="mimo-v2-flash", capacity="100k", swa_share=0.8, retention=rules)
    hits, full_hits = endless(prompts, branch)
    assert result["hit_tokens"] == hits * PAGE
    assert result["full_kv_tokens"] == full_hits * PAGE
    assert result["misses"]["never_seen"] == result["unique_tokens"]


def test_a_block_is_several_pages(tmp_path: Path) -> None:
    prompts = some_prompts(random.Random(3), 40, 8)
    trace = write(tmp_path / "t.jsonl", prompts, 512)
    coarse = replay(trace, model="mimo-v2.5", capacity="1M", swa_share=0.8, retention="prompt_end+branch")
    fine = [tuple((b, k) for b in prompt for k in range(8)) for prompt in prompts]
    numbered = [tuple(b * 8 + k for b, k in prompt) for prompt in fine]
    assert coarse["hit_tokens"] == endless(numbered, branch=True)[0] * PAGE


@pytest.mark.parametrize("model", ["mimo-v2-flash", "mimo-v2.5", "mimo-v2.5-pro", "uniform"])
def test_small_pools_keep_the_sums(tmp_path: Path, model: str) -> None:
    trace = write(tmp_path / "t.jsonl", some_prompts(random.Random(5), 300, 60))
    for capacity in ("1500", "4000", "9000"):
        result = replay(trace, model=model, capacity=capacity, swa_share=None if model == "uniform" else 0.9)
        assert result["hit_tokens"] + sum(result["misses"].values()) == result["prompt_tokens"]
        assert 0 < result["token_hit_rate"] <= result["full_kv_hit_rate"] <= result["ceiling"]


def test_capacity_as_bytes_as_tokens_and_as_share(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", some_prompts(random.Random(6), 300, 60))
    full, swa, swa_all = 51_200, 307_200, 307_200 + 15_360 + 12_288
    by_tokens = replay(trace, model="mimo-v2.5-pro", capacity="64000", swa_share=0.5)
    assert by_tokens["full_pages"] == 1000
    assert by_tokens["swa_pages"] == 64_000 * full // (PAGE * swa_all)
    by_bytes = replay(trace, model="mimo-v2.5-pro", capacity="1GiB", swa_share=0.25)
    assert by_bytes["full_pages"] == (3 << 28) // (PAGE * full)
    assert by_bytes["swa_pages"] == (1 << 28) // (PAGE * swa_all)
    assert by_bytes["swa_bytes_share"] == pytest.approx(0.25, abs=0.02)
    by_share = replay(trace, model="mimo-v2.5-pro", capacity="50%", swa_share=0.25)
    whole = by_share["unique_tokens"] * (full + swa) // 2
    assert by_share["full_pages"] == whole * 3 // 4 // (PAGE * full)
    assert by_share["swa_pages"] == whole // 4 // (PAGE * swa)
    assert by_share["scratch_pages"] > 0


def test_the_same_trace_gives_the_same_numbers(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", some_prompts(random.Random(7), 200, 40))
    first, second = (
        replay(trace, model="mimo-v2.5-pro", capacity="6000", swa_share=0.5, seed=seed) for seed in (0, 12345)
    )
    for timing in ("seconds", "requests_per_second"):
        del first[timing], second[timing]
    assert first == second


def test_errors_have_their_class_and_line(tmp_path: Path) -> None:
    trace = write(tmp_path / "t.jsonl", [(0, 1)])
    trace.write_text(trace.read_text() + "{}\n")
    with pytest.raises(mimo_cache.TraceError) as broken:
        replay(trace, model="mimo-v2.5-pro", capacity="1M")
    assert broken.value.line == 3
    with pytest.raises(mimo_cache.InvalidArgument):
        replay(trace, model="mimo-v2.5-pro", capacity="none")
    wrongs: tuple[dict[str, Any], ...] = (
        {"page_size": "64"},
        {"chunk": -1},
        {"seed": 2**64},
        {"model": 5},
        {"swa_share": "half"},
    )
    for wrong in wrongs:
        with pytest.raises(mimo_cache.InvalidArgument, match=next(iter(wrong))):
            replay(trace, **{"model": "mimo-v2.5-pro", "capacity": "1M", **wrong})
    with pytest.raises(mimo_cache.InvalidArgument, match="trace is of type int"):
        replay(5, model="mimo-v2.5-pro", capacity="1M")  # type: ignore[arg-type]
    with pytest.raises(OSError, match="missing"):
        replay(tmp_path / "missing", model="mimo-v2.5-pro", capacity="1M")


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Takes a second or more: many long prompts that share everything."""
    path = tmp_path_factory.mktemp("long") / "t.jsonl"
    line = json.dumps({"t": 0, "s": 1, "i": 640_001, "o": 1, "h": [[0, 10_000]]})
    path.write_text("\n".join([json.dumps({"block_size": 64}), *[line] * 5000]) + "\n")
    return path


def test_progress_may_stop_it_and_counts(long_trace: Path) -> None:
    seen: list[tuple[int, int, int, int]] = []

    def progress(*now: int) -> None:
        seen.append(now)  # type: ignore[arg-type]
        if len(seen) == 3:
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        replay(long_trace, model="uniform", capacity="2M", progress=progress)
    assert len(seen) == 3
    done, total, prompt_tokens, hit_tokens = seen[-1]
    assert 0 < done < total == 5000
    assert prompt_tokens == done * 640_000
    assert hit_tokens == (done - 1) * 640_000


def test_a_signal_interrupts_it(tmp_path: Path) -> None:
    """The trace would take minutes, so that only an interrupted replay ends within one, however busy the machine."""
    path = tmp_path / "endless.jsonl"
    line = json.dumps({"t": 0, "s": 1, "i": 640_001, "o": 1, "h": [[0, 10_000]]})
    path.write_text("\n".join([json.dumps({"block_size": 64}), *[line] * 600_000]) + "\n")
    # A process that was started in the background ignores this signal until told otherwise.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    start = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            replay(path, model="uniform", capacity="2M")
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - start < 60


def test_other_threads_run_meanwhile(long_trace: Path) -> None:
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.005):
            ticks.append(time.monotonic())

    other = threading.Thread(target=tick)
    other.start()
    start = time.monotonic()

    def enough(*_: int) -> None:
        # However busy the machine: until the other thread ran a few times, or long enough to be sure that it cannot.
        if len(ticks) >= 3 or time.monotonic() - start > 60:
            raise StopIteration

    with pytest.raises(StopIteration):
        replay(long_trace, model="uniform", capacity="2M", progress=enough)
    end = time.monotonic()
    stop.set()
    other.join()
    assert sum(start < t < end for t in ticks) >= 3


def test_best_split_finds_the_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(trace: Any, *, swa_share: float | None, **_: Any) -> dict[str, Any]:
        assert swa_share is not None
        if swa_share < 0.1:
            return mimo_cache._core.replay(tmp_path / "t.jsonl", model="mimo-v2.5", capacity="0")
        return {"swa_share": swa_share, "token_hit_rate": 1 - (swa_share - 0.27) ** 2}

    write(tmp_path / "t.jsonl", [(0,)])
    monkeypatch.setattr("mimo_cache.replay.runs.replay", fake)
    tries: list[float] = []
    best = best_split("x", refine=3, on_try=lambda share, _: tries.append(share))
    assert abs(best["swa_share"] - 0.27) < 0.01
    assert min(tries) >= 0.1
    assert sorted(tries) == [t["swa_share"] for t in best["tried"]]
