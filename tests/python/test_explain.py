"""Stories: of requests of a trace, in numbers and in sentences, and of lookups on a live cache."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from helpers import Steps, plain
from mimo_cache import InvalidArgument, _core, cli
from mimo_cache.replay import explain, replay, story
from replay_models import conversations, write

HYBRID: dict[str, Any] = {
    "model": "mimo-v2-flash",
    "capacity": "9000",
    "swa_share": 0.5,
    "retention": "prompt_end+branch",
}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 requests in a cache that holds a few conversations; every fourth has a session."""
    path = write(tmp_path_factory.mktemp("t") / "t.jsonl", conversations(random.Random(1), 300))
    header, *lines = path.read_text().splitlines()
    requests = [json.loads(line) for line in lines]
    for n, request in enumerate(requests):
        request["t"] = n * 1500
        request["s"] = n % 40 // 10 if n % 4 == 0 else -1
    path.write_text("\n".join([header, *map(json.dumps, requests)]) + "\n")
    return path


def runs(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def flat(request: dict[str, Any]) -> list[int]:
    return [i for first, count in request["h"] for i in range(first, first + count)]


@pytest.mark.parametrize("policy", _core.POLICIES)
def test_stories_add_up_to_the_replay(trace: Path, policy: str) -> None:
    """Every request asked by itself, in a few replays of whole sessions: the sums are the replay's."""
    options = {**HYBRID, "policy": policy}
    result = replay(trace, **options)
    told = [explain(trace, request=n, **options)[0] for n in range(1, 301, 7)]
    sessions = [s for number in range(4) for s in explain(trace, session=number, **options)]
    assert {s["request"] for s in sessions} == {n for n in range(1, 301) if (n - 1) % 4 == 0}
    by_request = {s["request"]: s for s in sessions}
    for one in told:
        assert by_request.get(one["request"], one) == one
    for one in [*told, *sessions]:
        assert one["usable"] + sum(one["misses"].values()) == one["prompt_tokens"]
        missed = {part["cause"]: 0 for part in one["stretches"]}
        at = one["usable"]
        for part in one["stretches"]:
            assert part["from"] == at
            at = part["to"]
            missed[part["cause"]] += part["to"] - part["from"]
        assert missed == {cause: count for cause, count in one["misses"].items() if count}
    assert result["token_hit_rate"] > 0.3
    assert {cause for one in sessions for cause, n in one["misses"].items() if n} == {"window", "evicted", "never_seen"}


@pytest.mark.parametrize("policy", _core.POLICIES)
def test_every_word_of_a_story_follows_from_the_trace(trace: Path, policy: str) -> None:
    """Who used each block last, and whether those who pushed something out came in between."""
    requests = runs(trace)
    checked = 0
    for number in range(4):
        for one in explain(trace, session=number, policy=policy, **HYBRID):
            blocks = flat(requests[one["request"] - 1])
            earlier = [set(flat(r)) for r in requests[: one["request"] - 1]]
            for part in one["seen"]:
                users = {
                    max((n for n, ids in enumerate(earlier, 1) if block in ids), default=None)
                    for block in blocks[part["from"] // 64 : part["to"] // 64]
                }
                assert users == {part["by"]["request"] if part["by"] else None}
            for part in one["stretches"]:
                if part["cause"] != "evicted" or part["dropped"] is None:
                    continue
                culprit = part["dropped"]["by"]["request"]
                last = max(n for n, ids in enumerate(earlier, 1) if blocks[part["from"] // 64] in ids)
                assert last < culprit < one["request"], "what was used later cannot have been gone before"
                assert part["dropped"]["t_ms"] == requests[culprit - 1]["t"]
                assert part["dropped"]["why"] == "full_pool"
                checked += 1
            ends = {len(flat(r)) * 64 for r in requests[: one["request"] - 1]}
            for lost in one["lost_checkpoints"]:
                assert one["usable"] < lost["boundary"] <= one["full_kv_match"]
                assert "BRANCH" in lost["kinds"] or lost["boundary"] in ends
                checked += 1
    assert checked > 20


def test_a_story_in_sentences(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["explain", str(trace), "--model", "mimo-v2-flash", "--capacity", "9000", "--swa-share", "0.5"]
    words += ["--retention", HYBRID["retention"]]
    assert cli.main([*words, "--session", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count("prompt tokens.") == out.count("\nRequest ") == len(explain(trace, session=2, **HYBRID))
    for phrase in (
        "are new in the trace",
        "The cache has full KV up to",
        "needed room in the full pool",
        "checkpoint at",
        "It is the first of its session.",
        "seconds before",
    ):
        assert phrase in out, phrase
    assert cli.main([*words, "--request", "12", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["stories"] == explain(trace, request=12, **HYBRID)
    assert story.text(told["stories"][0]).startswith("Request 12 at 0:00:16.500: ")


def test_what_cannot_be_told_is_refused(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ({"request": 0}, {"request": 301}, {"session": 9}, {}, {"request": 1, "session": 1}, {"request": "1"}):
        with pytest.raises(InvalidArgument):
            explain(trace, **wrong, **HYBRID)
    assert cli.main(["explain", str(trace), "--capacity", "16GiB", "--request", "999"]) == 2
    assert "request is 999, allowed is 1 to 300" in capsys.readouterr().err
    assert cli.main(["explain", str(trace), "--session", "-5"]) == 2
    assert "not negative" in capsys.readouterr().err


def test_a_live_cache_names_the_sequence_that_evicted() -> None:
    cache = plain(full_pages=16, swa_pages=40, scratch_pages=16)
    steps = Steps(cache)
    steps.serve([*range(40), 1])
    waiting = cache.request([*range(1000, 1032), 1])
    with waiting.open() as seq:
        while seq.committed < seq.known:
            steps.run(seq, min(16, seq.known - seq.committed))
        culprit = seq.id
    told = cache.explain([*range(40), 1])
    (part,) = (p for p in told.stretches if p["cause"] == "evicted")
    assert (part["from"], part["to"]) == (told.report.full_kv_match, 40)
    assert part["dropped"]["sequence"] == culprit
    assert part["dropped"]["why"] == "full_pool"
    assert 0 < part["dropped"]["calls_ago"] < 20
    assert f"when sequence {culprit} needed pages of the full pool." in str(told)
    before = part["dropped"]["calls_ago"]
    steps.serve([1])
    (part,) = (p for p in cache.explain([*range(40), 1]).stretches if p["cause"] == "evicted")
    assert part["dropped"]["calls_ago"] > before


def test_a_live_cache_tells_of_lost_windows() -> None:
    # 6 SWA pages beside the scratch: the running window and one checkpoint of two pages.
    cache = plain(full_pages=200, swa_pages=23, scratch_pages=16, n_mtp=0)
    steps = Steps(cache)
    for first in range(0, 4000, 1000):
        steps.serve([*range(first, first + 40), 7])
    told = cache.explain([*range(40), 7])
    assert told.report.misses["window"] == 40
    (lost,) = told.lost_checkpoints
    assert (lost["boundary"], lost["kinds"], lost["dropped"]["why"]) == (40, ["PROMPT_END"], "swa_pool")
    assert "The PROMPT_END checkpoint at 40 was dropped" in str(told)
    assert "needed pages of the SWA pool." in str(told)


def test_without_ghosts_a_live_cache_says_less() -> None:
    cache = plain(full_pages=16, swa_pages=40, scratch_pages=16, ghosts=0)
    steps = Steps(cache)
    steps.serve([*range(40), 1])
    steps.serve([*range(1000, 1032), 1])
    told = cache.explain([*range(40), 1])
    assert told.report.misses["evicted"] == 0
    assert [p["dropped"] for p in told.stretches] == [None] * len(told.stretches)
