"""What the tiers tell of themselves: text that Prometheus reads, with the numbers that happened, and a tracer's spans.

Requests run on tiny pools with a host tier, and in one test on a GCache node below it.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import threading
from collections import Counter
from typing import Any

import pytest

from mimo_cache import InvalidArgument
from mimo_cache.runner import LLM, Completion, RequestError, SamplingParams
from mimo_cache.tiers import HostTier, metrics
from mimo_cache.tiers.trace import NOTHING, Spans
from mimo_cache.tiers.watch import BUCKETS, Histogram

PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)
TEXT = "The class statement defines a class object. " * 8
OTHERS = [f"The {word} statement does something else. " * 12 for word in ("print", "import")]


def small(**options: Any) -> LLM:
    """Device memory for one of the texts."""
    sizes: dict[str, Any] = {"full_pages": 50, "swa_pages": 100, "scratch_pages": 40, "backend": "reference"}
    return LLM("tiny", host_memory="64M", host_write="through", **sizes, **options)


def serve(llm: LLM) -> list[Completion]:
    """The first text, others that push it out of the device, and the first one again."""
    made = [llm.generate(text, PARAMS)[0] for text in (TEXT, *OTHERS, TEXT)]
    assert llm.tier is not None
    llm.tier.drain()
    return made


def read(text: str) -> dict[str, float]:
    """Samples by name and labels, after what the format promises was checked."""
    parser = pytest.importorskip("prometheus_client.parser")
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    names = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M)
    helps = re.findall(r"^# HELP (\S+) \S.*$", text, re.M)
    assert [name for name, _ in names] == helps
    assert len(helps) == len(set(helps)) == len(families)
    found: dict[str, float] = {}
    for name, kind in names:
        assert name.startswith("mimo_cache_")
        assert (kind == "counter") == name.endswith("_total"), name
        family = families[name.removesuffix("_total")]
        assert family.type == kind
        assert family.samples, name
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sample.labels.items())
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert key not in found, "a sample twice"
            found[key.removeprefix("mimo_cache_")] = sample.value
        if kind == "histogram":
            counts = [s.value for s in family.samples if s.name.endswith("_bucket")]
            assert counts == sorted(counts)
            assert counts[-1] == found[f"{name.removeprefix('mimo_cache_')}_count"]
            assert name.endswith("_seconds")
    return found


def test_the_numbers_are_what_happened() -> None:
    llm = small()
    assert llm.tier is not None
    before = read(llm.metrics())
    assert {name for name, value in before.items() if value} <= {
        f"pool_{state}pages{{tier={tier},group={group}}}"
        for state in ("", "free_")
        for tier in ("device", "host")
        for group in ("full", "swa")
    }
    made = serve(llm)
    found, stats = read(llm.metrics()), llm.tier.stats()
    assert found.keys() == before.keys()
    assert made[-1].sources.host > 0
    for name in ("device", "host", "gcache_memory", "gcache_disk", "gcache_remote"):
        assert found[f"hit_tokens_total{{source={name}}}"] == sum(getattr(one.sources, name) for one in made), name
    misses = sum(value for name, value in found.items() if name.startswith("miss_tokens_total"))
    assert misses == sum(one.sources.computed for one in made)
    assert found["prompt_tokens_total"] == sum(one.sources.total for one in made)
    assert found["host_pages_total{way=up,group=full}"] == stats.fetched_full > 0
    assert found["host_pages_total{way=down,group=swa}"] == stats.saved_swa > 0
    layout = llm.tier.layout
    up = stats.fetched_full * layout.full_page_bytes + stats.fetched_swa * layout.swa_page_bytes
    assert found["host_bytes_total{way=up}"] == up
    assert found["fetch_seconds_count"] == stats.fetches == 1
    assert found["save_seconds_count"] == stats.saves
    layers = len(llm.config.layer_kinds)
    assert found["layer_wait_seconds_count"] == layers
    # The engine counts the same waits a little around them.
    assert 0 < found["layer_wait_seconds_sum"] <= found["wait_seconds_total"] <= made[-1].wait
    assert made[-1].wait == llm.engine.tally.wait_seconds
    assert found["copy_seconds_total"] > 0
    assert found["evicted_pages_total{tier=device,group=full}"] == llm.cache.stats().full_evicted > 0
    assert found["evicted_pages_total{tier=host,group=full}"] == 0
    assert (found["host_fetching"], found["host_saving_pages"], found["copier_jobs"]) == (0, 0, 0)
    assert llm.metrics() == metrics(llm.tier) == llm.metrics(), "reading changes nothing"


def test_what_fails_has_a_cause_and_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = HostTier.finish
    monkeypatch.setattr(HostTier, "finish", lambda tier, fetch, ok=True: finish(tier, fetch, ok=False))
    llm = small()
    made = serve(llm)[-1]
    found = read(llm.metrics())
    assert found["host_misses_total{cause=fetch_failed}"] == found["fetch_seconds_count"] == 1
    assert found["hit_tokens_total{source=host}"] == made.sources.host == 0
    assert made.sources.total == made.report.prompt_tokens


def test_metrics_need_a_host_tier() -> None:
    with pytest.raises(RequestError, match="there is no host tier"):
        LLM("tiny", memory="4M").metrics()


def test_any_thread_may_read_while_requests_run() -> None:
    llm = small()
    stop, failed = threading.Event(), list[BaseException]()

    def scrape() -> None:
        last: dict[str, float] = {}
        try:
            while not stop.wait(0.01):
                found = read(llm.metrics())
                for name, value in found.items():
                    if "_total" in name or "_seconds_" in name:
                        assert value >= last.get(name, 0.0), name
                last = found
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=scrape) for _ in range(2)]
    for thread in threads:
        thread.start()
    serve(llm)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed, failed


def test_times_are_counted_in_the_right_bucket() -> None:
    histogram = Histogram()
    values = [0.0, 1e-5, 1.1e-5, 0.003, BUCKETS[-1], BUCKETS[-1] + 1, 1e9]

    def add() -> None:
        for value in values * 100:
            histogram.add(value)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts, total = histogram.read()
    assert total == pytest.approx(400 * sum(values))
    assert list(BUCKETS) == sorted(BUCKETS)
    for place, bound in enumerate((*BUCKETS, float("inf"))):
        below = BUCKETS[place - 1] if place else -1.0
        assert counts[place] == 400 * sum(below < value <= bound for value in values)


# --- spans ------------------------------------------------------------------------------------------------------------


def exporter() -> tuple[Any, Any]:
    """A tracer of the real SDK, and what has been exported."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    provider, kept = sdk.TracerProvider(), memory.InMemorySpanExporter()
    provider.add_span_processor(export.SimpleSpanProcessor(kept))
    return provider.get_tracer("test"), kept


