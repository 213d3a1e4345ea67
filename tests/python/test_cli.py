"""The contract of the command line: streams, exit codes, sentences."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

import mimo_cache
from mimo_cache import cli
from mimo_cache._files import check_writable

QUICK = ["--model", "mimo-v2-flash", "--capacity", "1M", "--json"]

HEADER = {"block_size": 64, "requests": 3, "name": "small"}
REQUESTS = [
    {"t": 0, "s": 1, "i": 640, "o": 9, "h": [[0, 10]]},
    {"t": 5, "s": 1, "i": 800, "o": 9, "h": [[0, 10], [20, 2]]},
    {"t": 9, "s": 2, "i": 70, "o": 9, "h": [[40, 1]]},
]


def write(path: Path, lines: Sequence[object]) -> Path:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "small.jsonl.gz", [HEADER, *REQUESTS])


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    try:
        code = cli.main([str(word) for word in words])
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def fails(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The sentence of a command that must fail as the contract says."""
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert err.startswith("mimo-cache")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err


def test_json_is_the_last_line_of_stdout(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    code, out, err = run(capsys, "replay", trace, "--capacity", "1M", "--json")
    assert code == 0
    assert err == ""
    result = json.loads(out.splitlines()[-1])
    for key in ("token_hit_rate", "ceiling", "full_kv_hit_rate", "requests_per_second", "swa_bytes_share"):
        assert isinstance(result[key], float), key
    assert result["requests"] == 3
    assert result["prompt_tokens"] == 23 * 64
    assert result["hit_tokens"] == 10 * 64
    assert result["unique_tokens"] == 13 * 64
    assert result["token_hit_rate"] == pytest.approx(10 / 23)
    assert result["ceiling"] == pytest.approx(10 / 23)
    assert result["hit_tokens"] + sum(result["misses"].values()) == result["prompt_tokens"]
    assert result["misses"]["never_seen"] == 13 * 64


def test_the_table_names_every_cause(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    code, out, _ = run(capsys, "replay", trace, "--capacity", "1M")
    assert code == 0
    for word in ("token hit rate", "ceiling", "scratch", "outside the capacity", "never_seen", "window", "evicted"):
        assert word in out


def test_a_bar_on_a_terminal_is_taken_off_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = [HEADER, *[{"t": 0, "s": 1, "i": 640_001, "o": 1, "h": [[0, 10_000]]}] * 1000]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, out, err = run(
        capsys, "replay", write(tmp_path / "long.jsonl", lines), "--model", "uniform", "--capacity", "2M"
    )
    assert code == 0
    assert "#" not in out
    assert "of 1,000 requests, token hit rate so far 99" in err
    assert "the header speaks of 3 requests" in err.rsplit("\r\x1b[K", 1)[1]


def test_best_split_states_the_share(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    code, out, err = run(capsys, "replay", trace, "--capacity", "4GiB", "--best-split", "--json")
    assert code == 0
    result = json.loads(out.splitlines()[-1])
    shares = [t["swa_share"] for t in result["tried"]]
    assert len(shares) >= 6
    assert result["swa_share"] in shares
    assert result["token_hit_rate"] == max(t["token_hit_rate"] for t in result["tried"])
    assert f"SWA share {result['swa_share']:g}: token hit rate" in err


def test_best_split_of_a_model_with_one_group(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    code, out, _ = run(capsys, "replay", trace, "--capacity", "1M", "--model", "uniform", "--best-split", "--json")
    assert code == 0
    result = json.loads(out)
    assert result["swa_pages"] == result["scratch_pages"] == result["swa_bytes_share"] == 0
    assert result["token_hit_rate"] == result["full_kv_hit_rate"] == pytest.approx(10 / 23)


def test_an_adaptive_split_says_where_it_went(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # Long prompts that come back three times each, and far too many SWA pages at the start.
    size = {"block_size": 64}
    lines = [{"t": n, "s": n % 40, "i": 6400, "o": 1, "h": [[n % 40 * 100, 100]]} for n in range(240)]
    path = write(tmp_path / "long.jsonl", [size, *lines])
    words = ["replay", path, "--capacity", "14GiB", "--swa-share", "0.6"]
    code, out, _ = run(capsys, *words, "--split", "adaptive", "--json")
    assert code == 0
    result = json.loads(out)
    split = result["split"]
    assert split["start"] == pytest.approx(0.6, abs=0.02)
    assert split["end"] < split["mean"] < split["highest"]
    assert split["to_full"] > split["to_swa"]
    code, out, _ = run(capsys, *words, "--json")
    fixed = json.loads(out)
    assert fixed["split"] is None
    assert result["token_hit_rate"] > fixed["token_hit_rate"] + 0.1
    code, out, _ = run(capsys, *words, "--split", "adaptive")
    assert code == 0
    assert f"{split['to_full'] + split['to_swa']} changes of {split['chunks']} chunks" in out


def test_an_adaptive_split_takes_chunks_and_shares_of_any_size(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = [{"t": n, "s": n % 40, "i": 6400, "o": 1, "h": [[n % 40 * 100, 100]]} for n in range(120)]
    path = write(tmp_path / "long.jsonl", [{"block_size": 64}, *lines])

    def replayed(*words: str) -> dict[str, Any]:
        code, out, err = run(capsys, "replay", path, "--split", "adaptive", *words, "--json")
        assert code == 0, err
        return cast("dict[str, Any]", json.loads(out))

    # 8,126 pages of scratch leave the cache as large as a few pages of them do.
    rates = [replayed("--capacity", "14GiB", "--chunk", chunk)["token_hit_rate"] for chunk in ("8192", "520000")]
    assert rates[1] == pytest.approx(rates[0], abs=0.02)
    assert rates[1] > 0.3
    for capacity, share in (("1000%", "0.999"), ("40GiB", "0.005"), ("14GiB", "0.99"), ("100TiB", "0.1")):
        result = replayed("--capacity", capacity, "--swa-share", share)
        split = result["split"]
        limit = result["full_bytes"] + result["swa_bytes"] + result["scratch_bytes"]
        assert split["chunks"] * split["chunk_bytes"] <= limit
    code, _, err = run(capsys, "replay", path, "--split", "adaptive", "--capacity", "1000TiB")
    assert code == 2
    assert "capacity and scratch is" in err
    assert "allowed is at most" in err


def test_a_header_that_promises_more_is_a_warning(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "replay", write(tmp_path / "cut.jsonl", [HEADER, REQUESTS[0]]), "--capacity", "1M")
    assert code == 0
    assert "the header speaks of 3 requests, the file has 1" in err


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "COMMAND"),
        (["fly"], "fly"),
        (["replay"], "trace"),
        (["replay", "TRACE", "--page-size", "x"], "page-size"),
        (["replay", "TRACE", "--page-size", "3"], "page"),
        (["replay", "TRACE", "--page-size", "-64"], "-64"),
        (["replay", "TRACE", "--page-size", str(2**64)], str(2**64)),
        (["replay", "TRACE", "--page-size", "128"], "128"),
        (["replay", "TRACE", "--chunk", "0"], "chunk is 0"),
        (["replay", "TRACE", "--capacity", "lots"], '"lots"'),
        (["replay", "TRACE", "--capacity", "0%"], '"0%"'),
        (["replay", "TRACE", "--capacity", "1%"], "pages"),
        (["replay", "TRACE", "--swa-share", "2"], "SWA share is 2"),
        (["replay", "TRACE", "--swa-share", "nan"], "SWA share is NaN"),
        (["replay", "TRACE", "--swa-share", "0.2", "--best-split"], "not allowed with"),
        (["replay", "TRACE", "--split", "both"], "both"),
        (["replay", "TRACE", "--split", "adaptive", "--best-split"], "allowed is 'fixed' with --best-split"),
        (["replay", "--suite", "FOLDER", "--split", "adaptive"], "allowed is 'fixed' with --suite"),
        (
            ["replay", "TRACE", "--split", "adaptive", "--model", "uniform", "--capacity", "2M"],
            "for a model with one group",
        ),
        (["replay", "TRACE", "--model", "gpt-9"], "gpt-9"),
        (["replay", "TRACE", "--model", "uniform", "--swa-share", "0.2"], "0 for a model without an SWA group"),
        (["replay", "TRACE", "--retention", "all"], "retention"),
        (["replay", "TRACE", "--policy", "magic"], "magic"),
        (["replay", "no/such/file"], "no/such/file"),
        (["replay", "."], "not a regular file"),
    ],
)
def test_mistakes_are_one_sentence(
    capsys: pytest.CaptureFixture[str], trace: Path, words: list[str], part: str
) -> None:
    assert part in fails(capsys, *[trace if word == "TRACE" else word for word in words])


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ([], 1),
        ([REQUESTS[0]], 1),
        ([HEADER], 2),
        ([HEADER, REQUESTS[0], '{"t": 5'], 3),
        ([HEADER, REQUESTS[1], REQUESTS[0]], 3),
        ([HEADER, *REQUESTS, {"t": 9, "s": 2, "i": 70, "o": 9, "h": [[-40, 1]]}], 5),
        ([HEADER, *REQUESTS, {"t": 9, "s": 2, "i": 70, "o": 9, "h": [[40, 2]]}], 5),
    ],
)
def test_a_broken_trace_is_named_by_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, lines: list[object], number: int
) -> None:
    for name in ("broken.jsonl", "broken.jsonl.gz"):
        err = fails(capsys, "replay", write(tmp_path / name, lines), "--capacity", "1M")
        assert f"trace line {number}: " in err


