"""One run of the demo: makes the sessions, serves them, checks the books, compares with a single pool."""

from __future__ import annotations

import time
from collections.abc import Callable

from .. import Geometry, MimoCacheError, PrefixCache
from . import audit, mix, single
from .device import RunError
from .engine import Engine, Limits, Shape
from .report import Result

MODEL = "mimo-v2.5-pro"
PAGE = 64


def limits(scale: float) -> Limits:
    """Sizes of engine and pools. Small runs keep enough for the longest prompts that run side by side."""
    full = Limits()
    running = max(4, round(full.running * scale**0.5))
    return Limits(
        running=running,
        live_sessions=max(4, round(full.live_sessions * scale)),
        full_pages=max(1600, round(full.full_pages * scale)),
        swa_pages=max(200, round(full.swa_pages * scale)),
        scratch_pages=full.scratch_pages if scale > 0.5 else 80,
    )


def run(
    seed: int, scale: float, sabotage: str | None = None, progress: Callable[[int, int, str], None] | None = None
) -> Result:
    """Serves the workload and checks it. `seconds` in the result leaves out making the sessions and the comparison."""
    geometry = Geometry.preset(MODEL, page_size=PAGE)
    sizes, sessions = limits(scale), mix.build(seed, scale)
    count = len(sessions)
    cache = PrefixCache(
        geometry,
        full_pages=sizes.full_pages,
        swa_pages=sizes.swa_pages,
        scratch_pages=sizes.scratch_pages,
        seed=seed,
    )
    engine = Engine(cache, Shape(PAGE, geometry.window, geometry.mtp_heads), sizes, sessions, seed)
    verdict, tally, mirror = engine.verdict, engine.tally, audit.Mirror()

    def watch(engine: Engine) -> None:
        if tally.steps % 8 == 1:
            tally.samples.append((tally.steps, tally.prompt, tally.hits, tally.full_kv, cache.stats()))
            mirror.apply(*cache.drain_events())
        if tally.steps % 64 == 0:
            cache.check_integrity()
        if sabotage is not None and tally.requests * 2 >= engine.turns and not tally.events["sabotaged"]:
            tally.events["sabotaged"] += engine.device.sabotage(sabotage)
        if progress is not None:
            rate = tally.hits / max(1, tally.prompt)
            progress(tally.requests, engine.turns, f"step {tally.steps}, hit rate {100 * rate:.1f} %")

    engine.on_step = watch
    begin = time.perf_counter()
    try:
        while engine.step():
            pass
        seconds = time.perf_counter() - begin
        cache.check_integrity()
        mirror.apply(*cache.drain_events())
        last, snapshot = cache.stats(), cache.snapshot()
        for problem in audit.books(cache, tally) + mirror.differences(snapshot):
            verdict.fail(problem)
    except (RunError, MimoCacheError) as error:
        if not tally.samples:
            raise
        seconds = time.perf_counter() - begin
        last, snapshot = tally.samples[-1][4], None
        verdict.fail(str(error))
    rate = tally.hits / max(1, tally.prompt)
    pages = single.pages_for(tally.served, PAGE, rate, sizes.full_pages) if not verdict.wrong else None
    full_bytes = sizes.full_pages * geometry.stored_full_page_bytes
    return Result(
        verified=verdict.wrong == 0 and verdict.rows > 0 and tally.requests == engine.turns,
        verdict=verdict,
        tally=tally,
        limits=sizes,
        model=MODEL,
        page=PAGE,
        window=geometry.window,
        bytes=full_bytes + sizes.swa_pages * geometry.stored_swa_page_bytes,
        full_bytes=full_bytes,
        single_pages=pages,
        single_bytes=None if pages is None else pages * PAGE * geometry.trunk_token_bytes,
        seconds=seconds,
        sessions=count,
        mirrored=mirror.events,
        last=last,
        snapshot=snapshot,
    )
