"""What needs a source tree: the Rust side of the measurements, the count of instructions, and the peer's script.

They are no part of the installed package. `MIMO_CACHE_SOURCE` names the tree; without it the folder above this file and
the current one are looked at.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from mimo_cache.bench.timing import Figure, say


def tree() -> Path | None:
    """The source tree, or `None`."""
    named = os.environ.get("MIMO_CACHE_SOURCE")
    places = [Path(named)] if named else [Path(__file__).resolve().parents[3], Path.cwd()]
    return next((p for p in places if (p / "benches" / "tree.rs").is_file()), None)


def rust(name: str, scale: float) -> dict[str, Figure]:
    """Figures of one scenario of `benches/tree.rs`; empty without a source tree or cargo."""
    figures = rust_bench("tree", [name, *(["quick"] if scale < 1 else [])])
    return {f.name: f for f in figures}


def rust_bench(bench: str, words: list[str]) -> list[Figure]:
    """Figures of `benches/BENCH.rs` with these arguments; none without a source tree or cargo."""
    root = tree()
    if root is None or shutil.which("cargo") is None:
        say(f"rust {' '.join(words)}: needs cargo and a source tree (MIMO_CACHE_SOURCE), not measured")
        return []
    command = ["cargo", "bench", "--quiet", "--bench", bench, "--", *words]
    # A group of its own, since cargo does not end what it runs when it is ended.
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        raise
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    figures = json.loads(output.splitlines()[-1])["figures"]
    return [Figure(f["name"], f["unit"], f["median"], f["spread"], f.get("against"), f.get("ratio")) for f in figures]


def instructions(scale: float) -> dict[str, float]:
    """Ratios of instruction counts from `benches/instructions.py`; empty where it cannot run."""
    root = tree()
    if root is None or shutil.which("cargo") is None or shutil.which("valgrind") is None:
        say("instruction counts: need valgrind, cargo and a source tree, not measured")
        return {}
    command = [sys.executable, str(root / "benches" / "instructions.py"), "--json", *(["--quick"] if scale < 1 else [])]
    # Its exit code says whether the gate holds; the counts are printed either way.
    done = subprocess.run(command, cwd=root, check=False, stdout=subprocess.PIPE, text=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])["ratios"]
    return answer


def peer_python() -> Path:
    """The interpreter of the peer's environment, by the convention of `benches/README.md`."""
    named = os.environ.get("MIMO_CACHE_PEER")
    return Path(named) if named else Path.home() / ".cache" / "mimo_cache" / "peer" / "bin" / "python"


def peer(name: str, scale: float) -> dict[str, Any]:
    """One run of one scenario of `benches/peer_sglang.py` in a fresh process; empty when the peer is not installed."""
    root = tree()
    python = peer_python()
    if root is None or not python.is_file():
        return {}
    command = [str(python), str(root / "benches" / "peer_sglang.py"), "--once", "--scale", str(scale), name]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        say(f"the peer failed in scenario {name}: {lines[-1] if lines else f'exit code {done.returncode}'}")
        return {}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