def test_a_cut_gzip_is_named_by_line(capsys: pytest.CaptureFixture[str], trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-20])
    assert "trace line " in fails(capsys, "replay", trace)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"mimo-cache {mimo_cache.__version__}\n", "")
    for words in (["--help"], ["replay", "--help"]):
        code, out, err = run(capsys, *words)
        assert code == 0
        assert err == ""
        assert "replay" in out


def test_a_reader_that_leaves_is_no_traceback(trace: Path) -> None:
    command = [sys.executable, "-m", "mimo_cache.cli", "replay", str(trace), "--capacity", "1M"]
    read, write_end = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(write_end)
    assert done.returncode == 1
    assert done.stderr == b""


@pytest.mark.parametrize("closed", [1, 2])
def test_a_stream_that_was_closed_before_the_start_is_no_traceback(trace: Path, closed: int) -> None:
    command = [sys.executable, "-m", "mimo_cache.cli", "replay", str(trace), *QUICK]
    words = " ".join(f"'{word}'" for word in command)
    done = subprocess.run(["/bin/sh", "-c", f"{words} {closed}>&-"], capture_output=True, check=False, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_a_full_disk_behind_both_streams_is_exit_code_2(trace: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "mimo_cache.cli", "replay", str(trace), *QUICK]
        assert subprocess.run(command, stdout=full, stderr=full, check=False).returncode == 2


@pytest.mark.parametrize(
    ("command", "option"), [(("demo",), "--html"), (("demo", "--canary"), "--html"), (("bench", "tree"), "--plot")]
)
def test_a_file_that_cannot_be_written_is_told_before_the_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: tuple[str, ...], option: str
) -> None:
    for path in (tmp_path / "nowhere" / "x", tmp_path):
        code, out, err = run(capsys, *command, option, path)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert str(path) in err


def test_checking_a_file_changes_nothing(tmp_path: Path) -> None:
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("kept")
    for path in (new, old):
        check_writable(path)
    assert (new.exists(), old.read_text()) == (False, "kept")


def test_a_seed_below_0_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["demo", "--canary"], ["demo"]):
        code, _, err = run(capsys, *words, "--seed", "-1")
        assert (code, "seed is -1, allowed is 0 " in err) == (2, True), words
