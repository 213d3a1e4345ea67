"""A folder of traces at the capacities that matter: the default policy, LRU and the optimum side by side.

Two models stand for the two kinds of cache: `uniform` keeps every layer for every token in one pool, `mimo-v2.5-pro` is
the hybrid, at the split of the bytes that is best for it, or at a given one; so is LRU, each at its own. Replays run
two at a time, one a core; a replay is one thread without the interpreter's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimo_cache import _core

from .runs import beside, best_split, one_pool_pages, optimum, replay

SAMPLES = 240
"""Points in time of a replay whose way is drawn."""

MODELS = ("uniform", "mimo-v2.5-pro")

# Capacities in % of the bytes of all layers for all unique tokens, where hit rates are neither nothing nor the ceiling.
_CAPACITIES: dict[str, dict[str, tuple[float, ...]]] = {
    "claude_code_dev": {"uniform": (0.25, 0.5, 1, 2, 5), "mimo-v2.5-pro": (0.25, 0.5, 1, 2)},
    "conversation": {"uniform": (1, 2, 5, 10, 20), "mimo-v2.5-pro": (0.5, 1, 2, 5)},
    "tau_airline": {"uniform": (1, 2, 5, 10), "mimo-v2.5-pro": (0.2, 0.5, 1, 2, 5, 10)},
    "magagent": {"uniform": (1, 2, 5, 10), "mimo-v2.5-pro": (0.2, 0.5, 1, 2, 5, 10)},
}
_DEFAULT = {"uniform": (0.25, 1, 2, 5, 10), "mimo-v2.5-pro": (0.25, 0.5, 1, 2, 5)}
_WORKERS = 2
# Most requests of a trace that is small enough to look for the best split closely.
_FEW = 5_000
_CURVE = 60


@dataclass
class Row:
    """One capacity of one model: the replays and the optimum, or why the capacity cannot be replayed."""

    model: str
    percent: float | None
    ours: dict[str, Any] | None = None
    lru: dict[str, Any] | None = None
    optimum: dict[str, Any] | None = None
    refused: str = ""

    @property
    def capacity(self) -> str:
        """The capacity in words; a single replay may have another than a percentage."""
        if self.percent is not None:
            return f"{self.percent:g} %"
        return str(self.ours["capacity"]) if self.ours is not None else ""


@dataclass
class TraceRuns:
    """Everything about one trace."""

    name: str
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """`optimum` of the trace at `capacities` (pages), for the curves, and `unique_pages`."""


def traces(folder: Path) -> list[Path]:
    """The traces of a folder, by name."""
    if not folder.is_dir():
        raise _core.InvalidArgument(f"suite is {str(folder)!r}, allowed is a folder of traces")
    found = sorted(p for p in folder.iterdir() if p.name.endswith((".jsonl", ".jsonl.gz")))
    if not found:
        raise _core.InvalidArgument(f"suite is {str(folder)!r}, allowed is a folder with files *.jsonl or *.jsonl.gz")
    return found


def stem(path: Path) -> str:
    """The name of a trace without its endings."""
    return path.name.removesuffix(".gz").removesuffix(".jsonl")


def capacities(name: str, model: str) -> tuple[float, ...]:
    """Percents at which a trace is replayed."""
    return _CAPACITIES.get(name, _DEFAULT)[model]


def run(
    folder: Path,
    options: dict[str, Any],
    swa_share: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[TraceRuns]:
    """Replays every trace of `folder` with `options` (those of `replay` but model, capacity, split), and with LRU.

    Without `swa_share` each hybrid row has the best split, found by trying.
    """
    stop = threading.Event()

    def progress(*_: int) -> None:
        if stop.is_set():
            raise KeyboardInterrupt

    out, jobs = [], []
    with ThreadPoolExecutor(_WORKERS) as pool:
        try:
            for path in traces(folder):
                runs = TraceRuns(stem(path))
                out.append(runs)
                for model in MODELS:
                    for percent in capacities(runs.name, model):
                        row = Row(model, percent)
                        runs.rows.append(row)
                        jobs.append(pool.submit(_row, path, runs.name, row, options, swa_share, progress, say))
                jobs.append(pool.submit(_named_facts, path, runs, options))
            done, _ = wait(jobs, return_when=FIRST_EXCEPTION)
            for job in done:
                job.result()
        finally:
            stop.set()
            for job in jobs:
                job.cancel()
    return out


def _row(
    path: Path,
    name: str,
    row: Row,
    options: dict[str, Any],
    swa_share: float | None,
    progress: Callable[..., None],
    say: Callable[[str], None],
) -> None:
    with _named(path):
        _fill(path, name, row, options, swa_share, progress, say)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors about a trace, which do not know its file, name it."""
    try:
        yield
    except (_core.InvalidArgument, _core.TraceError) as error:
        error.args = (f"{path}: {error}",)
        raise


