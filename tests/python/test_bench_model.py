"""`mimo-cache bench model` at a small scale: every figure is measured, and floors and output agree."""

from __future__ import annotations

import importlib.util
import json
import sys

import pytest

pytest.importorskip("torch", reason="the runner needs torch")

from mimo_cache import bench, cli
from mimo_cache.bench import hub_peer, model, report
from mimo_cache.bench.timing import Figure

CHECKS = {"ttft_reference", "ttft_torch", "bookkeeping_1", "bookkeeping_8", "bookkeeping_prefill", "decode"}


def measured(part: str) -> dict[str, Figure]:
    """Figures of one part, small."""
    return {f.name: f for f in model.run(model.Options(runs=2, scale=0.01, parts=(part,)))}


def test_reuse_shortens_the_time_to_the_first_token() -> None:
    figures = measured("ttft")
    for backend in ("reference", "torch"):
        ours, plain = figures[f"ttft_reused_{backend}"], figures[f"ttft_uncached_{backend}"]
        assert 0 < ours.median < plain.median
        assert ours.ratio == figures[f"ttft_ratio_{backend}"].median


def test_bookkeeping_is_a_share() -> None:
    figures = measured("bookkeeping")
    assert set(figures) == {"bookkeeping_decode_1", "bookkeeping_decode_8", "bookkeeping_prefill"}
    assert all(0 < f.median < 1 for f in figures.values())


def test_decoding_is_compared_with_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="it is compared with transformers")
    figures = measured("decode")
    assert set(figures) == {"decode_torch", "decode_transformers", "decode_ratio"}
    assert figures["decode_torch"].ratio == figures["decode_ratio"].median > 0
    assert (figures["decode_torch"].against or "").startswith("transformers 5.")
    assert "different tokens" not in capsys.readouterr().err


def test_without_transformers_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(hub_peer, "find_spec", lambda name: None if name == "transformers" else find(name))
    figures = measured("decode")
    assert list(figures) == ["decode_torch"]
    assert (figures["decode_torch"].ratio, figures["decode_torch"].against) == (
        None,
        "transformers, which is not installed",
    )
    assert report.missing(list(figures.values()), ("decode",)) == ["decode_ratio"]


def test_every_part_has_floors() -> None:
    assert {f.check for f in report.FLOORS if f.part in bench.MODEL_PARTS} == CHECKS
    assert set(report.checks([Figure("decode_ratio", "1", 1.5)], bench.MODEL_PARTS).values()) == {True, False}


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["model", "--json", "--only", "bookkeeping", "--scale", "0.01", "--runs", "1"]) == 0
    out = capsys.readouterr().out
    answer = json.loads(out.splitlines()[-1])
    assert len(answer["figures"]) == 3
    assert set(answer["checks"]) == {"bookkeeping_1", "bookkeeping_8", "bookkeeping_prefill"}
    assert "bookkeeping at most 3 %" in out


@pytest.mark.parametrize("argv", [["model", "--only", "turn"], ["model", "--plot", "x"], ["model", "--runs", "0"]])
def test_wrong_arguments_exit_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        bench.main(argv)
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(["bench", "model"]) == 2
    assert "mimo-cache[runner]" in capsys.readouterr().err
