"""The canary demo is a check that people trust, so it is checked itself: a small run verifies and uses every call of
the lifecycle, its numbers add up, and a run with one wrong row does not verify."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mimo_cache.demo import command, main, mix, run
from mimo_cache.demo.canary import HEADS, Pages, truth_of
from mimo_cache.demo.device import Buffers, Device, Verdict
from mimo_cache.demo.lane import Lane
from mimo_cache.demo.report import CAUSES, Result
from mimo_cache.demo.workload import Session, Turn

SMALL = ("--scale", "0.1")


@pytest.fixture(scope="module")
def small() -> Result:
    """One small run."""
    return run.run(seed=0, scale=0.1)


def test_a_small_run_is_verified(small: Result) -> None:
    assert small.verdict.messages == []
    assert small.verified
    assert small.verdict.rows > 1_000_000
    assert 0.5 < small.hit_rate <= small.full_kv_rate < 1


def test_a_small_run_uses_the_whole_lifecycle(small: Result) -> None:
    tally = small.tally
    for event in ("finished", "aborted", "forked", "preempted"):
        assert tally.events[event] > 0, event
    for count in (tally.rejected, tally.resumed_hits, tally.copies, tally.rebuilds, small.mirrored):
        assert count > 0
    assert small.last.full_evicted > 0
    assert small.last.checkpoints_evicted > 0
    assert tally.misses["evicted"] > 0
    assert tally.misses["window"] > 0


def test_a_single_pool_of_the_same_hit_rate_is_larger(small: Result) -> None:
    assert small.single_bytes is not None
    assert small.single_bytes > 1.5 * small.bytes


def test_the_last_line_is_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--canary", "--json", *SMALL]) == 0
    out, err = capsys.readouterr()
    said = json.loads(out.splitlines()[-1])
    assert said["verified"] is True
    assert 0 < said["token_hit_rate"] < 1
    assert set(said["misses"]) == set(CAUSES)
    assert said["prompt_tokens"] == said["hit_tokens"] + sum(said["misses"].values())
    assert said["token_hit_rate"] == pytest.approx(said["hit_tokens"] / said["prompt_tokens"])
    assert said["seconds"] > 0
    assert "100 %" in err
    assert err.rstrip().endswith("verified")


@pytest.mark.parametrize("kind", command.SABOTAGE)
def test_one_wrong_row_is_found(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--canary", "--json", "--sabotage", kind, *SMALL]) == 1
    out, err = capsys.readouterr()
    said = json.loads(out.splitlines()[-1])
    assert said["verified"] is False
    assert said["rows_wrong"] > 0
    name = {"full": "full KV", "swa": "SWA KV", "mtp": "MTP head 0"}[kind]
    assert re.search(rf"{name} is wrong in \d+ rows from position \d+, page \d+, last written by request \d+", err)
    assert err.rstrip().endswith("NOT VERIFIED")


def test_the_page_with_plots_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "demo.html"
    assert main(["--html", str(path), *SMALL, "--canary"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("verified")
    page = path.read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    assert "<p class=ok>verified" in page
    assert "<script" not in page
    links = set(re.findall(r"(?:src|href)=[\"']?([^\"' >]+)", page))
    assert all(link.startswith("#") for link in links), links


def test_plots_without_matplotlib_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    assert main(["--canary", "--html", str(tmp_path / "demo.html")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "matplotlib" in err


@pytest.mark.parametrize("scale", ["0", "1.5", "nan", "much"])
def test_a_scale_outside_the_range_is_refused(scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--canary", "--scale", scale])
    assert stop.value.code == 2
    assert scale in capsys.readouterr().err


def test_the_shipped_traces_are_small_and_say_where_they_come_from() -> None:
    data = files("mimo_cache.demo").joinpath("data")
    traces = {f.name: f for f in data.iterdir() if f.name.endswith(".jsonl")}
    assert set(traces) == {"claude_code.jsonl", "tau_airline.jsonl"}
    assert sum(len(f.read_bytes()) for f in data.iterdir()) <= 300_000
    notice = data.joinpath("NOTICE").read_text(encoding="utf-8")
    for name, file in traces.items():
        header, *requests = file.read_text(encoding="utf-8").splitlines()
        head = json.loads(header)
        assert head["licence"] in {"Apache-2.0", "MIT"}
        assert head["source"].split()[1] in notice
        assert name in notice
        assert len(requests) == head["requests"]


def test_the_workload_is_a_function_of_the_seed() -> None:
    def flat(seed: int) -> list[bytes]:
        return [t.prompt.tobytes() + t.output.tobytes() for s in mix.build(seed, 0.05) for t in s.turns]

    assert flat(3) == flat(3)
    assert flat(3) != flat(4)


def test_answers_come_back_inside_the_next_prompt() -> None:
    sessions = [s for s in mix.build(0, 0.3) if s.source == "claude_code"]
    pairs = [(a, b) for s in sessions for a, b in zip(s.turns, s.turns[1:], strict=False)]
    back = [
        np.array_equal(b.prompt[len(a.prompt) : len(a.prompt) + len(a.output)], a.output)
        for a, b in pairs
        if len(b.prompt) > len(a.prompt) + len(a.output) and np.array_equal(b.prompt[: len(a.prompt)], a.prompt)
    ]
    assert sum(back) > len(back) // 2 > 0


def turn(n: int = 200, **changes: Any) -> Turn:
    """A turn of `n` prompt tokens and 20 to come."""
    tokens = np.arange(n + 20, dtype=np.uint32)
    return Turn(**{"prompt": tokens[:n], "output": tokens[n:], **changes})


def test_canaries_depend_on_all_tokens_before_and_on_nothing_after() -> None:
    tokens = np.arange(100, dtype=np.uint32)
    other = tokens.copy()
    other[40] += 1
    a, b = truth_of(turn(), tokens, 3), truth_of(turn(), other, 3)
    for x, y in ((a.full, b.full), (a.swa, b.swa)):
        assert np.array_equal(x[:40], y[:40])
        assert not (x[40:] == y[40:]).any()
    for k in range(3):
        x, y = a.mtp(k, 0, 99 - k), b.mtp(k, 0, 99 - k)
        assert np.array_equal(x[: 40 - k - 1], y[: 40 - k - 1])
        assert not (x[40 - k - 1 :] == y[40 - k - 1 :]).any()


@pytest.mark.parametrize(
    "changes", [{"salt": b"x"}, {"adapter": b"x"}, {"spans": [(0, 8, b"\1" * 32)]}, {"spans": [(0, 8, b"\2" * 32)]}]
)
def test_canaries_depend_on_namespace_and_pictures(changes: dict[str, Any]) -> None:
    tokens = np.arange(100, dtype=np.uint32)
    a, b = truth_of(turn(), tokens, 1), truth_of(turn(**changes), tokens, 1)
    assert not (a.full == b.full).any()
    assert not (a.swa == b.swa).any()


def test_salt_and_adapter_are_different_fields() -> None:
    tokens = np.arange(100, dtype=np.uint32)
    a = truth_of(turn(salt=b"ab", adapter=b"c"), tokens, 1)
    b = truth_of(turn(salt=b"a", adapter=b"bc"), tokens, 1)
    assert not (a.full == b.full).any()


class Handmade:
    """A device with one sequence of 200 tokens, 190 of them committed, in pages 1 to 4 of both pools."""

    def __init__(self) -> None:
        self.verdict, self.published = Verdict(), set[int]()
        self.device = Device(
            Pages(8, 8, 64, len(HEADS) - 1, np.random.default_rng(0)), 128, self.verdict, self.published.__contains__
        )
        self.lane = Lane.of(7, Session("handmade", 0.0, []), turn(), 3)
        self.lane.enter(SimpleNamespace(committed=0, known=200, full_write_from=0))
        self.lane.reserved = 190
        self.fill(1)
        self.device.write(self.lane, 190, 200)
        self.lane.committed, self.lane.reserved = 190, 10
        self.lane.mtp_done = [self.lane.final(k) for k in range(3)]
        self.device.end_oldest()

    def fill(self, step: int) -> None:
        """Hands out the pages in order."""
        tables = Buffers.of(1, 4, 4)
        tables.full[0] = tables.swa[0] = [1, 2, 3, 4]
        tables.base[0], tables.lens[0] = 0, self.lane.committed + self.lane.reserved
        self.device.start(step, [self.lane], tables)


def test_what_was_written_is_found_again() -> None:
    made = Handmade()
    made.fill(2)
    assert made.verdict.wrong == 0
    assert made.verdict.rows > 190


def test_a_page_given_away_before_its_step_retired_is_found() -> None:
    made = Handmade()
    made.fill(2)
    made.device.pages.full[2 * 64 : 3 * 64] = 0
    assert made.verdict.wrong == 0
    made.device.end_oldest()
    assert made.verdict.wrong == 1
    assert (
        "step 2 (end), request 7 (handmade): full KV is wrong in 64 rows from position 64" in made.verdict.messages[0]
    )


def test_a_late_write_into_a_page_that_has_a_new_owner_is_found() -> None:
    made = Handmade()
    made.fill(2)
    made.device.ended(made.lane)  # and its last page goes, too early, to a sequence that is short and reads it:
    second = Lane.of(8, Session("handmade", 0.0, []), turn(63), 3)
    second.enter(SimpleNamespace(committed=0, known=63, full_write_from=0))
    second.reserved = 63
    tables = Buffers.of(1, 1, 1)
    tables.full[0] = tables.swa[0] = [3]
    tables.base[0], tables.lens[0] = 0, 63
    made.device.start(3, [second], tables)
    made.device.write(second, 63, 64)
    second.committed, second.reserved, second.known = 63, 0, 64
    made.device.end_oldest()
    found = made.verdict.wrong
    made.device.start(4, [second], tables)
    assert made.verdict.wrong > found
    assert "request 8" in made.verdict.messages[-1]


def test_a_write_into_a_published_page_is_found() -> None:
    made = Handmade()
    made.fill(2)
    made.published.add(3)
    made.device.write(made.lane, 4, 205)
    assert made.verdict.wrong == 1
    assert "SWA page 3, which is published" in made.verdict.messages[0]


def test_the_null_page_is_refused() -> None:
    made = Handmade()
    tables = Buffers.of(1, 4, 4)
    tables.full[0], tables.swa[0] = [1, 2, 3, 0], [1, 2, 3, 4]
    tables.base[0], tables.lens[0] = 0, 200
    made.device.start(2, [made.lane], tables)
    assert any("null page" in m for m in made.verdict.messages)
