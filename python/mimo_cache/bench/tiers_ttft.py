"""Part `ttft` of `mimo-cache bench tiers`: time to the first token by where a prefix comes from.

The tiny model, backend `torch`, one thread, greedy. A prompt is a prefix and 8 new tokens, so whatever the source, as
many tokens are computed. Prefixes are nested: one pass computes all of them and writes them through to two nodes, one
that has them in memory and one that has them on disk alone. Each request is made on an engine with empty tiers of its
own, all with the same options: three tiers, and requests that wait for GCache. Only what was done before differs:

- `memory`, `disk`: nothing; the node has the prefix.
- `host`: a prefetch has brought the prefix into host memory.
- `device`: the request before has brought it to the device.
- `recompute`: nothing, and the request is in a namespace of its own, where no tier has anything.

A request that does not get its whole prefix from where it is said to ends the bench.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from mimo_cache import GCacheClient, Key
from mimo_cache.bench.disk import settle
from mimo_cache.bench.gcache import BATCH, MIB, noise, putter
from mimo_cache.bench.gcache_nodes import Node, nodes
from mimo_cache.bench.tiers import Options
from mimo_cache.bench.timing import Figure, figure, say
from mimo_cache.gcache.local import SHARED
from mimo_cache.runner import LLM, SamplingParams
from mimo_cache.tiers import GCacheTier

PREFIXES = (1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
"""Tokens, as far as the model's positions go. Names of figures and a floor go with them."""
NEW = 8
"""Tokens of a prompt after its prefix."""
SOURCES = {
    "device": "device",
    "host": "host",
    "memory": "gcache_memory",
    "disk": "gcache_disk",
    "recompute": "computed",
}
"""Of figures, and of `Completion.sources`."""
PATIENCE = 60.0
"""Seconds that a request may wait for its pages."""
NODE_BYTES = 64 * MIB
ONE = SamplingParams(max_tokens=1, ignore_eos=True)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes on one thread: a small model gains nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def ttft(options: Options) -> list[Figure]:
    """Milliseconds by source and prefix, and the ratios to computing."""
    with one_thread(), ExitStack() as stack:
        bench = Bench(options, stack)
        times: dict[tuple[str, int], list[float]] = {}
        for _ in range(options.runs):
            for tokens, size in bench.sizes.items():
                for source, seconds in bench.requests(size).items():
                    times.setdefault((source, tokens), []).append(1000 * seconds)
            say(", ".join(f"{source} {times[source, tokens][-1]:.4g} ms" for source in SOURCES) + f", {size} tokens")
    figures = []
    for tokens, size in bench.sizes.items():
        figures.append(Figure(f"ttft_tokens_{tokens}", "tokens", size))
        recomputed = times["recompute", tokens]
        for source in SOURCES:
            one = figure(f"ttft_{source}_{tokens}", "ms", times[source, tokens])
            ratios = [a / b for a, b in zip(times[source, tokens], recomputed, strict=True)]
            if source != "recompute":
                one = replace(one, against="recompute in the same run", ratio=statistics.median(ratios))
            figures.append(one)
            if source == "memory":
                figures.append(figure(f"ttft_memory_{tokens}_vs_recompute", "1", ratios))
    return figures