def spans(kept: Any, name: str) -> list[Any]:
    """Those of one kind, in the order of their ends."""
    return [span for span in kept.get_finished_spans() if span.name == f"mimo_cache.{name}"]


def test_each_move_is_a_span() -> None:
    tracer, kept = exporter()
    llm = small(tracer=tracer)
    with tracer.start_as_current_span("request") as request:
        made = serve(llm)
    assert llm.tier is not None
    stats = llm.tier.stats()
    (fetch,) = spans(kept, "fetch")
    assert fetch.attributes["mimo_cache.tokens"] == made[-1].sources.host > 0
    found = read(llm.metrics())
    assert fetch.attributes["mimo_cache.bytes"] == found["host_bytes_total{way=up}"]
    assert "mimo_cache.cause" not in fetch.attributes
    assert fetch.parent.span_id == request.get_span_context().span_id
    saves = spans(kept, "save")
    assert len(saves) == stats.saves
    assert sum(span.attributes["mimo_cache.bytes"] for span in saves) == found["host_bytes_total{way=down}"]
    assert Counter(span.name for span in kept.get_finished_spans()).keys() == {
        "request",
        "mimo_cache.fetch",
        "mimo_cache.save",
    }


def test_what_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = HostTier.finish
    tracer, kept = exporter()
    monkeypatch.setattr(HostTier, "finish", lambda tier, fetch, ok=True: finish(tier, fetch, ok=False))
    serve(small(tracer=tracer))
    (fetch,) = spans(kept, "fetch")
    assert fetch.attributes["mimo_cache.cause"] in ("given up", "cancelled")


