"""`mimo-cache bench`: that its scenarios measure what they say, and that floors, figures and output agree."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from mimo_cache import bench
from mimo_cache.bench import evict, hit_rate, match, memory, peer, plot, report, tiers_copy, turn
from mimo_cache.bench import scenarios as sc
from mimo_cache.bench.timing import Figure, figure


def test_scenarios_are_functions_of_their_seed() -> None:
    assert np.array_equal(sc.conversation(3), sc.conversation(3))
    assert np.array_equal(sc.conversation(3)[: sc.SYSTEM_PROMPT], sc.conversation(11)[: sc.SYSTEM_PROMPT])
    assert not np.array_equal(sc.conversation(3)[sc.SYSTEM_PROMPT :], sc.conversation(11)[sc.SYSTEM_PROMPT :])
    assert [len(sc.cuts(n)) + 1 for n in (1, 13, 196)] == [1, 13, 196]
    assert all(cut % sc.PAGE == 0 for n in (13, 196) for cut in sc.cuts(n))
    first = [t.whole.size for t, _ in zip(sc.hit_rate_turns(5), range(50), strict=False)]
    again = [t.whole.size for t, _ in zip(sc.hit_rate_turns(5), range(50), strict=False)]
    assert first == again


def test_every_scenario_runs_small() -> None:
    assert turn.run(0.005)["turn"] > 0
    cold = match.cold(13, 1, 0.001)
    assert cold.match[0] > 0
    assert cold.rotated_bytes >= 2 * 2 * 4 * sc.LONG_PROMPT
    assert evict.run(0.02)["chunk"] > 0
    assert match.peek_overhead(1, 0.02)[0] > 0
    assert 4 < memory.bytes_per_token(4_000_000) < 20


def test_more_swa_pages_never_hit_less() -> None:
    rates = [hit_rate.run(tokens, 0.1) for tokens in sc.HIT_RATE_SWA_TOKENS.values()]
    assert [r.usable for r in rates] == sorted(r.usable for r in rates)
    assert all(0 < r.usable <= r.full_kv < 1 for r in rates)


def test_a_figure_is_the_median_of_its_runs() -> None:
    f = figure("x", "us", [3.0, 1.0, 2.0]).versus(4.0, "other")
    assert (f.median, f.spread, f.ratio) == (2.0, 1.0, 0.5)
    assert set(f.as_json()) == {"name", "value", "unit", "median", "spread", "against", "ratio"}
    assert f.as_json()["value"] == f.as_json()["median"]


def test_floors_that_were_not_measured_are_not_reached() -> None:
    parts = ("peek", "memory")
    figures = [Figure("peek_overhead", "us", 0.5)]
    assert report.checks(figures, parts) == {"peek_overhead": True, "memory": False}
    assert report.missing(figures, parts) == ["bytes_per_token"]
    assert report.checks([Figure("peek_overhead", "us", 3.5)], ("peek",)) == {"peek_overhead": False}
    assert len({floor.check for floor in report.FLOORS}) == len(report.FLOORS)


def test_a_ratio_says_whom_it_is_against() -> None:
    nobody = peer.Peer(enabled=False, scale=1.0)
    nobody.run("a")
    assert nobody.value("a", "turn") == (130, "SGLang 0.5.23, recorded figure")
    somebody = peer.Peer(enabled=False, scale=1.0, runs={"a": [{"turn": 100.0}, {"turn": 300.0}, {"turn": 200.0}]})
    assert somebody.value("a", "turn") == (200.0, "SGLang 0.5.23, measured in this run")


def test_the_plot_has_a_point_for_every_size() -> None:
    figures = [Figure(f"growth_{n}_{m}M", "us", 1.0 + m) for n in ("match", "turn") for m in (1, 10, 100)]
    svg = plot.growth(figures)
    assert svg.count("<circle") == 6
    assert svg.startswith("<svg")
    assert "nan" not in svg
    assert not math.isinf(float(svg.split('cy="')[1].split('"')[0]))


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["tree", "--json", "--only", "peek", "--scale", "0.02", "--runs", "2", "--no-peer"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [f["name"] for f in answer["figures"]] == ["peek_overhead"]
    assert list(answer["checks"]) == ["peek_overhead"]


def test_a_node_with_a_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = ["demote", "promotion", "quiet"]
    words = ["disk", "--json", "--scale", "0.02", "--runs", "1", "--dir", str(tmp_path), "--only", *parts]
    assert bench.main(words) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    figures = {f["name"]: f["median"] for f in answer["figures"]}
    assert figures["node_cold_get_32"] > 0
    assert [figures[f"promotion_new_get_{n}_from_memory"] for n in (1, 2, 3)] == [0, 0, 1]
    assert [figures[f"promotion_hot_get_{n}_from_memory"] for n in (1, 2, 3)] == [0, 1, 1]
    assert figures["quiet_device_bytes"] == 0
    assert set(answer["checks"]) == {"promotion", "promotion_new", "disk_idle_io", "disk_idle_cpu"}
    assert list(tmp_path.iterdir()) == []


def test_copies_between_tiers(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["tiers", "--json", "--scale", "0.02", "--runs", "1", "--only", "copy", "overlap"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    figures = {f["name"]: f["median"] for f in answer["figures"]}
    for tokens in (4096, 8192, 16384):
        assert figures[f"load_{tokens}_vs_memcpy"] > 0
        assert figures[f"save_{tokens}"] > 0
    assert figures["overlap_load"] > 0
    assert figures["overlap_even_stalls"] > 0
    assert set(answer["checks"]) == {"load_4096", "load_8192", "load_16384", "overlap"}


def test_byte_volumes_of_pro_on_one_of_eight_ranks() -> None:
    assert tiers_copy.LAYER_BYTES * tiers_copy.FULL_LAYERS == 6400 * tiers_copy.PAGE
    layers = tiers_copy.SWA_LAYERS + tiers_copy.MTP_HEADS
    assert tiers_copy.LAYER_BYTES * layers + tiers_copy.HIDDEN_BYTES == 2_678_784


@pytest.mark.parametrize(
    "argv", [["forest"], ["tree", "--runs", "0"], ["tree", "--scale", "2"], ["tree", "--only", "everything"], []]
)
def test_wrong_arguments_exit_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        bench.main(argv)
    assert exit_info.value.code == 2
    assert "mimo-cache bench" in capsys.readouterr().err