def _fill(
    path: Path,
    name: str,
    row: Row,
    options: dict[str, Any],
    swa_share: float | None,
    progress: Callable[..., None],
    say: Callable[[str], None],
) -> None:
    given = {**options, "model": row.model, "capacity": f"{row.percent:g}%", "progress": progress}
    if swa_share is not None and row.model != "uniform":
        given["swa_share"] = swa_share
    try:
        few = optimum(path, [0], options["page_size"], options["skip_bad"])["requests"] <= _FEW
        row.ours = _replay(path, {**given, "samples": SAMPLES}, few)
        same = options["policy"] == "lru"
        row.lru = row.ours if same else _replay(path, {**given, "policy": "lru"}, few)
    except _core.InvalidArgument as error:
        if error.what != "capacity":
            raise
        # A trace may be too small for a percentage: that is an answer, not a failure.
        row.refused = "too small for any split"
        return
    row.optimum = beside(path, row.ours, options["page_size"], options["skip_bad"])
    say(f"{name}, {row.model}, {row.percent:g} %: token hit rate {row.ours['token_hit_rate']:.2%}")


def _replay(path: Path, given: dict[str, Any], few: bool) -> dict[str, Any]:
    """With the given split, or the best there is for this policy. In a small trace, one of `few` requests, a pool has a
    few dozen pages, each of which counts, and looking costs little."""
    if "swa_share" in given or given["model"] == "uniform":
        return replay(path, **given)
    return best_split(path, refine=5 if few else 1, **given)


def _named_facts(path: Path, runs: TraceRuns, options: dict[str, Any]) -> None:
    with _named(path):
        _facts(path, runs, options)


def _facts(path: Path, runs: TraceRuns, options: dict[str, Any]) -> None:
    """The curves of a trace, from a hundredth of a percent of its blocks to all of them."""
    page = options["page_size"]
    first = optimum(path, [0], page, options["skip_bad"])
    unique = (first["prompt_tokens"] - first["endless"]) // page
    pages = sorted({max(1, round(unique * 10 ** (-4 + 4 * i / (_CURVE - 1)))) for i in range(_CURVE)})
    runs.facts = {
        "unique_pages": unique,
        "page_size": page,
        "capacities": pages,
        "optimum": optimum(path, pages, page, options["skip_bad"]),
    }


def of_one(trace: str, result: dict[str, Any], skip_bad: bool) -> TraceRuns:
    """A single replay in the suite's form, for the page."""
    percent = None
    if str(result["capacity"]).strip().endswith("%"):
        percent = float(str(result["capacity"]).strip().rstrip("% "))
    runs = TraceRuns(stem(Path(trace)), [Row(result["model"], percent, result, None, result["optimum"])])
    _facts(Path(trace), runs, {"page_size": result["page_size"], "skip_bad": skip_bad})
    return runs


def table(runs: Sequence[TraceRuns]) -> str:
    """The runs as lines of text, a row a capacity."""
    lines = [
        f"{'trace':<18}{'model':<15}{'capacity':>9}{'ours':>9}{'LRU':>9}{'optimum':>9}{'reached':>9}{'ceiling':>9}"
        f"{'SWA':>8}"
    ]
    for trace in runs:
        for row in trace.rows:
            head = f"{trace.name[:17]:<18}{row.model:<15}{row.capacity:>9}"
            if row.ours is None or row.optimum is None:
                lines.append(f"{head}  {row.refused}")
                continue
            best = row.optimum
            lru = row.lru["token_hit_rate"] if row.lru is not None else None
            rates = (row.ours["token_hit_rate"], lru, best["token_hit_rate"], best["reached"], row.ours["ceiling"])
            cells = "".join(f"{'':>9}" if rate is None else f"{100 * rate:>9.2f}" for rate in rates)
            share = f"{100 * row.ours['swa_bytes_share']:>7.1f}%" if row.ours["swa_pages"] else f"{'':>8}"
            lines.append(head + cells + share)
    lines.append(
        "Token hit rates in %. Optimum: Belady for uniform, else a bound that no cache can beat; reached: ours in"
    )
    lines.append("% of it. SWA: part of the bytes that windows and checkpoints get.")
    return "\n".join(lines)


def as_json(runs: Sequence[TraceRuns], options: dict[str, Any]) -> dict[str, Any]:
    """The runs as one JSON object."""
    rows = []
    for trace in runs:
        for row in trace.rows:
            out: dict[str, Any] = {"trace": trace.name, "model": row.model, "capacity": f"{row.percent:g}%"}
            if row.ours is None or row.lru is None or row.optimum is None:
                rows.append({**out, "refused": row.refused})
                continue
            ours = {k: v for k, v in row.ours.items() if k not in ("samples", "skipped_first")}
            rows.append(
                {
                    **out,
                    "token_hit_rate": ours["token_hit_rate"],
                    "lru_token_hit_rate": row.lru["token_hit_rate"],
                    "optimum": row.optimum,
                    "ceiling": ours["ceiling"],
                    "replay": ours,
                }
            )
    return {"rows": rows, **options}


__all__ = ["SAMPLES", "Row", "TraceRuns", "as_json", "capacities", "of_one", "one_pool_pages", "run", "table", "traces"]
