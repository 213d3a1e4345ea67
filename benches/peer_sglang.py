#!/usr/bin/env python3
"""Runs the prefix tree of SGLang 0.5.23 (its default: a Rust core below a Python cache) in the scenarios of the bench.

Run it with the interpreter of the environment that `benches/README.md` says how to make; this file imports the peer and
copies nothing of it. The last line of stdout is one JSON object, times in microseconds of process CPU time:

    peer_sglang.py [--runs 5] [--scale 1.0] [a b c d hit_rate memory]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import warnings
from array import array
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("SGLANG_RUST_BUILD_MODE", "never")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.base_swa_memory_pool import BaseSWAKVPool  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.mem_cache.unified_cache.components import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402

SCENARIOS = Path(__file__).resolve().parent.parent / "python" / "mimo_cache" / "bench" / "scenarios.py"
spec = importlib.util.spec_from_file_location("scenarios", SCENARIOS)
assert spec is not None
assert spec.loader is not None
sc: Any = importlib.util.module_from_spec(spec)
sys.modules["scenarios"] = sc
spec.loader.exec_module(sc)

clock = time.process_time_ns


class NoKV(BaseSWAKVPool):
    """A KV pool without KV: the tree and the allocators never look at the bytes."""

    full_kv_pool = None
    swa_kv_pool = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.full_to_swa_index_mapping: Any = None

    def register_mapping(self, full_to_swa_index_mapping: Any) -> None:
        self.full_to_swa_index_mapping = full_to_swa_index_mapping

    def translate_loc_from_full_to_swa(self, kv_indices: Any) -> Any:
        return self.full_to_swa_index_mapping[kv_indices]

    def get_state_buf_infos(self) -> Any:
        return [], [], []


NoKV.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


class Peer:
    """The peer's cache with its own allocators, page 64."""

    def __init__(self, full_tokens: int, swa_tokens: int) -> None:
        self.allocator = SWATokenToKVPoolAllocator(
            full_tokens, swa_tokens, sc.PAGE, torch.float16, "cpu", NoKV(), need_sort=False
        )
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=None,  # type: ignore[arg-type]
            token_to_kv_pool_allocator=self.allocator,
            page_size=sc.PAGE,
            sliding_window_size=sc.WINDOW,
            tree_components=(ComponentType.FULL, ComponentType.SWA),
        )
        self.cache = UnifiedRadixCache(params)
        self.core = type(self.cache.tree_core).__name__
        assert "Rust" in self.core, f"the tree core is {self.core}, expected the Rust one"
        # Lazy imports and first calls are not what is measured.
        for number in range(8):
            self.store(sc.random_tokens(min(sc.TURN, full_tokens // 16 // sc.PAGE * sc.PAGE), 7, number))
        self.cache.evict(EvictParams(num_tokens=1 << 40))

    def alloc(self, tokens: int) -> Any:
        """Full slots for whole pages, each with an SWA slot.

        Not `alloc_extend`: without a GPU it falls back from one kernel to some forty torch calls (1.4 ms a chunk),
        which would flatter us.
        """
        full = self.allocator.full_attn_allocator.alloc(tokens)
        swa = self.allocator.swa_attn_allocator.alloc(tokens)
        assert full is not None, "the peer's full pool is full"
        assert swa is not None, "the peer's SWA pool is full"
        self.allocator.set_full_to_swa_mapping(full, swa)
        return full

    def make_room(self, tokens: int) -> None:
        """Evicts what an allocation of `tokens` lacks, as the peer's scheduler does."""
        self.allocator.evict_to_free_tokens(self.cache, tokens)

    def match(self, key: Any) -> Any:
        return self.cache.match_prefix(MatchPrefixParams(key=RadixKey(key)))

    def compute(self, slots: list[Any], start: int, end: int, dead: int, evict: bool) -> int:
        """Allocates [start, end) in chunks and frees the SWA slots that leave the window; returns the new dead end."""
        while start < end:
            stop = min(end, start + sc.CHUNK)
            if evict:
                self.make_room(stop - start)
            slots.append(self.alloc(stop - start))
            new_dead = (stop - sc.WINDOW) // sc.PAGE * sc.PAGE
            if new_dead > dead:
                row = torch.cat(slots)
                self.allocator.free_swa_segment(row[dead:new_dead], start_pos=dead)
                slots[:] = [row]
                dead = new_dead
            start = stop
        return dead

    def store(self, tokens: Any, evict: bool = False) -> Any:
        """One request from match to unlock, untimed; returns its match."""
        key = array("q", tokens.astype(np.int64).tobytes())
        found = self.match(key)
        path = self.cache.path_device_indices(found.last_device_node)
        lock = self.cache.lock(found.last_device_node)
        start = found.device_prefix_len
        slots = [path[:start]]
        dead = self.compute(slots, start, len(key), start, evict)
        self.insert(key, torch.cat(slots), start, dead)
        self.cache.unlock(lock)
        return found

    def insert(self, key: Any, value: Any, prefix: int, dead: int) -> Any:
        params = InsertParams(key=RadixKey(key), value=value, prev_prefix_len=prefix, inserted_len=prefix)
        params.set_evicted_seqlen(ComponentType.SWA, dead)
        return self.cache.insert(params)


def scenario_a(scale: float) -> dict[str, Any]:
    """A whole turn at page 64, 2,000 conversations: microseconds per call, mean over all turns."""
    conversations = max(8, int(2_000 * scale))
    full = conversations * (sc.LONGEST - sc.SYSTEM_PROMPT) + 8 * sc.SYSTEM_PROMPT + 64 * sc.PAGE
    peer = Peer(full, conversations * 14 * 4 * sc.PAGE + 16_384)
    before = resident()
    parts = dict.fromkeys(("match", "path", "lock", "insert", "unlock"), 0)
    count = 0
    for _, _, tokens in sc.turns(conversations):
        key = array("q", tokens.astype(np.int64).tobytes())
        t0 = clock()
        found = peer.match(key)
        t1 = clock()
        path = peer.cache.path_device_indices(found.last_device_node)
        t2 = clock()
        lock = peer.cache.lock(found.last_device_node)
        t3 = clock()
        start = found.device_prefix_len
        slots = [path[:start]]
        dead = peer.compute(slots, start, len(key), start, evict=False)
        value = torch.cat(slots)
        t4 = clock()
        peer.insert(key, value, start, dead)
        t5 = clock()
        peer.cache.unlock(lock)
        t6 = clock()
        for name, ns in zip(parts, (t1 - t0, t2 - t1, t3 - t2, t5 - t4, t6 - t5), strict=True):
            parts[name] += ns
        count += 1
    out: dict[str, Any] = {name: ns / count / 1e3 for name, ns in parts.items()}
    out["turn"] = sum(out.values())
    out["bytes_per_token"] = (resident() - before) / (full - 64 * sc.PAGE)
    return out


def scenario_b(scale: float) -> dict[str, Any]:
    """Match of a stored prompt as 1, 13 and 196 nodes, and its path indices, with buffers rotated past the caches."""
    out: dict[str, Any] = {}
    copies = max(2, int(320 * scale))
    for nodes in (1, 13, 196):
        peer = Peer(copies * sc.LONG_PROMPT, copies * sc.LONG_PROMPT)
        keys = []
        for number in range(copies):
            key = array("q", sc.long_prompt(number).astype(np.int64).tobytes())
            row = peer.alloc(len(key))
            start = 0
            for end in [*sc.cuts(nodes), len(key)]:
                peer.insert(key[:end], row[:end].clone(), start, 0)
                start = end
            keys.append(key)
        match = path = 0
        for key in keys:
            t0 = clock()
            found = peer.match(key)
            t1 = clock()
            peer.cache.path_device_indices(found.last_device_node)
            t2 = clock()
            assert found.device_prefix_len == len(key)
            match += t1 - t0
            path += t2 - t1
        out[f"match_{nodes}"] = match / copies / 1e3
        out[f"path_{nodes}"] = path / copies / 1e3
    return out


def scenario_c(scale: float) -> dict[str, Any]:
    """Steady eviction, 1 M full slots: evict and allocate for one chunk of 8,192 tokens of 32k-token sessions."""
    full = sc.HIT_RATE_FULL_TOKENS // sc.PAGE * sc.PAGE
    peer = Peer(full, 131_072)
    warm = full // sc.SESSION + 1
    evict, alloc = [], []
    for number in range(warm + max(8, int(250 * scale))):
        tokens = sc.session(number)
        key = array("q", tokens.astype(np.int64).tobytes())
        slots: list[Any] = []
        dead = 0
        for start in range(0, len(key), sc.CHUNK):
            t0 = clock()
            peer.make_room(sc.CHUNK)
            t1 = clock()
            slots.append(peer.alloc(sc.CHUNK))
            t2 = clock()
            if number >= warm:
                evict.append((t1 - t0) / 1e3)
                alloc.append((t2 - t1) / 1e3)
            row = torch.cat(slots)
            new_dead = (start + sc.CHUNK - sc.WINDOW) // sc.PAGE * sc.PAGE
            peer.allocator.free_swa_segment(row[dead:new_dead], start_pos=dead)
            dead = new_dead
        peer.insert(key, torch.cat(slots), 0, dead)
    return {
        "evict": statistics.fmean(evict),
        "evict_p99": sorted(evict)[int(len(evict) * 0.99)],
        "alloc": statistics.fmean(alloc),
        "evict_and_alloc": statistics.fmean(evict) + statistics.fmean(alloc),
    }


def scenario_d(scale: float) -> dict[str, Any]:
    """Evict one page with 1k, 10k and 100k evictable leaves of one page each."""
    out: dict[str, Any] = {}
    for leaves in (1_000, 10_000, 100_000):
        peer = Peer((leaves + 64) * sc.PAGE, (leaves + 64) * sc.PAGE)
        tokens = sc.random_tokens(leaves * sc.PAGE, 6).astype(np.int64)
        for i in range(leaves):
            key = array("q", tokens[i * sc.PAGE : (i + 1) * sc.PAGE].tobytes())
            peer.insert(key, peer.alloc(sc.PAGE), 0, 0)
        calls = max(20, int(200 * scale))
        t0 = clock()
        for _ in range(calls):
            peer.cache.evict(EvictParams(num_tokens=1))
        out[f"evict_{leaves}"] = (clock() - t0) / calls / 1e3
    return out


def scenario_hit_rate(scale: float) -> dict[str, Any]:
    """Usable hit rate and full-KV hit rate with three sizes of the SWA pool."""
    out: dict[str, Any] = {}
    full = sc.HIT_RATE_FULL_TOKENS // sc.PAGE * sc.PAGE
    measured = max(50, int(sc.HIT_RATE_TURNS * scale))
    for share, swa in sc.HIT_RATE_SWA_TOKENS.items():
        peer = Peer(full, swa)
        turns = sc.hit_rate_turns(0)
        used = 0
        while used < 1.5 * full:
            turn = next(turns)
            used += len(turn.whole) - peer.store(turn.whole, evict=True).device_prefix_len
        usable = full_hit = prompt = 0
        for _ in range(measured):
            turn = next(turns)
            key = array("q", turn.lookup.astype(np.int64).tobytes())
            found = peer.match(key)
            usable += found.device_prefix_len
            full_hit += peer.cache.tree_core.match_full_device_prefix(RadixKey(key))[0]
            prompt += len(key)
            peer.store(turn.whole, evict=True)
        out[share] = {"usable": usable / prompt, "full_kv": full_hit / prompt}
    return out


def scenario_memory(scale: float) -> dict[str, Any]:
    """Resident bytes per token with 10 M tokens in 32k-token sessions."""
    sessions = max(4, int(10_000_000 * scale) // sc.SESSION)
    full = sessions * sc.SESSION
    peer = Peer(full, full // 16)
    before = resident()
    for number in range(sessions):
        peer.store(sc.session(number))
    return {"bytes_per_token": (resident() - before) / full, "tokens": full}


def resident() -> int:
    """Resident bytes of this process."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


RUN = {
    "a": scenario_a,
    "b": scenario_b,
    "c": scenario_c,
    "d": scenario_d,
    "hit_rate": scenario_hit_rate,
    "memory": scenario_memory,
}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median and spread of every number over the runs."""
    out: dict[str, Any] = {}
    for key, first in runs[0].items():
        values = [r[key] for r in runs]
        if isinstance(first, dict):
            out[key] = summary(values)
        else:
            middle = statistics.median(values)
            out[key] = {"median": middle, "spread": (max(values) - min(values)) / middle if middle else 0.0}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", choices=[*RUN, []], default=[])
    parser.add_argument("--runs", type=int, default=5, help="runs per scenario; each is a fresh process")
    parser.add_argument("--scale", type=float, default=1.0, help="below 1: smaller and faster, for a quick look")
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.once:
        print(json.dumps(RUN[args.scenarios[0]](args.scale)))
        return
    out: dict[str, Any] = {
        "peer": "SGLang",
        "version": importlib.metadata.version("sglang"),
        "torch": torch.__version__,
    }
    for name in args.scenarios or list(RUN):
        runs = []
        # Which tokens hit is a function of the seed alone: one run tells all.
        for i in range(1 if name == "hit_rate" else args.runs):
            print(f"peer: scenario {name}, run {i + 1}", file=sys.stderr, flush=True)
            command = [sys.executable, __file__, "--once", "--scale", str(args.scale), name]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            runs.append(json.loads(done.stdout.strip().splitlines()[-1]))
        out[name] = summary(runs)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
