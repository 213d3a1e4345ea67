"""The story that the demo tells with a cluster: what was dropped comes back from GCache, a dead node is a miss and
never a wrong token, and nothing is left on the machine afterwards, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runner needs torch")

from mimo_cache import MimoCacheError, cli
from mimo_cache.demo.model import cluster, html, report, sources
from mimo_cache.demo.model.phases import SHARES, TITLES, stops
from mimo_cache.demo.model.run import Result, Served, Settings, run
from mimo_cache.demo.model.scenario import Scenario
from mimo_cache.gcache.errors import GCacheError
from mimo_cache.runner import RequestError

SMALL: dict[str, Any] = {"longest": 1000, "new_tokens": 6}
PATIENCE = 60.0


def children(pid: int | str = "self") -> list[int]:
    """Processes that a process has started, from any of its threads."""
    tasks = Path(f"/proc/{pid}/task")
    return [int(child) for task in tasks.glob("*/children") for child in task.read_text().split()]


@contextlib.contextmanager
def folders_in(place: Path) -> Iterator[None]:
    """Makes all temporary folders inside `place`, which must be empty again afterwards, and no process be left."""
    before = children()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(place))
        patch.setattr(cluster, "SHARED", place)
        yield
    assert list(place.iterdir()) == []
    assert children() == before


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder with a short name, for the nodes' sockets."""
    with tempfile.TemporaryDirectory(prefix="story-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def story(place: Path) -> Result:
    """A small run on nodes whose memory holds a part of it only."""
    with folders_in(place), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "SLABS", 6)
        return run(Settings(turns=16, seed=1, **SMALL))


def turns_of(story: Result, name: str) -> list[Served]:
    return story.phase(next(phase for phase in story.phases if phase.name == name))


def from_gcache(turns: list[Served]) -> int:
    return sum(n for name, n in sources.total(turns).items() if name.startswith("gcache"))


# --- what happens ---------------------------------------------------------------------------------------------------


def test_the_story_is_told_whole_and_is_identical(story: Result) -> None:
    assert story.verdict.first is None
    assert story.valid
    assert [phase.name for phase in story.phases] == list(TITLES)
    assert sum(len(story.phase(phase)) for phase in story.phases) == len(story.served) == 16
    assert report.text(story).splitlines()[-1] == "identical"


def test_every_prompt_token_has_one_source_and_what_is_computed_has_causes(story: Result) -> None:
    for turn in story.served:
        found = sources.counted(turn.sources)
        assert sum(found.values()) == turn.prompt
        assert min(found.values()) >= 0
        assert found["computed"] == sum(turn.report.misses.values())
    total = sources.total(story.served)
    assert sum(total.values()) == story.prompt_tokens
    assert sum(total.values()) - total["computed"] == story.hits


def test_what_was_dropped_comes_back_from_gcache(story: Result) -> None:
    turns = turns_of(story, "dropped")
    first = turns[0]
    assert first.kind == "retry"
    assert (first.sources.device, first.sources.host) == (0, 0), "both were dropped"
    assert first.sources.computed <= story.page, "all of it came from GCache but for the last page"
    assert from_gcache(turns[:1]) >= first.prompt - story.page


def test_a_dead_node_costs_tokens_and_its_restart_brings_them_back(story: Result) -> None:
    dead, back = turns_of(story, "killed"), turns_of(story, "restarted")
    assert story.killed is not None
    assert story.killed[0] in cluster.NAMES
    assert 0 < dead[0].number - story.killed[2] <= 3, "in the last wave before"
    assert dead[0].missing, "the node has a page of it"
    assert dead[0].again > 0
    assert all(turn.again <= turn.sources.computed for turn in story.served)
    assert not any(turn.missing for turn in story.served if turn not in dead)
    again = [turn for turn in back if turn.kind == "retry"]
    assert again[0].sources.device == again[0].sources.host == 0
    assert from_gcache(again) > 0
    holdings = story.holdings
    assert sorted(holdings) == list(cluster.NAMES), "all nodes answer at the end"
    assert holdings[story.killed[0]].memory + holdings[story.killed[0]].disk > 0


def test_nodes_keep_a_part_on_disk_that_does_not_fit_memory(story: Result) -> None:
    assert sum(holding.demoted for holding in story.holdings.values()) > 0
    assert sources.total(story.served)["gcache_disk"] > 0, "and read it from there"
    assert story.books.gcache["pages_out"] > story.books.gcache["pages_failed"] > 0, "a dead node takes nothing"
    assert story.books.copying > 0


# --- what is said ---------------------------------------------------------------------------------------------------


def test_the_line_for_scripts_says_the_same_as_the_turns(story: Result) -> None:
    said = json.loads(report.json_line(story))
    assert said["sources"] == sources.total(story.served)
    assert sum(said["sources"].values()) == said["prompt_tokens"]
    assert [phase["name"] for phase in said["phases"]] == list(TITLES)
    for name in said["sources"]:
        assert sum(phase["sources"][name] for phase in said["phases"]) == said["sources"][name]
    assert said["overlap"]["copied_seconds"] > 0
    assert said["overlap"]["waited_seconds"] >= 0
    assert said["cluster"]["killed"] == dict(zip(("node", "process", "turn"), story.killed or (), strict=True))
    assert said["cluster"]["nodes"] == 3
    times = said["ttft_by_source"]
    assert any(name.startswith("gcache") for name in times)
    assert all(one["turns"] > 0 and one["ttft"] > 0 and one["ttft_uncached"] > 0 for one in times.values())


