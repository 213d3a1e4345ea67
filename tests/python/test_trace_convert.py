"""`mimo-cache trace convert`: every format to the trace it means, and what broken input of each comes to."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mimo_cache import InvalidArgument, TraceError, cli
from mimo_cache.replay import replay
from mimo_cache.replay.convert import FORMATS, Options, Report, convert

Lines = Sequence[object]


def put(path: Path, lines: Lines) -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def got(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    data = path.read_bytes()
    lines = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines()
    header, *requests = map(json.loads, lines)
    return header, requests


def converted(tmp_path: Path, kind: str, lines: Lines, **options: Any) -> list[dict[str, Any]]:
    """The requests of a conversion, whose trace can be replayed."""
    out = tmp_path / "out.jsonl.gz"
    report = convert(kind, put(tmp_path / "in.jsonl", lines), out, Options(**options))
    header, requests = got(out)
    assert header["requests"] == report.requests == len(requests)
    assert header["block_size"] == report.block_size
    assert replay(out, model="uniform", capacity="1M", page_size=2)["requests"] == len(requests)
    return requests


def refused(tmp_path: Path, kind: str, lines: Lines, line: int, **options: Any) -> str:
    """The message of a conversion that fails at a line and leaves nothing behind."""
    with pytest.raises(TraceError) as info:
        convert(kind, put(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl", Options(**options))
    assert info.value.line == line
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl"]
    return str(info.value)


MOONCAKE = [
    {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]},
    {"timestamp": 30, "input_length": 1700, "output_length": 6, "hash_ids": [7, 8, 30, 31]},
    {"timestamp": 31, "input_length": 511, "output_length": 1, "hash_ids": [99]},
]


def test_mooncake(tmp_path: Path) -> None:
    assert converted(tmp_path, "mooncake", MOONCAKE) == [
        {"t": 0, "s": -1, "i": 1100, "o": 5, "h": [[0, 2]]},
        {"t": 30, "s": -1, "i": 1700, "o": 6, "h": [[0, 3]]},
        {"t": 31, "s": -1, "i": 511, "o": 1, "h": []},
    ]


def test_bailian_joins_blocks_and_follows_chats(tmp_path: Path) -> None:
    def chat(t: float, id_: int, parent: int, hashes: list[int]) -> dict[str, Any]:
        n = len(hashes) * 16
        return {
            "chat_id": id_,
            "parent_chat_id": parent,
            "timestamp": t,
            "input_length": n,
            "output_length": 2,
            "type": "text",
            "turn": 1,
            "hash_ids": hashes,
        }

    lines = [
        chat(0.5, 10, -1, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        chat(1.25, 11, -1, [1, 2, 3, 4, 5, 6, 7, 99]),
        chat(2.0, 12, 10, [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]),
        chat(2.0, 13, 12, [2, 2, 3, 4]),
    ]
    assert converted(tmp_path, "bailian", lines) == [
        {"t": 500, "s": 0, "i": 144, "o": 2, "h": [[0, 2]]},
        {"t": 1250, "s": 1, "i": 128, "o": 2, "h": [[0, 1], [2, 1]]},
        {"t": 2000, "s": 0, "i": 192, "o": 2, "h": [[0, 2], [3, 1]]},
        {"t": 2000, "s": 0, "i": 64, "o": 2, "h": [[4, 1]]},
    ]
    small = converted(tmp_path, "bailian", lines, block_size=16)
    assert small[0]["h"] == [[0, 9]]
    assert small[1]["h"] == [[0, 7], [9, 1]]
    with pytest.raises(InvalidArgument, match="block size is 24, allowed is a multiple of 16"):
        converted(tmp_path, "bailian", lines, block_size=24)


def test_plain_texts_and_tokens(tmp_path: Path) -> None:
    lines = [
        {"tokens": list(range(130)), "session": "a", "time": 0.25},
        {"tokens": [*range(128), 5, 5], "session": "b", "t": 300, "output_tokens": 4},
        {"prompt": "x" * 600, "session": "a"},
        {"text": "x" * 300 + "é" * 100},
    ]
    assert converted(tmp_path, "plain", lines) == [
        {"t": 250, "s": 0, "i": 130, "o": 0, "h": [[0, 2]]},
        {"t": 300, "s": 1, "i": 130, "o": 4, "h": [[0, 2]]},
        {"t": 300, "s": 0, "i": 150, "o": 0, "h": [[2, 2]]},
        {"t": 300, "s": -1, "i": 125, "o": 0, "h": [[2, 1]]},
    ]
    assert converted(tmp_path, "plain", lines, block_size=26)[0]["h"] == [[0, 5]]
    with pytest.raises(InvalidArgument, match="block size is 0, allowed is 1 to"):
        convert("plain", tmp_path / "in.jsonl", tmp_path / "none.jsonl", Options(block_size=0))


def session_of(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "x", "block_size": 64, "hash_id_scope": "local", "tool_tokens": 128, "requests": requests, **more}


def turn(t: float, tokens: int, hashes: list[int]) -> dict[str, Any]:
    return {"t": t, "type": "s", "in": tokens, "out": 3, "hash_ids": hashes}


def test_kv_cache_tester(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    agent = {"t": 2.0, "type": "subagent", "requests": [turn(0.5, 130, [50, 51])], "tool_tokens": 0}
    put(folder / "b.json", [session_of(turn(0, 200, [1, 2, 3]), agent, turn(9, 260, [1, 2, 3, 4]))])
    put(folder / "a.json.gz", [session_of(turn(0, 192, [1, 2, 3]), turn(2.25, 200, [1, 2, 9]))])
    out = tmp_path / "out.jsonl"
    convert("kv-cache-tester", folder, out, Options(spread=0.0))
    assert got(out)[1] == [
        {"t": 0, "s": 0, "i": 200, "o": 3, "h": [[0, 3]]},
        {"t": 0, "s": 1, "i": 192, "o": 3, "h": [[6, 3]]},
        {"t": 2250, "s": 1, "i": 200, "o": 3, "h": [[6, 2], [9, 1]]},
        {"t": 2500, "s": 0, "i": 130, "o": 3, "h": [[3, 2]]},
        {"t": 9000, "s": 0, "i": 260, "o": 3, "h": [[0, 3], [5, 1]]},
    ]
    convert("kv-cache-tester", folder, out, Options(spread=0.0, share_tools=True))
    assert got(out)[1][1]["h"] == [[0, 2], [6, 1]], "two blocks of tools are the same in both sessions"
    starts = []
    for seed in (1, 1, 2):
        convert("kv-cache-tester", folder, out, Options(seed=seed, spread=1000.0))
        starts.append([r["t"] for r in got(out)[1]])
    assert starts[0] == starts[1] != starts[2]


def stored(hashes: list[object], parent: object, size: int = 16, **more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": [0] * size * len(hashes),
        "block_size": size,
        "lora_id": None,
        **more,
    }


def test_events_are_chains_of_stored_blocks(tmp_path: Path) -> None:
    first = {"ts": 100.0, "events": [stored([1, 2], None), {"type": "BlockRemoved", "block_hashes": [77]}]}
    second = {"ts": 100.5, "events": [stored([3, 4], 2), stored(["a", "b"], None)]}
    third = {"ts": 103.0, "events": [stored([5, 6], 4), {"type": "AllBlocksCleared"}]}
    fourth = {"ts": 110.0, "events": [stored([1, 2], None)], "data_parallel_rank": 0}
    lines = [first, second, third, fourth]
    want = [
        {"t": 0, "s": -1, "i": 64, "o": 0, "h": [[0, 4]]},
        {"t": 500, "s": -1, "i": 32, "o": 0, "h": [[4, 2]]},
        # After the gap it is another request, whose prompt has the blocks before.
        {"t": 3000, "s": -1, "i": 96, "o": 0, "h": [[0, 4], [6, 2]]},
        {"t": 10000, "s": -1, "i": 32, "o": 0, "h": [[0, 2]]},
    ]
    assert converted(tmp_path, "vllm-events", lines, block_size=16) == want

    def array(event: dict[str, Any]) -> list[object]:
        return list(event.values())

    arrays = [[b["ts"], [array(e) for e in cast(Any, b["events"])], 0] for b in lines]
    assert converted(tmp_path, "sglang-events", arrays, block_size=16) == want
    # Blocks of 64 tokens: only those that are whole.
    assert [r["h"] for r in converted(tmp_path, "vllm-events", lines)] == [[[0, 1]], [], [[0, 1]], []]
    # Host copies and windows' groups tell of the same blocks again, or of others.
    noise = [
        stored([1], None, medium="CPU"),
        stored([9], None, group_idx=1),
        stored([8], None, kv_cache_spec_kind="sliding_window"),
    ]
    batch = {"ts": 100.0, "events": [*noise, *first["events"]]}  # type: ignore[misc]
    assert converted(tmp_path, "vllm-events", [batch], block_size=16) == [{**want[0], "i": 32, "h": [[0, 2]]}]


GOOD: dict[str, Lines] = {
    "mooncake": MOONCAKE,
    "bailian": [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 64, "hash_ids": [1, 2, 3, 4]},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 1.5, "input_length": 64, "hash_ids": [1, 2, 3, 5]},
    ],
    "plain": [{"tokens": [1] * 64, "t": 1}, {"prompt": "y" * 256, "t": 2}],
    "vllm-events": [{"ts": 1.0, "events": [stored([1], None, 64)]}, {"ts": 9.0, "events": [stored([2], None, 64)]}],
    "sglang-events": [[1.0, [["BlockStored", [1], None, [], 64, None]]], [9, [["BlockStored", [3], 1, [], 64, None]]]],
}

BAD = [
    ("mooncake", "{", "not JSON"),
    ("mooncake", "[" * 100_000, "not JSON"),
    ("mooncake", "\x00\x01", "not JSON"),
    ("mooncake", [1], "allowed is one JSON object"),
    ("mooncake", {**MOONCAKE[1], "timestamp": -1}, "timestamp is -1"),
    ("mooncake", {**MOONCAKE[1], "timestamp": "now"}, "timestamp is 'now'"),
    ("mooncake", '{"timestamp": NaN, "input_length": 4, "hash_ids": []}', "timestamp is nan"),
    ("mooncake", {**MOONCAKE[1], "timestamp": 1e300}, "timestamp is 1e+300"),
    ("mooncake", {**MOONCAKE[1], "input_length": 1 << 31}, "input_length is 2147483648"),
    ("mooncake", {**MOONCAKE[1], "input_length": True}, "input_length is True"),
    ("mooncake", {**MOONCAKE[1], "output_length": 1.5}, "output_length is 1.5"),
    ("mooncake", {**MOONCAKE[1], "hash_ids": [7, 8]}, "have 3 full blocks of 512, and 2 are named"),
    ("mooncake", {**MOONCAKE[1], "hash_ids": "7"}, "hash_ids is '7'"),
    ("mooncake", {**MOONCAKE[1], "hash_ids": [7, 8, 1 << 64]}, "at most 64 bits"),
    ("mooncake", {**MOONCAKE[1], "hash_ids": [7, 8, 2.5]}, "hash_ids has 2.5"),
    ("bailian", {"chat_id": None, "timestamp": 1, "input_length": 4, "hash_ids": []}, "chat_id is None"),
    ("bailian", {"chat_id": 1, "timestamp": 1, "input_length": 64, "hash_ids": [1]}, "4 full blocks of 16"),
    ("plain", {"session": 1}, "named by nothing"),
    ("plain", {"prompt": "x", "tokens": []}, "allowed is one of tokens, prompt and text"),
    ("plain", {"tokens": [1, -1]}, "tokens has -1"),
    ("plain", {"tokens": [1, 1 << 32]}, "tokens has 4294967296"),
    ("plain", {"tokens": [1, "2"]}, "tokens has '2'"),
    ("plain", {"tokens": [1, True]}, "tokens has True"),
    ("plain", {"tokens": [False, 1.5]}, "tokens has False"),
    ("plain", {"tokens": {"1": 2}}, "allowed is a list of token ids"),
    ("plain", {"prompt": 5}, "prompt is 5, allowed is text"),
    ("plain", {"prompt": "x", "session": [1]}, "session is"),
    ("plain", {"prompt": "x", "t": 0.5}, "t is 0.5"),
    ("plain", {"prompt": "x", "t": 0}, "arrives at 0 ms, allowed is at least 1"),
    ("vllm-events", {"ts": 2.0}, "events is None"),
    ("vllm-events", {"ts": 2.0, "events": [5]}, "found event 5"),
    ("vllm-events", {"events": []}, "ts is None"),
    ("vllm-events", {"ts": 2.0, "events": [stored([4], 999, 64)]}, "allowed is null or a block stored before"),
    ("vllm-events", {"ts": 2.0, "events": [stored([1], 1, 64)]}, "two parents"),
    ("vllm-events", {"ts": 2.0, "events": [stored([4], None, 32)]}, "block_size is 32, allowed is 64"),
    ("vllm-events", {"ts": 2.0, "events": [stored([[4]], None, 64)]}, "block_hashes is"),
    ("sglang-events", [2.0, [["BlockStored", 4, None, [], 64, None]]], "block_hashes is 4"),
    ("sglang-events", 7, "allowed is a batch of events"),
]


@pytest.mark.parametrize(("kind", "line", "words"), BAD)
def test_bad_lines_are_named_or_passed_over(tmp_path: Path, kind: str, line: object, words: str) -> None:
    good = GOOD[kind]
    assert words in refused(tmp_path, kind, [good[0], line, *good[1:]], 2)
    out = tmp_path / "out.jsonl"
    report = convert(kind, put(tmp_path / "in.jsonl", [good[0], line, *good[1:]]), out, Options(skip_bad=True))
    assert (report.skipped_lines, report.first_skipped[:12]) == (1, "trace line 2")
    clean = tmp_path / "clean.jsonl"
    convert(kind, put(tmp_path / "in.jsonl", good), clean, Options())
    assert [r["i"] for r in got(out)[1]] == [r["i"] for r in got(clean)[1]]


def test_truncated_and_unordered_input(tmp_path: Path) -> None:
    source = put(tmp_path / "in.jsonl.gz", MOONCAKE * 1)
    data = source.read_bytes()
    source.write_bytes(data[: len(data) - 12])
    with pytest.raises(TraceError, match="damaged or cut short"):
        convert("mooncake", source, tmp_path / "out.jsonl", Options())
    assert "allowed is at least 31" in refused_in_order(tmp_path)
    assert [r["t"] for r in converted(tmp_path, "mooncake", MOONCAKE[::-1], sort=True)] == [0, 30, 31]
    with pytest.raises(TraceError, match="has no request"):
        convert("mooncake", put(tmp_path / "in.jsonl", []), tmp_path / "empty.jsonl", Options())


def refused_in_order(tmp_path: Path) -> str:
    folder = tmp_path / "order"
    folder.mkdir()
    return refused(folder, "mooncake", MOONCAKE[::-1], 2)


def test_kv_cache_tester_names_file_and_request(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    put(folder / "a.json", [session_of(turn(0, 200, [1, 2, 3]))])
    for content, words in (
        ("{", "b.json is not JSON"),
        ({"requests": 5}, "requests of b.json is 5"),
        (session_of(turn(0, 64, [1]), turn(1, 64, [-1])), "request 2 of b.json: hash_ids of scope local"),
        (session_of(turn(0, 64, [1]), {"t": 1}), "request 2 of b.json: in is None"),
        (session_of(block_size=16), "block_size of b.json is 16"),
        (session_of(turn(0, 64, [1]), hash_id_scope="all"), "hash_id_scope is 'all'"),
    ):
        put(folder / "b.json", [content])
        with pytest.raises(TraceError, match=words) as info:
            convert("kv-cache-tester", folder, tmp_path / "out.jsonl", Options())
        assert info.value.line == 2
        report = convert("kv-cache-tester", folder, tmp_path / "out.jsonl", Options(skip_bad=True))
        assert (report.requests, report.skipped_lines) == (1, 1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgument, match="a folder of files"):
        convert("kv-cache-tester", tmp_path / "empty", tmp_path / "out.jsonl", Options())


def test_the_number_of_blocks_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="distinct blocks is 3, allowed is at most 2"):
        converted(tmp_path, "mooncake", MOONCAKE, max_blocks=2)
    with pytest.raises(InvalidArgument, match="more than 1"):
        converted(tmp_path, "vllm-events", GOOD["vllm-events"], max_blocks=1)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_whatever_a_line_holds_it_is_a_request_or_an_error(tmp_path: Path, data: st.DataObject) -> None:
    """Good lines with values replaced at random: a trace that replays, or a typed error."""
    kind = data.draw(st.sampled_from(sorted(GOOD)))
    lines = [json.loads(json.dumps(line)) for line in GOOD[kind]]
    value = data.draw(
        st.one_of(st.none(), st.integers(-5, 1 << 65), st.floats(), st.text(max_size=3), st.lists(st.integers(-1, 9)))
    )
    target: Any = data.draw(st.sampled_from(lines))
    for _ in range(data.draw(st.integers(0, 3))):
        keys = (
            list(target) if isinstance(target, dict) else list(range(len(target))) if isinstance(target, list) else []
        )
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        parent, target = target, target[key]
    if target in lines:
        return
    parent[key] = value
    out = tmp_path / "out.jsonl"
    try:
        report: Report = convert(
            kind, put(tmp_path / "in.jsonl", lines), out, Options(skip_bad=data.draw(st.booleans()))
        )
    except (TraceError, InvalidArgument):
        return
    assert replay(out, model="uniform", capacity="1M", page_size=2)["requests"] == report.requests


def test_blocks_of_texts_are_shared_as_far_as_the_texts_are(tmp_path: Path) -> None:
    rng = random.Random(4)
    texts = ["".join(rng.choices("ab", (9, 1), k=rng.randrange(40))) for _ in range(80)]
    requests = converted(tmp_path, "plain", [{"prompt": text} for text in texts], block_size=2)
    ids: dict[str, int] = {}
    for text, request in zip(texts, requests, strict=True):
        flat = [i for first, count in request["h"] for i in range(first, first + count)]
        assert flat == [ids.setdefault(text[: 8 * n + 8], len(ids)) for n in range(len(text) // 8)]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = put(tmp_path / "in.jsonl", [*MOONCAKE, "{"]), tmp_path / "out.jsonl.gz"
    words = ["trace", "convert", "--from", "mooncake", str(source), str(out)]
    assert cli.main(words) == 2
    assert "trace line 4: not JSON" in capsys.readouterr().err
    assert cli.main([*words, "--skip-bad", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == {"requests": 3, "distinct_blocks": 3, "block_size": 512, "skipped_lines": 1}
    assert "1 lines were passed over, the first of them: trace line 4" in told.err
    first = out.read_bytes()
    assert cli.main([*words, "--skip-bad"]) == 0
    assert capsys.readouterr().out == "3 requests, 3 distinct blocks of 512 tokens\n"
    assert out.read_bytes() == first, "the same input gives the same file"
    assert cli.main([*words[:-1], "-", "--skip-bad"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    for wrong in (["--from", "morse"], ["--from", "mooncake", "--block-size", "100"]):
        assert cli.main(["trace", "convert", *wrong, str(source), str(out)]) == 2
        assert "allowed is" in capsys.readouterr().err
    assert cli.main([*words[:4], str(source), str(source)]) == 2
    assert "the input; allowed is another file" in capsys.readouterr().err
    assert cli.main([*words[:4], str(tmp_path / "missing"), str(out)]) == 2
    assert set(FORMATS) == {"mooncake", "bailian", "kv-cache-tester", "vllm-events", "sglang-events", "plain"}
