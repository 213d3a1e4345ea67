"""The demo that runs a model is a check that people trust, so it is checked itself: a small run is identical, its
numbers add up, and a run with one damaged row is not."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the runner needs torch")

from mimo_cache import cli  # noqa: E402
from mimo_cache.demo import main  # noqa: E402
from mimo_cache.demo.model import report  # noqa: E402
from mimo_cache.demo.model.compare import Rows, Verdict, same  # noqa: E402
from mimo_cache.demo.model.run import Result, Settings, run  # noqa: E402
from mimo_cache.demo.model.scenario import SYSTEM, Scenario, Session, Turn  # noqa: E402
from mimo_cache.demo.report import CAUSES  # noqa: E402
from mimo_cache.runner import Completion, RequestError, Sources  # noqa: E402

SMALL: dict[str, Any] = {"longest": 1000, "new_tokens": 6}


@pytest.fixture(scope="module")
def small() -> Result:
    """One small run."""
    return run(Settings(turns=10, seed=1, **SMALL))


def test_a_small_run_is_identical(small: Result) -> None:
    verdict = small.verdict
    assert verdict.first is None
    assert small.valid
    assert verdict.exact
    assert verdict.tokens >= len(small.served) == 10
    assert verdict.logits == 320 * verdict.tokens
    # Every row that was computed is compared in each head, and the reused windows as well.
    assert verdict.mtp_rows > 3 * (small.tally.computed - 4 * len(small.served))


def test_a_small_run_reuses_and_is_short_of_pages(small: Result) -> None:
    assert small.hits > 0.3 * small.prompt_tokens
    assert small.prompt_tokens == small.hits + small.misses.total()
    assert small.stats.full_evicted > 0
    assert small.tally.computed < small.plain_tally.computed - small.hits // 2
    assert small.stats.open_sequences == 0


def test_the_report_and_the_line_for_scripts_agree(small: Result) -> None:
    said = json.loads(report.json_line(small))
    assert said["identical"] is said["verified"] is True
    assert said["compared"] == "bits"
    assert said["turns"] == 10
    assert said["token_hit_rate"] == said["hit_rate"] == said["hit_tokens"] / said["prompt_tokens"]
    assert said["prompt_tokens"] == said["hit_tokens"] + sum(said["misses"].values())
    assert set(said["misses"]) == set(CAUSES)
    assert said["ttft_ratio"] == pytest.approx(said["ttft_cached"] / said["ttft_uncached"])
    assert 0 < said["bookkeeping_share"] < 1
    text = report.text(small)
    assert text.splitlines()[-1] == "identical"
    assert len(re.findall(r"^ +\d+ +\d+ (?:read|ask|retry|edit|compact) ", text, re.MULTILINE)) == 10
    assert f"{said['hit_tokens']:,}" in text
    assert f"{said['full_pages_evicted']:,} full pages" in text


@pytest.mark.parametrize(("kind", "says"), [("kv", r"logit \d+ of new token \d is"), ("mtp", "the row of MTP head 0")])
def test_one_damaged_row_is_found(kind: str, says: str) -> None:
    result = run(Settings(turns=6, seed=1, sabotage=kind, **SMALL))
    assert result.damaged
    assert not result.valid
    assert result.verdict.different > 0
    assert re.search(rf"turn \d \(\w+, session \d\): {says}", result.verdict.first or "")
    assert report.text(result).splitlines()[-1] == "NOT identical"
    assert json.loads(report.json_line(result))["identical"] is False


def test_a_run_too_short_to_damage_anything_says_so() -> None:
    with pytest.raises(RequestError, match="no row was damaged"):
        run(Settings(turns=1, sabotage="kv", **SMALL))


def test_the_torch_backend_compares_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--backend", "torch", "--turns", "3"]) == 0
    out, err = capsys.readouterr()
    said = json.loads(out.splitlines()[-1])
    assert len(out.splitlines()) == 1
    assert (said["identical"], said["compared"], said["turns"]) == (True, "tokens", 3)
    assert said["mtp_rows_compared"] == 0
    assert "new tokens, not bits" in err
    assert "100 %" in err
    assert err.splitlines()[-1] == "identical"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--turns", "0"], "turns is 0, allowed is 1 to"),
        (["--seed", "-1"], "seed is -1"),
        (["--backend", "cuda9"], "cuda9"),
        (["--backend", "torch", "--sabotage", "kv"], "needs the backend reference"),
        (["--sabotage", "swa"], "swa"),
        (["--can"], "--can"),
        (["--scale", "0.5"], "--scale"),
        (["--model", "/nowhere"], "/nowhere"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = cli.main(["demo", *words])
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert says in err


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert cli.main(["demo"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "mimo-cache[runner]" in err


# --- the sessions --------------------------------------------------------------------------------------------------


def played(turns: int, seed: int, longest: int = 3000) -> tuple[Scenario, list[list[Turn]]]:
    """A scenario whose model answers the number of the turn."""
    scenario = Scenario(seed, turns, longest, lambda text: list(text.encode()))
    waves = []
    for wave in scenario.waves():
        waves.append(wave)
        for turn in wave:
            turn.session.answer(list(b" answer %d" % len(waves)))
    return scenario, waves


def test_sessions_are_a_function_of_the_seed() -> None:
    def flat(seed: int) -> list[list[int]]:
        return [turn.prompt for wave in played(20, seed)[1] for turn in wave]

    assert flat(3) == flat(3)
    assert flat(3) != flat(4)


def test_sessions_do_all_that_agents_do() -> None:
    scenario, waves = played(150, 0)
    turns = [turn for wave in waves for turn in wave]
    assert len(turns) == 150
    assert {turn.kind for turn in turns} == {"read", "ask", "retry", "edit", "compact"}
    assert {len(wave) for wave in waves} == {1, 2, 3}
    assert len(scenario.sessions) > 3
    system = list(SYSTEM.encode())
    assert all(turn.prompt[: len(system)] == system for turn in turns)
    order = [turn.session.number for turn in turns]
    assert sum(a != b for a, b in pairwise(order)) > len(order) // 3, "sessions take turns"
    assert max(len(turn.prompt) for turn in turns) < 3000 * 1.2 + 500


def test_what_kinds_of_turns_share_with_the_turn_before() -> None:
    _, waves = played(150, 0)
    sessions: dict[int, list[tuple[Turn, int]]] = {}
    for at, wave in enumerate(waves, 1):
        for turn in wave:
            sessions.setdefault(turn.session.number, []).append((turn, at))
    checked = dict.fromkeys(("read", "ask", "retry", "edit", "compact"), 0)
    for turns in sessions.values():
        for (before, number), (turn, _) in pairwise(turns):
            checked[turn.kind] += 1
            if turn.kind in {"read", "ask"}:
                start = before.prompt + list(b" answer %d" % number)
                assert turn.prompt[: len(start)] == start, "the answer is part of the next prompt"
                assert len(turn.prompt) > len(start)
            elif turn.kind == "retry":
                assert turn.prompt == before.prompt
                assert turn.seed != before.seed
            elif turn.kind == "edit":
                assert turn.prompt != before.prompt
                assert turn.prompt[: len(SYSTEM)] == before.prompt[: len(SYSTEM)]
            else:
                assert len(turn.prompt) < len(before.prompt)
                assert b"Summary of the work so far:  answer %d" % number in bytes(turn.prompt)
    assert min(checked.values()) > 0, checked


# --- the comparison ------------------------------------------------------------------------------------------------


def completion(tokens: list[int], logits: Any) -> Completion:
    """What a turn made."""
    report: Any = SimpleNamespace()
    return Completion("", tokens, "length", 0.0, report, Sources(0, 0, 0, 0, 0, 0), 0.0, logits)


def compared(exact: bool, change: Callable[[Any, list[Rows]], None], tokens: tuple[int, ...] = (1, 2)) -> Verdict:
    """A turn of two tokens and one MTP head, of which one side is changed."""
    logits, rows = torch.arange(10.0).reshape(2, 5), torch.arange(12.0).reshape(6, 2)
    mine, my_rows = logits.clone(), [Rows(2, [rows[2:].clone()], 6)]
    change(mine, my_rows)
    verdict = Verdict(exact)
    session = Session(1, 1000, [("a", "b" * 5000)], lambda text: [0] * len(text), np.random.default_rng(0))
    turn = Turn(session, "read", [1], 0)
    verdict.turn(
        7, turn, completion(list(tokens), mine), completion([1, 2], logits), my_rows, [Rows(0, [rows[:3], rows[3:]], 6)]
    )
    return verdict


def test_equal_sides_are_identical() -> None:
    verdict = compared(True, lambda logits, rows: None)
    assert verdict.identical
    assert (verdict.tokens, verdict.logits, verdict.mtp_rows) == (2, 10, 4)


def test_nothing_compared_is_not_identical() -> None:
    assert not Verdict(True).identical


@pytest.mark.parametrize("value", [float("nan"), -0.0, 1e-45])
def test_one_other_bit_in_a_logit_is_a_difference(value: float) -> None:
    def change(logits: Any, rows: list[Rows]) -> None:
        logits[0, 0] = value  # it was 0.0

    verdict = compared(True, change)
    assert not verdict.identical
    assert verdict.first is not None
    assert verdict.first.startswith("turn 7 (read, session 1): logit 0 of new token 1 is")


def test_one_other_bit_in_an_mtp_row_is_a_difference() -> None:
    def change(logits: Any, rows: list[Rows]) -> None:
        rows[0].parts[0][1, 1] += 1e-6

    assert compared(True, change).first == (
        "turn 7 (read, session 1): the row of MTP head 0 at position 3 has other bits with the cache"
    )
    assert compared(False, change).identical


def test_other_tokens_are_excused_only_where_two_logits_tie() -> None:
    assert not compared(False, lambda logits, rows: None, (1, 3)).identical
    assert not compared(True, lambda logits, rows: None, (1, 3)).identical
    verdict = Verdict(False)
    tie = torch.tensor([[0.0, 2.0, 2.0 - 5e-5], [0.0, 1.0, 5.0]])
    turn: Any = SimpleNamespace(kind="ask", session=SimpleNamespace(number=1))
    verdict.turn(1, turn, completion([2, 0], tie), completion([1, 2], tie), [], [])
    assert (verdict.identical, verdict.ties) == (True, 1)


def test_fewer_tokens_are_a_difference() -> None:
    assert not compared(False, lambda logits, rows: None, (1,)).identical


def test_same_looks_at_bits() -> None:
    assert same(torch.tensor([1.0]), torch.tensor([1.0]))
    assert not same(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert same(torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0], dtype=torch.bfloat16))
