"""`mimo-cache replay --suite`, `--optimum` and `--html`: the table, the JSON, and a page whose plots are drawn."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mimo_cache import InvalidArgument, TraceError, cli
from mimo_cache.replay import replay, suite
from replay_models import belady, conversations, leaf_first_lru, write

OPTIONS = {"retention": "prompt_end+branch", "policy": "lru", "page_size": 64, "chunk": 8192, "seed": 0}
OPTIONS |= {"skip_bad": False, "prefill_rate": None, "decode_rate": 50.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small traces; one has the name of a known trace, and so its capacities."""
    path = tmp_path_factory.mktemp("traces")
    prompts = conversations(random.Random(1), 700)
    write(path / "tau_airline.jsonl", prompts, times=[n * 2000 for n in range(len(prompts))])
    write(path / "other.jsonl", conversations(random.Random(2), 100))
    (path / "README.md").write_text("no trace")
    return path


def test_rows_are_what_single_replays_say(folder: Path) -> None:
    other, tau = suite.run(folder, OPTIONS)
    assert [runs.name for runs in (other, tau)] == ["other", "tau_airline"]
    prompts = conversations(random.Random(1), 700)
    unique, total = tau.facts["unique_pages"], sum(map(len, prompts))
    rows = {(row.model, row.percent): row for row in tau.rows}
    assert set(rows) == {("uniform", p) for p in (1, 2, 5, 10)} | {
        ("mimo-v2.5-pro", p) for p in (0.2, 0.5, 1, 2, 5, 10)
    }
    for percent in (1, 5):
        row = rows["uniform", percent]
        assert row.ours is not None
        assert row.optimum is not None
        pages = row.ours["full_pages"]
        assert pages == int(unique * percent / 100)
        assert row.ours["hit_tokens"] == 64 * leaf_first_lru(prompts, pages - 1)
        # The bound may round a page up.
        best = [belady(prompts, pages + more) / total for more in (0, 1)]
        assert best[0] <= row.optimum["token_hit_rate"] <= best[1]
    for row in [*other.rows, *tau.rows]:
        if row.ours is None:
            assert row.refused
            continue
        assert row.optimum is not None
        assert row.lru is row.ours, "one replay where the policy is LRU"
        assert row.ours["token_hit_rate"] <= row.optimum["token_hit_rate"] <= row.ours["ceiling"]
    small = rows["mimo-v2.5-pro", 1]
    assert small.ours is not None
    assert small.ours["swa_bytes_share"] > 0.15, "the default share leaves no room for a window here"
    assert rows["mimo-v2.5-pro", 0.2].refused
    curve = tau.facts["optimum"]["belady"]
    assert curve == sorted(curve)
    assert curve[-1] == tau.facts["optimum"]["endless"]


