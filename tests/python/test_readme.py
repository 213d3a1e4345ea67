"""The README's commands and code run as they are printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
HANG = 1200
"""Seconds after which a command hangs, also on a machine that is busy with other things."""


def blocks(language: str) -> list[str]:
    """All fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command and fails with its output when it fails."""
    # Jobs and flags of a make that runs these tests are not the commands' business.
    env = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=HANG, check=False)
    ends = f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert done.returncode == 0, f"{command} exited with {done.returncode}\n{ends}"
    return done


def test_every_shell_block_is_covered() -> None:
    """A new block needs a test of its own kind here."""
    words = ("make ", "mimo-cache generate", "mimo-cache replay")
    kinds = [next((w.split()[-1] for w in words if w in b), "?") for b in blocks("sh")]
    assert kinds == ["make", "make", "generate", "replay"]


@pytest.mark.slow
def test_make_demo_is_identical() -> None:
    assert "make demo\n" in blocks("sh")
    out = run(["make", "demo"], ROOT).stdout
    assert out.splitlines()[-1] == "identical"


def test_make_test_is_what_runs_this() -> None:
    """Running it here would not end; what it would run is looked at instead."""
    assert "make test\n" in blocks("sh")
    plan = run(["make", "--dry-run", "test"], ROOT).stdout
    for part in ("cargo fmt --check", "cargo clippy", "ruff check", "mypy", "stubtest", "cargo test", "pytest"):
        assert part in plan, part


def test_replay_of_the_printed_trace(tmp_path: Path) -> None:
    """Two requests of 100 and 120 blocks, the second an extension of the first: 100 of 220 blocks can be hits."""
    (block,) = [b for b in blocks("sh") if "mimo-cache replay" in b]
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    out = run(["bash", "-euo", "pipefail", "-c", block], tmp_path).stdout
    result = json.loads(out.splitlines()[-1])
    assert result["ceiling"] == pytest.approx(100 / 220, abs=1e-6)
    assert result["token_hit_rate"] == pytest.approx(100 / 220, abs=1e-6)


def test_generate_as_printed(tmp_path: Path) -> None:
    (block,) = [b for b in blocks("sh") if "mimo-cache generate" in b]
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    out = run(["bash", "-euo", "pipefail", "-c", block], tmp_path).stdout
    assert out.startswith("The class statement defines")


def test_the_code_runs(tmp_path: Path) -> None:
    (code,) = blocks("python")
    out = run([sys.executable, "-W", "error", "-c", code], tmp_path).stdout
    assert out.strip(), "the example prints its report"


def test_the_code_of_the_runner_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/runner.md").read_text(), re.DOTALL | re.MULTILINE)
    run([sys.executable, "-c", code], tmp_path)


def test_every_link_and_every_target_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) >= 5
    assert [link for link in links if not (ROOT / link).exists()] == []
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"`?make (\w+)", README))
    assert {"demo", "test", "soak", "bench"} <= targets
    assert [t for t in targets if not re.search(rf"^{t}:", makefile, re.MULTILINE)] == []
