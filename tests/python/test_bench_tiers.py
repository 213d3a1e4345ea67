"""`mimo-cache bench tiers` at a small scale, but for the copies: figures, floors, sources, plot."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runner needs torch")

from mimo_cache import bench, cli
from mimo_cache.bench import plot, report, tiers, tiers_gcache, tiers_planner, tiers_ttft
from mimo_cache.bench.timing import Figure
from mimo_cache.runner import LLM, Completion

PREFIXES = (1024, 2048, 4096, 8192, 16_384)


def measured(part: str, runs: int = 2) -> dict[str, Figure]:
    """Figures of one part, small."""
    return {f.name: f for f in tiers.run(tiers.Options(runs, 0.02, (part,)))}


def test_a_prefix_comes_from_a_node_and_goes_to_it() -> None:
    figures = measured("gcache")
    for tokens in (4096, 8192, 16_384):
        for name in ("put", "get", "prefetch", "write"):
            assert figures[f"{name}_{tokens}"].median > 0
        assert figures[f"prefetch_{tokens}_vs_get"].median > 0
    assert set(report.checks(list(figures.values()), ("tiers gcache",))) == {
        f"prefetch_{n}" for n in (4096, 8192, 16_384)
    }


def test_what_a_node_delivers_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers_gcache.Site, "_get", lambda _self, _ids: None)
    with pytest.raises(RuntimeError, match="other bytes"):
        measured("gcache")


def test_first_tokens_by_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "first.svg"
    words = ["tiers", "--json", "--only", "ttft", "--scale", "0.02", "--runs", "1", "--plot", str(file)]
    assert bench.main(words) == 0
    printed = capsys.readouterr()
    answer = json.loads(printed.out.splitlines()[-1])
    figures = {f["name"]: f for f in answer["figures"]}
    for tokens in PREFIXES:
        for source in tiers_ttft.SOURCES:
            assert figures[f"ttft_{source}_{tokens}"]["median"] > 0
        assert figures[f"ttft_memory_{tokens}"]["ratio"] == figures[f"ttft_memory_{tokens}_vs_recompute"]["median"]
    assert figures["ttft_tokens_16384"]["median"] == 320
    assert list(answer["checks"]) == ["ttft_memory"]
    # The tiny model's positions end there, and the bench says so.
    assert "ttft_device_32768" not in figures
    assert "16,384 positions: no prefixes of 32,768, 65,536 tokens" in printed.err
    assert file.read_text().count("<circle") == len(PREFIXES) * len(tiers_ttft.SOURCES)


def test_a_request_from_elsewhere_ends_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    generate = LLM.generate

    def elsewhere(self: LLM, *args: Any, **named: Any) -> list[Completion]:
        done = generate(self, *args, **named)
        return [replace(one, sources=replace(one.sources, host=0, computed=one.sources.total)) for one in done]

    monkeypatch.setattr(LLM, "generate", elsewhere)
    with pytest.raises(RuntimeError, match="was to come from"):
        measured("ttft", runs=1)


def test_bookkeeping_is_measured() -> None:
    figures = measured("planner")
    share, step = figures["planner_chunk"].median, figures["planner_chunk_step"].median
    assert 0 < share < 1
    assert 0 < figures["planner_chunk_tier"].median < 1000 * step
    assert all(figures[f"planner_page_{n}"].median > 0 for n in report.PLANNED)
    assert set(report.checks(list(figures.values()), ("tiers planner",))) == {
        "planner_chunk",
        *(f"planner_page_{n}" for n in report.PLANNED),
    }


def test_a_tier_is_watched_without_being_changed() -> None:
    llm = LLM("tiny", memory="8M", max_running=1, host_memory="8M")
    assert llm.tier is not None
    watched = tiers_planner.Watched(llm.tier)
    assert watched.awaits([1, 2, 3]) is False
    assert watched.seconds > 0
    assert watched.saving is False
    assert not hasattr(watched, "no such call")


def test_parts_of_two_benches_with_one_name_have_floors_of_their_own() -> None:
    assert list(report.checks([], ("tiers ttft",))) == ["ttft_memory"]
    assert set(report.checks([], ("ttft",))) == {"ttft_reference", "ttft_torch"}
    parts = {f.part for f in report.FLOORS if f.part.startswith("tiers ")}
    assert parts == {f"tiers {part}" for part in bench.TIERS_PARTS}


def test_a_plot_of_nothing_is_a_plot() -> None:
    assert plot.first_tokens([]).endswith("</svg>\n")
    one = plot.first_tokens([Figure("ttft_host_1024", "ms", 3.0), Figure("ttft_host_1024_vs_x", "1", 0.5)])
    assert one.count("<circle") == 1
    assert "nan" not in one


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(["bench", "tiers", "--only", "ttft"]) == 2
    assert "mimo-cache[runner]" in capsys.readouterr().err