class Bench:
    """The two nodes, and the prefixes that they have."""

    def __init__(self, options: Options, stack: ExitStack) -> None:
        self.rng = np.random.default_rng(5)
        (self.memory,) = stack.enter_context(nodes("memory", size=NODE_BYTES))
        self.disk = stack.enter_context(_node_with_disk())
        llm = self._llm(self.memory)
        page, positions = llm.cache.page_size, llm.config.max_positions
        most = (positions - NEW - ONE.max_tokens) // page * page
        self.sizes = {n: min(max(int(n * options.scale) // page, 4) * page, most) for n in PREFIXES if n <= positions}
        left = [n for n in PREFIXES if n > positions]
        if left:
            said = ", ".join(f"{n:,}" for n in left)
            say(f"the model has {positions:,} positions: no prefixes of {said} tokens; the longest has {most:,}")
        self.prefix = self._tokens(max(self.sizes.values()))
        self._fill(llm)

    def _llm(self, node: Node) -> LLM:
        """An engine with empty tiers above a node."""
        return LLM(
            "tiny",
            memory="48M",
            max_running=1,
            host_memory="64M",
            host_write="through",
            gcache=[node.unix],
            gcache_options={"prefetch": "wait", "timeout": PATIENCE},
        )

    def _tokens(self, count: int) -> list[int]:
        return [int(token) for token in self.rng.integers(0, 256, count)]

    def _fill(self, llm: LLM) -> None:
        """Computes all prefixes, and writes them to both nodes; then the second node has them on disk alone."""
        assert llm.tier is not None
        assert llm.remote is not None
        with GCacheClient([self.disk.unix], deadline=PATIENCE) as client:
            second = GCacheTier(llm.tier, client)
            # One by one: the end of a prefix is of less use when the next one goes on from it, and may go then.
            for size in sorted(set(self.sizes.values())):
                llm.generate([self.prefix[:size]], ONE)
                llm.tier.drain()
                for tier in (llm.remote, second):
                    if not tier.writer.flush(PATIENCE) or tier.stats()["pages_failed"]:
                        raise RuntimeError("a prefix of the bench was not stored")
            second.close()
            llm.close()
            put = putter(client, noise(BATCH * MIB), BATCH)
            for _ in range(2 * NODE_BYTES // (BATCH * MIB) + 1):
                put()
                settle(client)

    def requests(self, size: int) -> dict[str, float]:
        """Seconds to the first token from each source."""
        out: dict[str, float] = {}
        for node, source in ((self.memory, "memory"), (self.disk, "disk"), (self.memory, "host")):
            llm = self._llm(node)
            assert llm.remote is not None
            # Connections, threads and torch's own memory are there before anything is measured.
            llm.generate([self._tokens(4 * llm.cache.page_size)], ONE, store=False)
            if source == "host" and not llm.remote.prefetch(self._prompt(size)).wait(PATIENCE):
                raise RuntimeError("a prefetch of the bench does not end")
            out[source] = self._request(llm, size, source)
            if source == "host":
                out["device"] = self._request(llm, size, "device")
                out["recompute"] = self._request(llm, size, "recompute", Key(salt=b"nothing is stored here"))
            llm.close()
        return out

    def _prompt(self, size: int) -> list[int]:
        return self.prefix[:size] + self._tokens(NEW)

    def _request(self, llm: LLM, size: int, source: str, key: Key | None = None) -> float:
        """Seconds to the first token of a prompt whose prefix must come from `source`."""
        # That of `host` is published on the device, for that of `device`; the others leave nothing.
        done = llm.generate([self._prompt(size)], ONE, key=key, store=source == "host")[0]
        want = dict.fromkeys(("device", "host", "gcache_memory", "gcache_disk", "gcache_remote"), 0) | {"computed": NEW}
        want[SOURCES[source]] += size
        found = {name: getattr(done.sources, name) for name in want}
        if found != want:
            raise RuntimeError(f"a request whose prefix of {size} tokens was to come from {source} had {found}")
        return done.ttft


@contextmanager
def _node_with_disk() -> Iterator[Node]:
    """A node whose memory is soon full, with a disk in the system's temporary directory."""
    with (
        tempfile.TemporaryDirectory(prefix="mimo-bench-") as place,
        tempfile.TemporaryDirectory(prefix="mimo-bench-", dir=SHARED if SHARED.is_dir() else None) as shared,
    ):
        # Reads leave values where they are, so that each run reads them from disk.
        more = f'[[disk]]\npath = "{place}/node"\nsize = "{1 << 30}B"\n[tiering]\npromote_after = 255\n'
        node = Node(Path(shared), "disk", NODE_BYTES, more=more)
        try:
            yield node
        finally:
            node.kill()
            shutil.rmtree(Path(place) / "node")
