"""GCache below a host tier, with real nodes: what comes is what was computed, and what fails costs time, never a token.

Each test fills the nodes with one model and reads with another, which has nothing in its own memory. In the reference
backend tokens and bits of logits are those of the same prompt in an empty cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gcache_disk import asker, disk_node, named, store
from gcache_nodes import RunningNode, nodes
from gcache_proxy import Faults, proxy
from key_vectors import chain, root_key
from mimo_cache import GCacheClient, InvalidArgument, Key, PrefixCache
from mimo_cache.gcache import ObjectId, PutItem
from mimo_cache.gcache.types import Source
from mimo_cache.runner import LLM, Completion, RequestError, SamplingParams, Sources
from mimo_cache.runner.memory import Pools
from mimo_cache.tiers import GCacheTier, HostTier, Prefetch, TierReceive, device_layout
from mimo_cache.tiers.objects import FULL, SWA, pack_record, unpack_record
from mimo_cache.tiers.receiver import Receiver
from small_models import checkpoint

PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, keep_logits=True)
SHORT = "A page never spans two prefixes. " * 4
LONG = SHORT + "The window is what an SWA layer reads. " * 4 + "Yes."
PATIENCE = 20.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("checkpoint"), max_positions=1000)


@pytest.fixture(scope="module")
def alone(path: Path) -> dict[str, Completion]:
    """What the prompts are completed with when nothing is cached."""
    return {text: LLM(path, backend="reference", memory="4M").generate(text, PARAMS)[0] for text in (SHORT, LONG)}


@pytest.fixture
def cluster() -> Iterator[list[RunningNode]]:
    with nodes("one", "two", memory__size="16MiB") as running:
        yield running


@pytest.fixture
def node() -> Iterator[RunningNode]:
    with nodes("one", memory__size="16MiB") as running:
        yield running[0]


class Site:
    """Models on the same nodes, closed and checked at the end."""

    def __init__(self, path: Path, cluster: list[RunningNode]) -> None:
        self.path, self.cluster = path, cluster
        self.made: list[LLM] = []
        self.clients: list[GCacheClient] = []

    def client(self, **options: Any) -> GCacheClient:
        options = {"deadline": 1.0, "fast_path": False, **options}
        self.clients.append(GCacheClient([node.address for node in self.cluster], **options))
        return self.clients[-1]

    def llm(self, *, client: GCacheClient | None = None, host_write: str = "through", **options: Any) -> LLM:
        options = {"prefetch": "wait", "timeout": 5.0, "lease_ms": 0, **options}
        made = LLM(
            self.path,
            backend="reference",
            memory="4M",
            host_memory="8M",
            host_write=host_write,
            gcache=client or self.client(),
            gcache_options=options,
        )
        self.made.append(made)
        return made

    def fill(self, *texts: str) -> LLM:
        """Another process, as it were, has computed these prompts."""
        llm = self.llm()
        for text in texts:
            llm.generate(text, PARAMS)
        flush(llm)
        assert remote(llm).stats()["pages_failed"] == 0
        return llm

    def close(self) -> None:
        for llm in self.made:
            begin = time.monotonic()
            flush_in(llm)
            llm.close()
            assert time.monotonic() - begin < PATIENCE
            assert llm.tier is not None
            stats = llm.tier.stats()
            assert (stats.lending, stats.fetching) == (0, 0)
            llm.tier.drain()
            llm.tier.check_integrity()
            llm.cache.check_integrity()
            host = llm.tier.planner.host_stats()
            for pool in (host.full, host.swa):
                assert (pool.private, pool.leased, pool.quarantined) == (0, 0, 0)
        for client in self.clients:
            client.close()


def flush_in(llm: LLM) -> None:
    """Waits until nothing comes any more."""
    until = time.monotonic() + PATIENCE
    while remote(llm).stats()["bytes_in_flight"] or remote(llm).stats()["queued"]:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def site(path: Path, cluster: list[RunningNode]) -> Iterator[Site]:
    made = Site(path, cluster)
    yield made
    made.close()


@pytest.fixture
def single(path: Path, node: RunningNode) -> Iterator[Site]:
    made = Site(path, [node])
    yield made
    made.close()


def remote(llm: LLM) -> GCacheTier:
    assert llm.remote is not None
    return llm.remote


def flush(llm: LLM) -> None:
    """All that was computed is in GCache."""
    assert llm.tier is not None
    llm.tier.drain()
    assert remote(llm).writer.flush(PATIENCE)


def brought(made: Completion) -> int:
    """Tokens that GCache brought for a request."""
    sources = made.sources
    return sources.gcache_memory + sources.gcache_disk + sources.gcache_remote


def adds_up(made: Completion) -> None:
    """Every prompt token came from one place."""
    sources, report = made.sources, made.report
    assert sources.total == report.prompt_tokens
    assert min(dataclasses.astuple(sources)) >= 0
    assert made.wait >= 0
    assert (sources.device, sources.computed) == (report.usable, sum(report.misses.values()))


def same(found: Completion, want: Completion) -> None:
    adds_up(found)
    assert found.token_ids == want.token_ids
    assert torch.equal(found.logits, want.logits)


def objects(llm: LLM, text: str, part: int) -> list[ObjectId]:
    """Objects of the pages of a prompt that are in GCache."""
    tier, tokens = remote(llm), llm.tokenizer.encode(text)
    assert llm.tier is not None
    names = llm.tier.planner.names(tokens)
    masks = tier.client.exists(names, tier.objects.extents(names, 0, len(names)))
    return [tier.objects.object(names, i, part) for i, mask in enumerate(masks) if mask >> part & 1]


def whole(llm: LLM, text: str) -> int:
    """Tokens of a prompt in whole pages, with one left to compute."""
    return (len(llm.tokenizer.encode(text)) - 1) // llm.cache.page_size * llm.cache.page_size


# --- hits -------------------------------------------------------------------------------------------------------------


def test_what_another_process_computed_is_not_computed_again(site: Site, alone: dict[str, Completion]) -> None:
    first = site.fill(LONG)
    assert remote(first).stats()["pages_out"] == len(objects(first, LONG, FULL)) + len(objects(first, LONG, SWA))
    llm = site.llm()
    made = llm.generate(LONG, PARAMS)[0]
    same(made, alone[LONG])
    stats = remote(llm).stats()
    assert stats["tokens"] == llm.engine.tally.remote == llm.engine.tally.fetched == whole(llm, LONG)
    assert stats["tokens_by_source"] == {"memory": whole(llm, LONG), "disk": 0, "remote": 0}
    left = len(llm.tokenizer.encode(LONG)) - whole(llm, LONG)
    assert made.sources == Sources(0, 0, whole(llm, LONG), 0, 0, left)
    assert stats["hits"] == 1
    assert not any(stats["misses"].values())
    # A second time it is here, and what is there is not written again.
    made = llm.generate(LONG, PARAMS)[0]
    same(made, alone[LONG])
    assert made.sources == Sources(whole(llm, LONG), 0, 0, 0, 0, left)
    flush(llm)
    assert remote(llm).stats()["tokens"] == stats["tokens"]
    assert remote(llm).stats()["pages_out"] == 0


@pytest.mark.parametrize("policy", ["wait", "best_effort"])
def test_what_comes_from_a_nodes_disk_says_so(
    path: Path, alone: dict[str, Completion], tmp_path: Path, policy: str
) -> None:
    with disk_node(tmp_path / "disk", promote_after=255) as node:
        site = Site(path, [node])
        site.fill(LONG)
        with asker(node) as client:  # other values push its pages out of memory
            store(client, named("other", count=150))
            pages = [*objects(site.made[0], LONG, FULL), *objects(site.made[0], LONG, SWA)]
            assert [r.source for r in client.get(pages)] == ["disk"] * len(pages)
        llm = site.llm(prefetch=policy)
        if policy == "best_effort":  # it comes while the request is queued
            handle = remote(llm).prefetch(llm.tokenizer.encode(LONG))
            assert handle.wait(PATIENCE)
            assert handle.sources == remote(llm).stats()["tokens_by_source"]
        made = llm.generate(LONG, PARAMS)[0]
        same(made, alone[LONG])
        stats = remote(llm).stats()
        assert sum(stats["tokens_by_source"].values()) == stats["tokens"] == whole(llm, LONG)
        assert stats["tokens_by_source"]["disk"] == stats["tokens"]
        if policy == "wait":
            assert made.sources.gcache_disk == brought(made) == whole(llm, LONG)
        else:  # another prefetch had brought it
            assert (made.sources.host, brought(made)) == (whole(llm, LONG), 0)
        site.close()


@pytest.mark.parametrize("way", ["unix", "fast"])
def test_every_way_to_a_node_serves(site: Site, alone: dict[str, Completion], way: str) -> None:
    site.fill(LONG)
    client = GCacheClient([node.unix for node in site.cluster], fast_path=way == "fast", deadline=5.0)
    site.clients.append(client)
    llm = site.llm(client=client, lease_ms=500)
    same(llm.generate(LONG, PARAMS)[0], alone[LONG])
    assert remote(llm).stats()["tokens"] == whole(llm, LONG)


def test_a_killed_and_restarted_node_still_has_them(site: Site, alone: dict[str, Completion]) -> None:
    site.fill(LONG)
    for node in site.cluster:
        node.kill()
        node.start()
    llm = site.llm(client=site.client(deadline=5.0))
    same(llm.generate(LONG, PARAMS)[0], alone[LONG])
    assert remote(llm).stats()["tokens"] == whole(llm, LONG)


def test_other_weights_find_nothing(site: Site, alone: dict[str, Completion]) -> None:
    site.fill(LONG)
    llm = site.llm()
    llm.cache.set_weights("another version")
    same(llm.generate(LONG, PARAMS)[0], alone[LONG])
    assert remote(llm).stats()["tokens"] == 0


def test_what_the_device_has_and_host_memory_lacks_comes_from_there(site: Site, alone: dict[str, Completion]) -> None:
    site.fill(SHORT, LONG)
    llm = site.llm(host_write="hit9")
    remote(llm).patience = 0.0
    assert llm.tier is not None
    llm.engine.remote, held = None, llm.engine.remote
    same(llm.generate(SHORT, PARAMS)[0], alone[SHORT])  # on the device alone
    llm.engine.remote = held
    remote(llm).patience = 5.0
    made = llm.generate(LONG, PARAMS)[0]
    same(made, alone[LONG])
    assert (made.sources.device, made.sources.host) == (whole(llm, SHORT), 0)
    assert brought(made) == whole(llm, LONG) - whole(llm, SHORT)
    stats, page = llm.tier.stats(), llm.cache.page_size
    assert stats.received_full == whole(llm, LONG) // page - whole(llm, SHORT) // page
    assert llm.tier.planner.host_stats().full.cached == whole(llm, LONG) // page


def test_two_requests_for_one_prefix_are_one_fetch(site: Site, alone: dict[str, Completion]) -> None:
    site.fill(LONG)
    client = site.client()
    llm = site.llm(client=client, threads=4)
    completions = llm.generate([LONG, LONG, LONG], PARAMS)
    for made in completions:
        same(made, alone[LONG])
    # The first brings it up, unless a later one has brought it by then; the others find it on the device.
    assert [made.sources.device for made in completions] == [0, whole(llm, LONG), whole(llm, LONG)]
    assert brought(completions[0]) + completions[0].sources.host == whole(llm, LONG)
    stats, page = remote(llm).stats(), llm.cache.page_size
    assert stats["tokens"] == whole(llm, LONG)
    assert client.metrics()["get_hits"] == stats["pages_in"] <= whole(llm, LONG) // page + 2


def test_hits_decide_what_is_written(site: Site) -> None:
    llm = site.llm(write="hit1")
    llm.generate(LONG, PARAMS)
    flush(llm)
    assert remote(llm).stats()["pages_out"] == 0
    llm.generate(LONG, PARAMS)
    llm.generate(LONG, PARAMS)
    flush(llm)
    assert len(objects(llm, LONG, FULL)) == whole(llm, LONG) // llm.cache.page_size


def test_prefixes_in_use_are_touched(site: Site) -> None:
    llm = site.fill(LONG)
    before = remote(llm).stats()["touches"]
    llm.generate(LONG, PARAMS)
    until = time.monotonic() + PATIENCE
    while remote(llm).stats()["touches"] == before:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert remote(llm).stats()["touches"] <= len(objects(llm, LONG, FULL)) + len(objects(llm, LONG, SWA))
    quiet = site.llm(touch=False)
    quiet.generate(LONG, PARAMS)
    assert not quiet.remote.writer._used  # type: ignore[union-attr]


# --- what is missing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [FULL, SWA])
def test_a_page_without_one_group_truncates(site: Site, alone: dict[str, Completion], part: int) -> None:
    first = site.fill(SHORT, LONG)
    assert remote(first).client.delete([objects(first, LONG, part)[-1]]).deleted == 1
    llm = site.llm()
    same(llm.generate(LONG, PARAMS)[0], alone[LONG])
    stats = remote(llm).stats()
    assert 0 < stats["tokens"] <= whole(llm, SHORT)
    assert not any(stats["misses"].values())


class Interrupted(Receiver):
    """Something happens to the objects of a prefetch between exists and get, once."""

    between: Any = None

    def get(self, handle: Prefetch, plan: TierReceive, *rest: Any) -> dict[tuple[int, int], str]:
        if self.between is not None:
            self.between, between = None, self.between
            between(self.tier, plan, rest[0])
        return super().get(handle, plan, *rest)


def interrupted(site: Site, between: Any, **options: Any) -> LLM:
    llm = site.llm(**options)
    made = Interrupted(remote(llm))
    made.between = between
    remote(llm).receiver = made
    return llm


@pytest.mark.parametrize("part", [FULL, SWA])
@pytest.mark.parametrize("how", ["lost", "other bytes", "other length", "other layout"])
def test_a_page_that_goes_between_exists_and_get_truncates(
    site: Site, alone: dict[str, Completion], part: int, how: str
) -> None:
    site.fill(SHORT, LONG)

    def between(tier: GCacheTier, plan: TierReceive, names: list[bytes]) -> None:
        victim = tier.objects.object(names, (plan.full if part == FULL else plan.swa)[-1][0], part)
        assert tier.client.delete([victim]).deleted == 1
        size, number = tier.objects.bytes_of(part), tier.objects.number
        if how == "lost":
            return
        value = b"\xff" * (size + (how == "other length"))
        if part == FULL and how == "other bytes":
            value = value[1:]
        tier.client.put([PutItem(victim, value, layout=number + (how == "other layout"))])

    llm = interrupted(site, between)
    same(llm.generate(LONG, PARAMS)[0], alone[LONG])
    stats = remote(llm).stats()
    assert stats["misses"]["lost" if how == "lost" else "damaged"] == 1
    assert stats["hits"] == stats["shortened"] == 1
    # What had come was used: no page was asked for twice.
    assert stats["tokens"] == whole(llm, SHORT)
    assert stats["pages_in"] <= whole(llm, LONG) // llm.cache.page_size + 2


def test_a_shorter_boundary_takes_what_the_device_has(site: Site, alone: dict[str, Completion]) -> None:
    longer = LONG + " And the same again, with more words than one page holds." * 2
    site.fill(SHORT, LONG, longer)

    def between(tier: GCacheTier, plan: TierReceive, names: list[bytes]) -> None:
        assert len(plan.full_pairs) > 0
        assert tier.client.delete([tier.objects.object(names, plan.full[-1][0], FULL)]).deleted == 1

    llm = interrupted(site, between, host_write="hit9")
    llm.engine.remote, held = None, llm.engine.remote
    same(llm.generate(SHORT, PARAMS)[0], alone[SHORT])  # on the device alone
    llm.engine.remote = held
    want = LLM(site.path, backend="reference", memory="4M").generate(longer, PARAMS)[0]
    same(llm.generate(longer, PARAMS)[0], want)
    stats = remote(llm).stats()
    assert (stats["misses"]["lost"], stats["shortened"]) == (1, 1)
    assert stats["tokens"] == whole(llm, LONG) - whole(llm, SHORT)


def test_bytes_that_changed_in_the_nodes_memory_are_a_miss(single: Site, alone: dict[str, Completion]) -> None:
    first = single.fill(LONG)
    victim = objects(first, LONG, FULL)[2]
    found = remote(first).client.get([victim])[0].data
    assert found is not None
    value = bytes(found)
    memory = Path(single.cluster[0].folder) / "one.memory"
    data = memory.read_bytes()
    at = data.index(value)
    with memory.open("r+b") as opened:
        opened.seek(at + 100)
        opened.write(bytes([data[at + 100] ^ 1]))
    llm = single.llm()
    same(llm.generate(LONG, PARAMS)[0], alone[LONG])
    stats = remote(llm).stats()
    assert (stats["tokens"], stats["misses"]["damaged"]) == (0, 1)
    # It was computed, and written again.
    flush(llm)
    healed = remote(first).client.get([victim])[0].data
    assert healed is not None
    assert bytes(healed) == value


def test_another_layout_is_another_name(site: Site, alone: dict[str, Completion], monkeypatch: Any) -> None:
    site.fill(LONG)
    ordinary = Pools.layout

    def swapped(self: Pools, kinds: Any) -> Any:
        """V before K: the same sizes of pages in another order."""
        self.full_k, self.full_v = self.full_v, self.full_k
        try:
            return ordinary(self, kinds)
        finally:
            self.full_k, self.full_v = self.full_v, self.full_k

    monkeypatch.setattr(Pools, "layout", swapped)
    llm = site.llm()
    same(llm.generate(LONG, PARAMS)[0], alone[LONG])
    assert remote(llm).stats()["tokens"] == 0
    assert not any(remote(llm).stats()["misses"].values())


def test_a_host_tier_without_room_computes(site: Site, alone: dict[str, Completion]) -> None:
    site.fill(LONG)
    llm = site.llm()
    assert llm.tier is not None
    planner, tokens = llm.tier.planner, list(range(1, 100))
    held: list[TierReceive] = []
    while True:  # its pool is full of what nobody has finished
        tokens = [len(held) + 1, *tokens[1:]]
        plan = planner.receive(tokens, 96, planner.names(tokens)[96 // llm.cache.page_size - 1])
        if plan is None:
            break
        held.append(plan)
    assert held
    same(llm.generate(LONG, PARAMS)[0], alone[LONG])
    assert remote(llm).stats()["misses"]["no room"] == 1
    for plan in held:
        planner.received(plan.id, None)


# --- nodes that do not answer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["best_effort", "wait", "deadline:100"])
@pytest.mark.parametrize("state", ["dead", "hung"])
def test_a_node_that_does_not_answer_costs_a_deadline(
    single: Site, alone: dict[str, Completion], policy: str, state: str
) -> None:
    single.fill(LONG)
    node = single.cluster[0]
    llm = single.llm(client=single.client(deadline=0.5), prefetch=policy, timeout=0.5)
    node.kill() if state == "dead" else node.pause()
    begin = time.monotonic()
    same(llm.generate(LONG, PARAMS)[0], alone[LONG])
    assert time.monotonic() - begin < 5.0  # the answer itself takes a tenth of a second
    assert llm.engine.tally.remote == 0
    if state == "hung":
        node.resume()


def test_pages_that_come_late_are_kept(single: Site, alone: dict[str, Completion]) -> None:
    single.fill(LONG)
    node = single.cluster[0]
    llm = single.llm(client=single.client(deadline=20.0), prefetch="deadline:50", timeout=20.0)
    node.pause()
    same(llm.generate(LONG, PARAMS)[0], alone[LONG])
    assert remote(llm).stats()["left"] == 1
    assert llm.engine.tally.remote == 0
    node.resume()
    until = time.monotonic() + PATIENCE
    while not remote(llm).stats()["hits"]:
        # Unless it was computed and saved meanwhile, which the prefetch then finds.
        if llm.tier is not None and llm.tier.planner.usable(llm.tokenizer.encode(LONG)) and not busy(llm):
            break
        assert time.monotonic() < until
        time.sleep(0.01)


def busy(llm: LLM) -> bool:
    return bool(remote(llm)._coming or remote(llm)._queue)


def test_a_request_that_waits_lets_others_pass(single: Site, alone: dict[str, Completion]) -> None:
    single.fill(LONG)
    node = single.cluster[0]
    llm = single.llm(client=single.client(deadline=20.0), prefetch="deadline:1500", timeout=20.0)
    engine = llm.engine
    node.pause()
    slow = engine.add(llm.tokenizer.encode(LONG), PARAMS)
    quick = engine.add(llm.tokenizer.encode("short"), PARAMS)  # no page at all
    ended, tokens = [], []
    while engine.busy:
        for output in engine.step():
            tokens += [output.token] if output.uid == slow else []
            ended += [output.uid] if output.finish else []
    assert ended == [quick, slow]
    assert tokens == alone[LONG].token_ids
    node.resume()


def test_an_aborted_request_leaves_nothing(single: Site, alone: dict[str, Completion]) -> None:
    single.fill(LONG)
    node = single.cluster[0]
    llm = single.llm(client=single.client(deadline=5.0))
    node.pause()
    uid = llm.engine.add(llm.tokenizer.encode(LONG), PARAMS)
    assert llm.engine.step() == []
    assert llm.engine.abort(uid)
    node.resume()
    assert not llm.engine.busy
    flush_in(llm)
    same(llm.generate(LONG, PARAMS)[0], alone[LONG])


def test_close_ends_threads_that_wait_for_a_hung_node(single: Site) -> None:
    single.fill(LONG)
    node = single.cluster[0]
    llm = single.llm(client=single.client(deadline=1.0), prefetch="best_effort", timeout=1.0)
    node.pause()
    handles = [remote(llm).prefetch([*llm.tokenizer.encode(LONG), i]) for i in range(8)]
    begin = time.monotonic()
    assert remote(llm).close()
    assert time.monotonic() - begin < 5.0
    assert all(handle.wait(1.0) for handle in handles)
    node.resume()
    assert remote(llm).prefetch(llm.tokenizer.encode(LONG)).done()


def test_a_bad_network_costs_time_and_no_token(path: Path, node: RunningNode, alone: dict[str, Completion]) -> None:
    for seed in range(3):
        with proxy(node.tcp, seed) as network:
            site = Site(path, [node])
            site.fill(SHORT, LONG)
            client = GCacheClient([f"one={network.address}"], deadline=0.3, fast_path=False)
            site.clients.append(client)
            network.faults = Faults(flip=0.05, cut=0.02, truncate=0.02, delay=0.2, swallow=0.01)
            for text in (LONG, SHORT, LONG):
                llm = site.llm(client=client, timeout=0.5)
                same(llm.generate(text, PARAMS)[0], alone[text])
            site.close()


@pytest.mark.parametrize("policy", ["wait", "best_effort"])
def test_sessions_that_fit_in_neither_device_nor_host_memory(site: Site, policy: str) -> None:
    texts = [f"Session {i} speaks of {word}. " * 6 for i, word in enumerate(["pages", "groups", "tiers", "keys"] * 2)]
    sizes: dict[str, Any] = {"full_pages": 24, "swa_pages": 40, "scratch_pages": 10}
    plain = LLM(site.path, backend="reference", **sizes)
    want = [plain.generate(text, PARAMS)[0] for text in texts]
    llm = LLM(
        site.path,
        backend="reference",
        host_memory="620K",
        host_write="through",
        gcache=site.client(),
        gcache_options={"prefetch": policy, "max_bytes": 100_000, "threads": 3},
        **sizes,
    )
    site.made.append(llm)
    together = 2 if policy == "wait" else 4
    all_made: list[Completion] = []
    for _ in range(3):
        for some in range(0, len(texts), together):
            made = llm.generate(texts[some : some + together], PARAMS)
            all_made += made
            for one, told in zip(made, want[some : some + together], strict=True):
                same(one, told)
            if policy == "wait":
                flush(llm)
            llm.cache.check_integrity()
            llm.tier.check_integrity()  # type: ignore[union-attr]
        flush(llm)
    assert remote(llm).stats()["tokens"] > 0
    # What came up is what the completions say.
    assert sum(made.sources.host + brought(made) for made in all_made) == llm.engine.tally.fetched > 0
    assert policy == "best_effort" or sum(map(brought, all_made)) > 0
    assert llm.tier is not None
    assert llm.tier.planner.host_stats().full.total < len(texts) * 10


def test_pages_count_for_the_slowest_of_their_objects() -> None:
    """The rule of `Sources`, on pages of 4 tokens and a window of two of them."""

    def handle(start: int, came: dict[int, Source]) -> Prefetch:
        made = Prefetch(np.zeros(64, np.uint32), None, None, 0, 0.0, 4, 2)
        made.start = start
        made.brought(came)
        return made

    assert handle(0, {}).split(0, 32) == {}
    assert handle(0, {0: "memory", 1: "disk"}).split(0, 8) == {"memory": 4, "disk": 4}
    # Pages 2 to 4 lay in host memory and were of no use without the window that came; 0 and 1 were.
    assert handle(8, {5: "memory", 6: "disk"}).split(4, 28) == {"disk": 4 * 4, "memory": 4}
    # The request was opened with less: the window there is not the one that came.
    assert handle(8, {5: "memory", 6: "disk"}).split(4, 20) == {}
    assert handle(8, {4: "remote"}).split(0, 20) == {"remote": 12}
    # What another prefetch brought counts as far as the prompts are one.
    first, second = handle(0, {0: "disk", 1: "disk", 2: "disk"}), handle(0, {})
    first.names, second.names = [b"a", b"b", b"c"], [b"a", b"b", b"x", b"y"]
    second.shares(first)
    assert second.split(0, 16) == {"disk": 8}
    second.brought({2: "memory"})
    second.end = 12
    assert second.sources == {"memory": 4, "disk": 8, "remote": 0}


# --- values and arguments ---------------------------------------------------------------------------------------------


def test_records_are_bounded() -> None:
    for record in ([], [7], [1, 2, 3], list(range(8)), [2**32 - 1] * 8):
        assert unpack_record(pack_record(record), 8) == record
    assert unpack_record(pack_record([1, 2, 3]), 2) is None
    for wrong in (b"", b"\x00" * 35, b"\xff" * 36, b"\x00" * 37, (9).to_bytes(4, "little") + b"\x00" * 32):
        assert unpack_record(wrong, 8) is None
    assert unpack_record(b"\x00" * 32 + b"\x01" * 4, 8) is None


def test_names_are_those_of_the_documents(path: Path) -> None:
    """docs/keys.md and docs/tiers.md, read by another program."""
    llm = LLM(path, memory="4M", host_memory="8M", weights="v7")
    assert llm.tier is not None
    layout, tokens = llm.tier.layout, list(range(1, 100))
    text = b"mimo-cache pages 1"
    pools = llm.engine.model.pools
    sizes = {"full": [pools.full_k, pools.full_v], "swa": [pools.swa_k, pools.swa_v]}
    for group in ("full", "swa"):
        parts = [(i, t[0, 0].nbytes) for i, k in enumerate(llm.config.layer_kinds) if k == group for t in sizes[group]]
        if group == "swa":
            heads, last = llm.config.mtp_heads, len(llm.config.layer_kinds)
            parts += [(last, t[0, 0].nbytes) for _ in range(heads) for t in sizes[group]] + [
                (last, pools.hidden[0].nbytes)
            ]
        text += struct.pack("<I", len(parts)) + b"".join(struct.pack("<IQ", *one) for one in parts)
    assert layout.digest == hashlib.sha256(text).digest()
    root = root_key(llm.geometry.fingerprint, b"v7", b"", b"salt", 0)
    want = [hashlib.sha256(b"O" + layout.digest + key).digest() for key in chain(root, tokens, [], 16)]
    planner, key = llm.tier.planner, Key(salt=b"salt")
    assert planner.names(tokens, key) == want
    llm.generate(tokens, PARAMS, key=key)  # now they are in the tree
    assert planner.names(tokens, key) == want
    assert planner.names([*tokens[:50], 7, *tokens[51:]], key)[:3] == want[:3]
    llm.cache.clear(key)
    assert not set(planner.names(tokens, key)) & set(want)


def test_a_layout_has_a_number_of_its_own() -> None:
    def layout(*shapes: tuple[int, ...]) -> bytes:
        return device_layout(full=[(torch.zeros(3, *shape), i) for i, shape in enumerate(shapes)]).digest

    made = [layout((4, 8)), layout((4, 8), (4, 8)), layout((4, 8), (4, 4)), layout((4, 4), (4, 8)), layout((8, 4, 2))]
    assert len(set(made)) == len(made)
    assert layout((4, 8)) == layout((8, 4)) == layout((2, 16))
    assert len(made[0]) == 32


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"write": "back"}, "write is 'back', allowed is \"through\""),
        ({"write": "hit0"}, "write is 'hit0'"),
        ({"prefetch": "deadline:0"}, "prefetch is 'deadline:0'"),
        ({"prefetch": 5}, "prefetch is 5"),
        ({"timeout": 0}, "timeout is 0"),
        ({"threads": 0}, "threads is 0"),
        ({"extent": 0}, "extent is 0"),
        ({"max_bytes": "8M"}, "max_bytes is '8M'"),
    ],
)
def test_bad_options_are_refused(path: Path, options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidArgument, match=match):
        LLM(path, memory="4M", host_memory="8M", gcache=["one=127.0.0.1:1"], gcache_options=options)


def test_gcache_needs_host_memory(path: Path) -> None:
    with pytest.raises(RequestError, match="gcache is given without host_memory"):
        LLM(path, memory="4M", gcache=["one=127.0.0.1:1"])


def test_a_cache_that_was_told_no_weights_is_refused(site: Site) -> None:
    cache = PrefixCache.plain(page_size=4, window=0, full_pages=8, swa_pages=0)
    layout = device_layout(full=[(np.zeros((9, 64), np.uint8), 0)], swa=[])
    host = HostTier(cache, layout, full_pages=8, swa_pages=0)
    with pytest.raises(InvalidArgument, match="version of the weights is empty"):
        GCacheTier(host, site.client())
    host.close()


def test_what_would_come_slower_than_it_is_computed_is_not_fetched(site: Site, alone: dict[str, Completion]) -> None:
    other = "Another text, of which nothing is known. " * 6
    filled = site.fill(LONG, other)
    llm = site.llm(prefill_rate=1e12)
    same(llm.generate(LONG, PARAMS)[0], alone[LONG])  # how fast pages come is not known yet
    made = llm.generate(other, PARAMS)[0]
    same(made, filled.generate(other, PARAMS)[0])
    assert remote(llm).stats()["misses"]["declined"] == 1
    assert brought(made) == 0


def test_a_page_counts_when_all_its_shards_are_there(site: Site, alone: dict[str, Completion]) -> None:
    def serve(shard: int) -> tuple[LLM, Completion]:
        llm = site.llm(shard=shard, shards=2)
        made = llm.generate(LONG, PARAMS)[0]
        same(made, alone[LONG])
        flush(llm)
        return llm, made

    for shard in (0, 0, 1):  # until the last of them nobody has written shard 1
        assert brought(serve(shard)[1]) == 0
    for shard in (0, 1):
        llm, made = serve(shard)
        assert brought(made) == whole(llm, LONG)
    tier = remote(llm)
    names = tier.host.planner.names(llm.tokenizer.encode(LONG))
    gone = tier.objects.object(names, 1, FULL)._replace(part=FULL)  # the other one's
    assert tier.client.delete([gone]).deleted == 1
    assert brought(serve(1)[1]) == 0
    for shard, shards in ((2, 2), (-1, 2), (0, 33), (0, 0)):
        with pytest.raises(InvalidArgument, match="shard"):
            site.llm(shard=shard, shards=shards)


def test_nodes_may_come_as_the_environment_has_them(path: Path, cluster: list[RunningNode]) -> None:
    text = "What one process computed another one reads. " * 5
    made = []
    for _ in range(2):
        llm = LLM(
            path,
            backend="reference",
            memory="4M",
            host_memory="8M",
            gcache=",".join(node.address for node in cluster),
            gcache_options={"timeout": PATIENCE},
        )
        made.append(llm.generate(text, PARAMS)[0])
        flush(llm)
        llm.close()
    same(made[1], made[0])
    assert brought(made[1]) == whole(llm, text)  # it waits for them, unless told otherwise


def test_options_that_there_are_not_are_named(path: Path) -> None:
    with pytest.raises(RequestError, match=r"gcache_options has 'patience', allowed are .*prefetch"):
        LLM(path, host_memory="8M", gcache=["127.0.0.1:1"], gcache_options={"patience": 1})
    with pytest.raises(RequestError, match="host_memory is '8X'"):
        LLM(path, host_memory="8X")
