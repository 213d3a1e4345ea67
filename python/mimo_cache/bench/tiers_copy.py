"""Parts `copy` and `overlap` of `mimo-cache bench tiers`: copies between host and device memory, beside memcpy and
behind computation.

On a CPU the device is memory as well. Byte volumes are those of MiMo-V2.5-Pro on one of eight tensor-parallel ranks,
bf16 (`docs/design.md`, section 3): in each layer 64 tokens x 1 KV head x (192 + 128) x 2 B = 40,960 B per page; 10 full
layers, 60 SWA layers, 3 MTP heads, and the rank's eighth of the hidden states. Names of figures are part of the
output's contract: a check in `report.py` looks them up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_cache.bench.report import COPIED
from mimo_cache.bench.tiers import Options
from mimo_cache.bench.timing import Figure, figure
from mimo_cache.tiers import CopyJob, HostRegion, KvCopier, device_layout

PAGE = 64
"""Tokens of a page."""
LAYER_BYTES = PAGE * (192 + 128) * 2
"""Bytes of a page in one layer: one KV head."""
HIDDEN_BYTES = PAGE * 12_288 // 8
FULL_LAYERS, SWA_LAYERS, MTP_HEADS = 10, 60, 3
WINDOW_PAGES = 2
"""Pages of 128 tokens."""
PREFIXES = COPIED
"""Tokens of `copy`. Names of figures and floors go with them."""
OVERLAP_LAYERS, OVERLAP_PREFIX = 28, 32_768
REQUESTS = 20
"""Of each run of `overlap`."""
MATMUL = 64
"""Side of the matrices that stand for computation: small enough that every BLAS multiplies them in one thread."""

Bytes = npt.NDArray[np.uint8]


def pro_layers() -> tuple[list[int], list[int]]:
    """Full layers, and SWA layers with the MTP heads, which are layers beside the trunk: one full layer, then six."""
    trunk = FULL_LAYERS + SWA_LAYERS
    full = [layer for layer in range(trunk) if layer % 7 == 0]
    return full, [layer for layer in range(trunk + MTP_HEADS) if layer not in full]


def device_arrays(
    full_layers: Sequence[int], swa_layers: Sequence[int], full_pages: int, swa_pages: int, hidden: bool
) -> tuple[list[tuple[Bytes, int]], list[tuple[Bytes, int]]]:
    """(array, layer) of each layer, uint8 [pages + 1, bytes], for `device_layout`: full and SWA. `hidden`: with the
    hidden states beside the last SWA layer."""

    def arrays(layers: Sequence[int], pages: int, size: int) -> list[tuple[Bytes, int]]:
        return [(np.zeros((pages + 1, size), np.uint8), layer) for layer in layers]

    full, swa = arrays(full_layers, full_pages, LAYER_BYTES), arrays(swa_layers, swa_pages, LAYER_BYTES)
    return full, swa + (arrays([max(swa_layers)], swa_pages, HIDDEN_BYTES) if hidden else [])


class Tiers:
    """Device arrays of one layer each, a host region with a page for each of theirs, and a copier with one thread."""

    def __init__(self, full_layers: Sequence[int], swa_layers: Sequence[int], pages: int, hidden: bool) -> None:
        self.full, self.swa = device_arrays(full_layers, swa_layers, pages, WINDOW_PAGES, hidden)
        layout = device_layout(full=self.full, swa=self.swa)
        self.region = HostRegion(layout, full_pages=pages, swa_pages=WINDOW_PAGES)
        self.copier = KvCopier(layout, self.region)
        rng = np.random.default_rng(1)
        for group, count in (("full", pages), ("swa", WINDOW_PAGES)):
            for page in range(1, count + 1):
                view = np.frombuffer(self.region.page(group, page, writable=True), np.uint8)  # type: ignore[arg-type]
                view[:] = rng.integers(0, 256, view.size, np.uint8)
        # Pages lie anywhere after a while.
        ids = np.arange(1, pages + 1, dtype=np.int32)
        self.pairs = np.stack([rng.permutation(ids), rng.permutation(ids)], axis=1).astype(np.int32)
        ids = np.arange(1, WINDOW_PAGES + 1, dtype=np.int32)
        self.window = np.stack([ids, ids], axis=1)

    def load(self) -> CopyJob:
        return self.copier.load(self.pairs, self.window)

    def loaded(self) -> None:
        self.load().wait()

    def saved(self) -> None:
        self.copier.save(self.pairs, self.window).wait()

    def check(self) -> None:
        """The device has what the host has."""
        for group, layers, pairs in (("full", self.full, self.pairs), ("swa", self.swa, self.window)):
            for device, host in pairs.tolist():
                page = b"".join(array[device].tobytes() for array, _ in layers)
                if self.region.page(group, host)[: len(page)] != page:  # type: ignore[arg-type]
                    raise RuntimeError("the copier delivered other bytes than the host has")


def copy(options: Options) -> list[Figure]:
    """Loads of a prefix beside one memcpy of as many bytes, by turns."""
    figures = []
    for tokens in PREFIXES:
        pages = max(int(tokens // PAGE * options.scale), 2)
        tiers = Tiers(*pro_layers(), pages, hidden=True)
        size = tiers.load().bytes
        source, target = np.ones(size, np.uint8), np.zeros(size, np.uint8)

        calls: dict[str, Callable[[], object]] = {
            "load": tiers.loaded,
            "save": tiers.saved,
            "memcpy": partial(np.copyto, target, source),
        }
        rates: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            call()
        tiers.check()
        for _ in range(options.runs):
            spent = dict.fromkeys(calls, 0)
            rounds = max(int((1 << 30) * options.scale / size), 1)
            for _ in range(rounds):
                for name, call in calls.items():
                    start = time.perf_counter_ns()
                    call()
                    spent[name] += time.perf_counter_ns() - start
            for name, ns in spent.items():
                rates[name].append(rounds * size / ns * 1e3)
        tiers.copier.close()
        figures += [figure(f"{name}_{tokens}", "MB/s", rates[name]) for name in calls]
        for name in ("load", "save"):
            ratios = [one / other for one, other in zip(rates[name], rates["memcpy"], strict=True)]
            figures.append(figure(f"{name}_{tokens}_vs_memcpy", "x", ratios))
    return figures


def overlap(options: Options) -> list[Figure]:
    """A model whose layers wait for their pages and then compute: what it waits beyond the first layer's load.

    `even`: every layer computes as long as the slowest layer loads, as layers of equal size do. `tight`: every layer
    computes just as long as it loads itself, which leaves no slack. A request is over in ten milliseconds, less than
    the time slices that a busy machine gives its threads by turns; so a run is the best of some requests: what the
    copier is to blame for is in each of them.
    """
    pages = max(int(OVERLAP_PREFIX // PAGE * options.scale), 2)
    full_layers = list(range(0, OVERLAP_LAYERS, 7))
    swa_layers = [layer for layer in range(OVERLAP_LAYERS) if layer not in full_layers]
    tiers = Tiers(full_layers, swa_layers, pages, hidden=False)
    alone = [_alone(tiers) for _ in range(4 * options.runs + 1)]
    loads = [float(np.median([run[n] for run in alone])) for n in range(OVERLAP_LAYERS)]
    product = min(_compute(200) for _ in range(20)) / 200
    plans = {"even": [max(loads)] * OVERLAP_LAYERS, "tight": loads}
    excess: dict[str, list[float]] = {name: [] for name in plans}
    stalls: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(options.runs):
        for name, plan in plans.items():
            products = [int(ns / product) + 1 for ns in plan]
            best = min(_prefill(tiers, products) for _ in range(max(int(REQUESTS * options.scale), 1)))
            excess[name].append(best[0])
            stalls[name].append(best[1] / 1e3)
    tiers.check()
    tiers.copier.close()
    figures = [figure("overlap_load", "us", [sum(run) / 1e3 for run in alone])]
    for name in plans:
        figures.append(figure(f"overlap_{name}_stalls", "us", stalls[name]))
        figures.append(figure(f"overlap_{name}_excess", "of the load", excess[name]))
    return figures


def _alone(tiers: Tiers) -> list[int]:
    """Nanoseconds of each layer's load with nothing beside it."""
    job = tiers.load()
    job.wait()
    return [copied for _, copied, _, _ in job.times()]