def test_what_comes_from_nodes_and_goes_there_is_spans_too() -> None:
    pytest.importorskip("grpc")
    from gcache_nodes import nodes  # noqa: PLC0415  needs grpcio

    with nodes("one", memory__size="16MiB") as (node,):
        tracer, kept = exporter()
        options = {"prefetch": "wait", "timeout": 10.0}
        first = small(gcache=[node.address], gcache_options=options, tracer=tracer)
        first.generate(TEXT, PARAMS)
        assert first.tier is not None
        assert first.remote is not None
        first.tier.drain()
        assert first.remote.writer.flush(20.0)
        written = first.remote.stats()["bytes_out"]
        first.close()
        writes = spans(kept, "write")
        assert sum(span.attributes["mimo_cache.bytes"] for span in writes) == written > 0
        assert all("mimo_cache.cause" not in span.attributes for span in writes)
        assert spans(kept, "prefetch")[0].attributes["mimo_cache.tokens"] == 0

        tracer, kept = exporter()
        llm = small(gcache=[node.address], gcache_options=options, tracer=tracer)
        assert llm.remote is not None
        with tracer.start_as_current_span("request") as request:
            made = llm.generate(TEXT, PARAMS)[0]
        (prefetch,) = spans(kept, "prefetch")
        assert prefetch.attributes["mimo_cache.tokens"] == made.sources.gcache_memory > 0
        assert prefetch.attributes["mimo_cache.bytes"] == llm.remote.stats()["bytes_in"] > 0
        assert prefetch.attributes["mimo_cache.prompt_tokens"] == made.report.prompt_tokens
        assert prefetch.parent.span_id == request.get_span_context().span_id
        found = read(llm.metrics())
        assert found["hit_tokens_total{source=gcache_memory}"] == made.sources.gcache_memory
        assert found["gcache_tokens_total{source=memory}"] == made.sources.gcache_memory
        assert found["gcache_bytes_total{way=in}"] == llm.remote.stats()["bytes_in"]
        assert found["prefetch_seconds_count"] == 1
        assert found["gcache_queued_prefetches"] == found["gcache_bytes_in_flight"] == 0
        # A node that has gone is a cause.
        node.kill()
        llm.generate(OTHERS[0], PARAMS)
        cause = spans(kept, "prefetch")[-1].attributes["mimo_cache.cause"]
        assert cause == "unreachable"
        assert read(llm.metrics())["gcache_misses_total{cause=unreachable}"] >= 1
        llm.close()


def test_a_tracer_that_raises_disturbs_nobody() -> None:
    class Broken:
        def __init__(self, at: str) -> None:
            self.at, self.calls = at, 0

        def __getattr__(self, name: str) -> Any:
            def call(*_: Any, **__: Any) -> Any:
                self.calls += 1
                if name == self.at:
                    raise RuntimeError("no spans today")
                return self

            return call

    want = [made.token_ids for made in serve(small())]
    for at in ("start_span", "set_attributes", "end"):
        broken = Broken(at)
        assert [made.token_ids for made in serve(small(tracer=broken))] == want
        assert broken.calls > 0


def test_without_a_tracer_there_is_nothing() -> None:
    assert Spans().start("fetch", {"tokens": 1}) is NOTHING
    NOTHING.end(cause="late")
    assert NOTHING._span is None


def test_which_tracers_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="tracer is of type str, allowed is None, True, or an object with start"):
        small(tracer="otel")
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(InvalidArgument, match="tracer is True without opentelemetry-api"):
        small(tracer=True)


def test_true_is_the_tracer_that_is_installed() -> None:
    pytest.importorskip("opentelemetry.trace")
    assert Spans(True).start("fetch", {}) is not NOTHING  # of the api alone: spans that go nowhere
    serve(small(tracer=True))


def test_sources_are_plain_numbers() -> None:
    made = serve(small())[-1]
    assert all(type(value) is int for value in dataclasses.astuple(made.sources))