def test_the_report_has_what_was_done_between_the_turns(story: Result) -> None:
    text = report.text(story)
    assert [text.index(f"{title}.\n") for title in TITLES.values()] == sorted(
        text.index(f"{title}.\n") for title in TITLES.values()
    )
    name, process, turn = story.killed or ("", 0, 0)
    flat = " ".join(text.split())
    assert f"{name} (process {process}) was killed with -9 while turn {turn} was being computed." in flat
    missing = sum(one.missing for one in story.served)
    assert f"In {missing} of {len(turns_of(story, 'killed'))} turns pages of the dead node were missing." in flat
    assert len(re.findall(r"^ +\d+ +\d+ (?:read|ask|retry|edit|compact) ", text, re.MULTILINE)) == 16
    assert max(map(len, text.splitlines())) <= 120


def test_the_page_has_the_plots_and_fetches_nothing(story: Result) -> None:
    pytest.importorskip("matplotlib")
    page = html.page(story)
    assert page.count("<svg") == 3
    assert all(title in page for title in TITLES.values())
    assert "class=ok" in page
    without_names = re.sub(r'(xmlns(:\w+)?|rdf:resource)="[^"]*"|<!DOCTYPE[^>]*>', "", page)
    assert not re.search(r"<script|<link|<img|@import|\bsrc=|url\((?!#)", without_names)


def test_main_source_is_of_most_of_the_prompt(story: Result) -> None:
    for turn in story.served:
        name = sources.main_source(turn)
        if name is None:
            continue
        assert 2 * sources.counted(turn.sources)[name] > turn.prompt - turn.sources.computed
        assert turn.sources.computed <= 0.2 * turn.prompt


# --- phases and turns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 5, 10, 20, 60, 1000])
def test_phases_begin_in_order_as_far_as_there_are_turns(turns: int) -> None:
    found = stops(turns)
    assert list(found) == sorted(set(found))
    assert all(0 < stop < turns for stop in found)
    assert len(found) == min(len(SHARES), turns - 1)


def test_sessions_ask_again_after_a_stop_and_no_wave_reaches_over_it() -> None:
    scenario = Scenario(0, 60, 3000, lambda text: list(text.encode()))
    at, done, before = (20, 21, 40), 0, set()
    for wave in scenario.waves(at):
        assert not any(done < stop < done + len(wave) for stop in at)
        prompts = [tuple(turn.prompt) for turn in wave]
        if done in at:
            assert [turn.kind for turn in wave] == ["retry"]
            assert prompts[0] in before
        before.update(prompts)
        for turn in wave:
            turn.session.answer(list(b" answer %d" % done))
        done += len(wave)
    assert done == 60


@pytest.mark.parametrize("turns", [1, 3, 4])
def test_a_run_of_few_turns_tells_what_it_can(turns: int, place: Path) -> None:
    with folders_in(place):
        result = run(Settings(turns=turns, seed=1, **SMALL))
    assert result.valid
    assert [phase.name for phase in result.phases] == list(TITLES)[: len(stops(turns)) + 1]
    assert (result.killed is not None) == (len(stops(turns)) > 1)
    assert len(result.holdings) == (2 if turns == 3 else 3), "the run of three turns ends with a dead node"
    assert report.text(result).splitlines()[-1] == "identical"


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["kv", "mtp"])
def test_one_damaged_row_is_found(kind: str, place: Path) -> None:
    with folders_in(place):
        result = run(Settings(turns=6, seed=1, sabotage=kind, **SMALL))
    assert result.damaged
    assert not result.valid
    assert report.text(result).splitlines()[-1] == "NOT identical"


def test_a_run_that_breaks_off_leaves_nothing(place: Path) -> None:
    with folders_in(place), pytest.raises(RequestError, match="no row was damaged"):
        run(Settings(turns=1, sabotage="kv", **SMALL))


def test_without_nodes_one_sentence_says_how_to_do_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        raise GCacheError(f"{name} is not installed")

    monkeypatch.setattr(cluster, "program", missing)
    assert cli.main(["demo", "--turns", "1"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "gcache-node is not installed; --no-cluster runs the demo on the device's pools alone" in err


def test_a_node_that_does_not_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(cluster, "ON_DISK", 0)
    with folders_in(place), pytest.raises(MimoCacheError, match=r"node-1 does not start: .*--no-cluster"):
        run(Settings(turns=1, seed=1, **SMALL))


def test_without_a_cluster_the_device_is_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.html"
    assert cli.main(["demo", "--no-cluster", "--turns", "2", "--json", "--html", str(page)]) == 0
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert said["cluster"] is None
    assert said["sources"]["host"] == said["sources"]["gcache_memory"] == 0
    assert [phase["name"] for phase in said["phases"]] == ["sessions"]
    assert "no cluster: device pools alone" in err
    assert page.read_text().count("<svg") >= 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_node_and_no_folder_is_left_when_it_is_ended(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "mimo_cache.cli", "demo", "--turns", "40"]
    with (
        tempfile.TemporaryDirectory(prefix="story-") as folder,
        subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": folder}
        ) as demo,
    ):
        try:
            assert demo.stderr is not None
            assert "turn" in demo.stderr.readline(), "turns are served"
            nodes = children(demo.pid)
            assert len(nodes) == 3
            words = [Path(f"/proc/{pid}/cmdline").read_text().split("\0") for pid in nodes]
            places = {Path(line[line.index("--config") + 1]).parent for line in words}
            assert all(place.is_dir() for place in places)
            demo.send_signal(number)
            begin = time.monotonic()
            said = demo.communicate(timeout=PATIENCE)[1]
            assert demo.returncode in {130, 128 + number}, said
            assert "Traceback" not in said
            assert time.monotonic() - begin < PATIENCE
            assert [pid for pid in nodes if Path(f"/proc/{pid}").exists()] == []
            assert [place for place in places if place.exists()] == []
            assert [path.name for path in Path(folder).iterdir() if path.name.startswith("mimo-demo")] == []
        finally:
            demo.kill()