def _compute(products: int, matrix: npt.NDArray[np.float32] = np.ones((MATMUL, MATMUL), np.float32)) -> int:  # noqa: B008
    """Multiplies so many times, and returns nanoseconds. numpy releases the GIL meanwhile."""
    out = np.empty_like(matrix)
    start = time.perf_counter_ns()
    for _ in range(products):
        np.dot(matrix, matrix, out=out)
    return time.perf_counter_ns() - start


def _prefill(tiers: Tiers, products: Sequence[int]) -> tuple[float, float]:
    """Waits and computes layer by layer while the copier loads. Returns what was waited beyond the first layer's load,
    as a share of all loads, and what was waited at all, in nanoseconds. The first layer's load ends when it is ready:
    the copier's thread has to wake up for it.
    """
    waited = 0
    # What the submission takes is waiting as well: the copier's thread may take over there.
    start = time.perf_counter_ns()
    job = tiers.load()
    for layer, some in enumerate(products):
        arrays: tuple[Any, ...] = job.layer(layer)
        waited += time.perf_counter_ns() - start
        del arrays
        _compute(some)
        start = time.perf_counter_ns()
    job.wait()
    times = job.times()
    first = times[0][2] or 0
    return (waited - first) / sum(copied for _, copied, _, _ in times), waited