def test_the_command_prints_the_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["replay", "--suite", str(folder)]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["trace", "model", "capacity", "ours", "LRU", "optimum", "reached", "ceiling", "SWA"]
    assert sum(line.startswith("tau_airline") for line in lines) == 10
    assert sum(line.startswith("other") for line in lines) == 10
    assert "too small for any split" in out
    assert "tau_airline, uniform, 5 %: token hit rate" in err
    assert cli.main(["replay", "--suite", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["rows"]) == 20
    row = next(r for r in told["rows"] if (r["trace"], r["model"], r["capacity"]) == ("tau_airline", "uniform", "5%"))
    assert row["token_hit_rate"] == row["replay"]["token_hit_rate"]
    given: dict[str, Any] = {"model": "uniform", "capacity": "5%"}
    assert row["token_hit_rate"] == replay(folder / "tau_airline.jsonl", **given)["token_hit_rate"]
    assert row["lru_token_hit_rate"] == replay(folder / "tau_airline.jsonl", policy="lru", **given)["token_hit_rate"]
    assert f"{100 * row['token_hit_rate']:.2f}" in out


def check_page(path: Path, plots: int) -> str:
    """A page that fetches nothing, whose plots are XML with something drawn."""
    text = path.read_text()
    assert text.startswith("<!doctype html>")
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(drawings) == plots
    for drawing in drawings:
        assert len(ElementTree.fromstring(drawing).findall(".//{http://www.w3.org/2000/svg}path")) > 5
    links = re.findall(r"(?:src|href)=[\"']?([^\"'> ]+)", text)
    assert all(link.startswith("#") for link in links), "nothing is fetched"
    assert "<script" not in text
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", text, flags=re.DOTALL)
    return text


def test_the_page_of_a_suite(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.html"
    assert cli.main(["replay", "--suite", str(folder), "--html", str(page)]) == 0
    # Of each trace: two curves over capacity, three plots over time a model, misses by cause, distances.
    text = check_page(page, 2 * (2 + 2 * 3 + 1 + 1))
    for words in ("<h2>tau_airline</h2>", "Hit rate against capacity", "Misses by cause", "Distances between uses"):
        assert words in text
    assert f"wrote {page}" in capsys.readouterr().err


def test_the_page_of_one_trace(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.html"
    for capacity in ("10%", "20GiB"):
        words = ["replay", str(folder / "other.jsonl"), "--capacity", capacity, "--best-split", "--html", str(page)]
        assert cli.main([*words, "--json"]) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert "samples" not in result
        assert result["optimum"]["kind"] == "upper_bound"
        check_page(page, 1 + 3 + 1)


def test_the_optimum_beside_a_replay(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(folder / "tau_airline.jsonl")
    assert cli.main(["replay", trace, "--capacity", "10%", "--best-split", "--optimum"]) == 0
    out = capsys.readouterr().out
    assert "no cache can hit more: Belady with all bytes for full pages" in out
    assert "Belady with every layer of every token in one pool" in out
    assert "% of the optimum" in out
    assert cli.main(["replay", trace, "--capacity", "10%", "--model", "uniform", "--optimum"]) == 0
    assert "Belady, exact for one pool" in capsys.readouterr().out


def test_rows_have_the_best_split_or_the_given_one(folder: Path) -> None:
    free = [row for trace in suite.run(folder, OPTIONS) for row in trace.rows if row.ours and row.model != "uniform"]
    assert free
    for row in free:
        assert row.ours
        assert row.lru
        for found in (row.ours, row.lru):
            assert found["token_hit_rate"] == max(t["token_hit_rate"] for t in found["tried"])
    held = [row for trace in suite.run(folder, OPTIONS, swa_share=0.3) for row in trace.rows if row.ours]
    assert {row.ours["swa_share"] for row in held if row.ours} == {0.0, 0.3}


def test_what_does_not_go_together_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, part in (
        ([], "a trace (TRACE) or --suite FOLDER"),
        ([str(folder / "other.jsonl"), "--suite", str(folder)], "not both"),
        (["--suite", str(tmp_path)], "a folder with files *.jsonl"),
        (["--suite", str(folder / "README.md")], "allowed is a folder of traces"),
        ([str(folder / "other.jsonl"), "--html", str(tmp_path / "no" / "page.html")], "No such file"),
    ):
        assert cli.main(["replay", *words]) == 2
        assert part in capsys.readouterr().err
    (tmp_path / "bad.jsonl").write_text('{"block_size": 64}\n{}\n')
    with pytest.raises(TraceError, match=r"bad\.jsonl: trace line 2: ") as info:
        suite.run(tmp_path, OPTIONS)
    assert info.value.line == 2
    with pytest.raises(InvalidArgument, match="policy"):
        suite.run(folder, {**OPTIONS, "policy": "fifo"})


def test_bad_lines_are_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = conversations(random.Random(3), 60)
    good = write(tmp_path / "good.jsonl", prompts).read_text().splitlines()
    lines = list(good)
    # An id that comes after nothing, though it has come after others; times that go back; and broken lines.
    orphan = json.dumps({"t": 70, "s": -1, "i": 128, "o": 1, "h": [[json.loads(good[1])["h"][0][0] + 1, 2]]})
    for at, line in ((58, orphan), (40, "{"), (30, json.dumps({**json.loads(good[5]), "t": 1})), (9, '{"t": 8}')):
        lines.insert(at, line)
    (tmp_path / "bad.jsonl").write_text("\n".join(lines) + "\n")
    words = ["--model", "uniform", "--capacity", "9000", "--json", "--optimum"]
    assert cli.main(["replay", str(tmp_path / "bad.jsonl"), *words]) == 2
    assert "trace line 10: " in capsys.readouterr().err
    assert cli.main(["replay", str(tmp_path / "bad.jsonl"), *words, "--skip-bad"]) == 0
    out, err = capsys.readouterr()
    assert "4 lines were passed over, the first of them: trace line 10" in err
    left = json.loads(out)
    assert cli.main(["replay", str(tmp_path / "good.jsonl"), *words]) == 0
    clean = json.loads(capsys.readouterr().out)
    assert left.pop("skipped_lines") == 4
    assert clean.pop("skipped_lines") == 0
    for timing in ("seconds", "requests_per_second", "trace"):
        del left[timing], clean[timing]
    assert left == clean
