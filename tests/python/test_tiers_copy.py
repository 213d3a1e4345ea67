"""The host tier's memory and copies from Python: bytes, waits without the GIL, and everything that is refused."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mimo_cache import ForkedProcessError, InvalidArgument, MimoCacheError
from mimo_cache.tiers import (
    CopierClosed,
    CopyBusy,
    CopyCancelled,
    CopyJob,
    CudaError,
    DeviceLayout,
    HostMemoryError,
    HostRegion,
    KvCopier,
    device_layout,
)

Tensor = npt.NDArray[Any]


class Tracked(np.ndarray[Any, Any]):
    """An array with weak references."""


def tensors(layers: list[int], shape: tuple[int, ...], dtype: str = "f2") -> list[tuple[Tensor, int]]:
    rng = np.random.default_rng(7)
    return [(rng.integers(0, 9, shape).astype(dtype), layer) for layer in layers]


class Small:
    """Two full layers and three SWA layers, K and V apart in layer 1."""

    def __init__(self) -> None:
        self.full = tensors([0, 3], (5, 4, 2, 3))
        self.swa = tensors([1, 1, 2], (4, 4, 7), "i1")
        self.layout = device_layout(full=self.full, swa=self.swa)
        self.region = HostRegion(self.layout, full_pages=6, swa_pages=2)
        self.copier = KvCopier(self.layout, self.region, threads=2)


@pytest.fixture
def small() -> Small:
    return Small()


class Large:
    """16 layers of 96 pages: some 60 MB, long enough to be caught at work."""

    PAGES = 96

    def __init__(self, threads: int = 1, max_jobs: int = 64) -> None:
        shape = (self.PAGES + 1, 10_000)
        self.full = [(np.zeros(shape, np.int32), layer) for layer in range(16)]
        self.layout = device_layout(full=self.full)
        self.region = HostRegion(self.layout, full_pages=self.PAGES, hugepages="off")
        self.copier = KvCopier(self.layout, self.region, threads=threads, max_jobs=max_jobs)
        ids = np.arange(1, self.PAGES + 1, dtype=np.int32)
        self.pairs = np.stack([ids, ids[::-1]], axis=1).copy()


def host_bytes(layers: list[tuple[Tensor, int]], page: int) -> bytes:
    return b"".join(tensor[page].tobytes() for tensor, _ in layers)


def test_pages_go_to_the_host_and_back(small: Small) -> None:
    assert small.layout.layers == [0, 1, 2, 3]
    assert (small.layout.full_pages, small.layout.swa_pages) == (5, 4)
    assert (small.layout.full_page_bytes, small.layout.swa_page_bytes) == (96, 84)
    assert (small.region.full_page_bytes, small.region.swa_page_bytes) == (4096, 4096)
    before = [tensor.copy() for tensor, _ in small.full + small.swa]
    save = small.copier.save(full=[(2, 1), (3, 6)], swa=np.array([[3, 2]]))
    assert save.wait()
    assert (save.direction, save.outcome, save.layers, save.times()) == ("save", "done", [], [])
    assert bytes(small.region.page("full", 6))[:96] == host_bytes(small.full, 3)
    assert bytes(small.region.page("swa", 2))[:84] == host_bytes(small.swa, 3)
    assert bytes(small.region.page("full", 2)) == bytes(4096)
    for tensor, _ in small.full + small.swa:
        tensor[1:] = 0
    load = small.copier.load(full=np.array([[4, 6]], np.uint32), swa=np.array([[1, 2]], np.int32))
    assert load.wait(10.0)
    assert load.done()
    assert (load.copied_bytes, load.bytes, load.ready_layers) == (180, 180, 4)
    for (tensor, _), old in zip(small.full, before[:2], strict=True):
        assert np.array_equal(tensor[4], old[3])
        assert not tensor[1:4].any()
        assert np.array_equal(tensor[0], old[0])
    for (tensor, _), old in zip(small.swa, before[2:], strict=True):
        assert np.array_equal(tensor[1], old[3])
        assert not tensor[2:].any()
    assert [layer for layer, *_ in load.times()] == [0, 1, 2, 3]
    assert all(ready is not None and copied > 0 for _, copied, ready, _ in load.times())


def test_a_layer_is_had_through_its_wait(small: Small) -> None:
    job = small.copier.load(full=[(1, 1)], swa=[(1, 1)])
    (first,) = job.layer(0)
    assert first is small.full[0][0]
    assert [id(tensor) for tensor in job.layer(1)] == [id(tensor) for tensor, _ in small.swa[:2]]
    with pytest.raises(InvalidArgument, match=r"layer is 7, allowed is one of the layout: \[0, 1, 2, 3\]"):
        job.layer(7)
    assert job.wait_layer(7)
    with pytest.raises(InvalidArgument, match="layer to wait for is 0 of a save"):
        small.copier.save(full=[(1, 1)]).layer(0)


def test_views_of_pages(small: Small) -> None:
    view = small.region.page("swa", 1)
    assert (view.readonly, view.nbytes, view.format) == (True, 4096, "B")
    small.region.page("swa", 1, writable=True)[:3] = b"abc"
    assert bytes(view[:4]) == b"abc\0"
    first, size = small.region.address("full", 1)
    assert small.region.address("full", 2) == (first + size, size)
    assert first % (2 << 20) == 0
    small.copier.close()
    small.__dict__.clear()
    gc.collect()
    assert bytes(view[:4]) == b"abc\0", "a view keeps the region"


def test_waits_release_the_gil() -> None:
    large = Large()
    beats = 0
    ended = threading.Event()

    def beat() -> None:
        nonlocal beats
        while not ended.is_set():
            beats += 1
            time.sleep(0)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        rounds = 0
        for _ in range(10):
            jobs = [large.copier.save(full=large.pairs) for _ in range(4)]
            before = beats
            assert jobs[-1].wait()
            rounds += beats > before + 10
        # With the GIL held the other thread runs between two instructions here, once in many rounds.
        assert rounds >= 5
    finally:
        ended.set()
        thread.join()


def test_many_threads_wait_for_the_layers_of_one_job() -> None:
    large = Large(threads=2)
    for page in range(1, large.PAGES + 1):
        np.frombuffer(large.region.page("full", page, writable=True), np.int32)[:] = page
    job = large.copier.load(full=large.pairs)
    wrong: list[int] = []

    def read(layer: int) -> None:
        (tensor,) = job.layer(layer)
        if not np.array_equal(tensor[1:, 0], large.pairs[:, 1]) or not np.array_equal(tensor[1:, -1], tensor[1:, 0]):
            wrong.append(layer)

    threads = [threading.Thread(target=read, args=(layer,)) for layer in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def caught(attempt: Callable[[], CopyJob | None]) -> CopyJob:
    """A job that was caught at work, which a busy machine may spoil."""
    for _ in range(100):
        if (job := attempt()) is not None:
            return job
    pytest.fail("no job was caught at work")


def test_cancelled_jobs_say_so() -> None:
    large = Large()

    def attempt() -> CopyJob | None:
        job = large.copier.load(full=large.pairs)
        job.cancel()
        try:
            job.wait()
        except CopyCancelled:
            return job
        return None

    job = caught(attempt)
    assert job.done()
    assert job.outcome == "cancelled"
    for call in (job.wait, lambda: job.wait_layer(0), lambda: job.layer(0)):
        with pytest.raises(CopyCancelled, match="cancelled"):
            call()
    copied = [tensor.copy() for tensor, _ in large.full]
    time.sleep(0.01)
    assert all(np.array_equal(a, b) for a, (b, _) in zip(copied, large.full, strict=True))


def test_timeouts_and_back_pressure() -> None:
    large = Large(max_jobs=2)

    def attempt() -> CopyJob | None:
        jobs = [large.copier.load(full=large.pairs) for _ in range(2)]
        try:
            with pytest.raises(CopyBusy, match="2 jobs in flight and 1 more asked for, allowed are 2"):
                large.copier.load(full=large.pairs)
            with pytest.raises(TimeoutError, match="layer 15 is not there yet"):
                jobs[1].layer(15, timeout=0)
            assert jobs[1].wait(0.0) is False
            assert jobs[1].outcome == "pending"
            assert large.copier.in_flight()[0] in (1, 2)
        except (pytest.fail.Exception, AssertionError):
            return None
        finally:
            assert all(job.wait() for job in jobs)
        return jobs[1]

    assert caught(attempt).done()
    assert large.copier.in_flight() == (0, 0)


def test_closing_ends_jobs_and_lets_the_memory_go() -> None:
    large = Large()
    tensor = np.zeros((3, 8)).view(Tracked)
    layout = device_layout(full=[(tensor, 0)])
    watch = weakref.ref(tensor)
    with KvCopier(layout, HostRegion(layout, full_pages=1)) as copier:
        job = copier.load(full=[(1, 1)])
        assert job.wait()
        del tensor, layout
        gc.collect()
        assert watch() is not None
    del job
    # PyO3 gives back here what a thread without the GIL has let go.
    assert large.copier.in_flight() == (0, 0)
    del copier
    gc.collect()
    assert watch() is None
    jobs = [large.copier.save(full=large.pairs) for _ in range(60)]
    large.copier.close()
    large.copier.close()
    assert all(job.done() for job in jobs)
    assert jobs[-1].outcome == "cancelled"
    with pytest.raises(CopierClosed, match="was closed"):
        large.copier.load(full=[(1, 1)])


PAIRS = r"allowed is an integer array of shape \[n, 2\]"


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([(5, 1)], r"device page is 5 \(full\), allowed is 1 to 4"),
        ([(1, 7)], r"host page is 7 \(full\), allowed is 1 to 6"),
        ([(0, 1)], r"device page is 0, the null page \(full\)"),
        (np.array([[1, 0]]), r"host page is 0, the null page \(full\)"),
        ([(1, 1), (1, 2)], r"page that a job writes is 1 \(full\), twice"),
        (np.array([[1, -1]], np.int32), "full is -1, allowed is page ids"),
        (np.array([[1, 1 << 32]]), "full is 4294967296, allowed is page ids"),
        (np.array([[1.0, 1.0]]), PAIRS),
        (np.array([1, 1]), PAIRS),
        (np.ones((2, 3), np.int32), PAIRS),
        (np.ones((2, 4), np.int32)[:, ::2], "not C-contiguous"),
        (np.ones((2, 2), np.int16), "integers of 32 or 64 bits"),
        ("12", "of type str"),
        (7, "of type int"),
        ([(1, 2, 3)], "allowed is tuples"),
        ([(True, 1)], "device page is True"),
        ([[1, 1]], "allowed is tuples"),
    ],
)
def test_bad_pairs(small: Small, pairs: Any, words: str) -> None:
    before = [tensor.copy() for tensor, _ in small.full]
    with pytest.raises(InvalidArgument, match=words):
        small.copier.load(full=pairs)
    assert small.copier.in_flight() == (0, 0)
    assert all(np.array_equal(a, b) for a, (b, _) in zip(before, small.full, strict=True))


def test_no_pages_are_done_at_once(small: Small) -> None:
    job = small.copier.load(full=np.zeros((0, 2), np.int32), swa=[])
    assert job.wait(0)
    job.cancel()
    assert job.outcome == "done"


def test_bad_waits(small: Small) -> None:
    job = small.copier.load(full=[(1, 1)])
    for timeout in (-1, float("nan"), "1", 1e9):
        with pytest.raises(InvalidArgument, match="timeout"):
            job.wait(timeout)  # type: ignore[arg-type]
    for layer in (-1, 1.5, True, 1 << 32):
        with pytest.raises(InvalidArgument, match="layer"):
            job.wait_layer(layer)  # type: ignore[arg-type]


def test_bad_regions_and_copiers(small: Small) -> None:
    for arguments, words in [
        ({"full_pages": 0, "swa_pages": 1}, r"host pages is 0 \(full\)"),
        ({"full_pages": 1}, r"host pages is 0 \(swa\)"),
        ({"full_pages": -1, "swa_pages": 1}, "full_pages is -1"),
        ({"full_pages": 1, "swa_pages": 1, "hugepages": "always"}, 'hugepages is "always"'),
    ]:
        with pytest.raises(InvalidArgument, match=words):
            HostRegion(small.layout, **arguments)  # type: ignore[arg-type]
    with pytest.raises(HostMemoryError, match="cannot be had") as refused:
        HostRegion(small.layout, full_pages=4_000_000_000, swa_pages=1)
    assert isinstance(refused.value, MemoryError)
    assert isinstance(refused.value, MimoCacheError)
    with pytest.raises(InvalidArgument, match="layout is of type"):
        HostRegion(None, full_pages=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="region is of type"):
        KvCopier(small.layout, small.layout)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="threads is 0, allowed is 1 to 64"):
        KvCopier(small.layout, small.region, threads=0)
    other = device_layout(full=tensors([0], (2, 5000)))
    with pytest.raises(InvalidArgument, match="pages of other sizes"):
        KvCopier(other, small.region)
    for group, page in [("none", 1), ("full", 0), ("full", 7), ("swa", 3)]:
        with pytest.raises(InvalidArgument):
            small.region.page(group, page)  # type: ignore[arg-type]


def test_bad_layouts() -> None:
    good = np.zeros((3, 8), np.float32)
    readonly = good.copy()
    readonly.setflags(write=False)
    for tensor, words in [
        (readonly, "read-only"),
        (good[:, ::2], "dense"),
        (good[::-1], "dense"),
        (np.broadcast_to(good[:1], (3, 8)), "read-only"),
        (good[:1], r"of shape \[1, 8\]"),
        (good[0], r"of shape \[8\]"),
        (np.zeros((3, 2), object), "objects"),
        ([[1.0]], "of type list"),
        (None, "of type NoneType"),
    ]:
        with pytest.raises(InvalidArgument, match=words):
            device_layout(full=[(tensor, 0)])
    with pytest.raises(InvalidArgument, match=r"pages of the swa tensors are \[3, 4\]"):
        device_layout(swa=[(good, 0), (np.zeros((4, 8)), 1)])
    with pytest.raises(InvalidArgument, match="full_pages is 4, allowed is at most 3"):
        device_layout(full=[(good, 0)], full_pages=4)
    with pytest.raises(InvalidArgument, match="layer of a part is 1 after 2"):
        device_layout(full=[(good, 2), (good.copy(), 1)])
    with pytest.raises(InvalidArgument, match="place of a part"):
        device_layout(full=[(good, 0), (good, 1)])
    with pytest.raises(InvalidArgument, match="groups with parts"):
        device_layout()
    for part in [(1, 2, 3), [1, 2, 3, 4, 5], (4096, 8, 0, 0, None), (0, 8, 8, -1, None), ("a", 8, 8, 0, None)]:
        with pytest.raises(InvalidArgument):
            DeviceLayout(full=[part], full_pages=2)  # type: ignore[list-item]
    rows = np.zeros((3, 2, 8), np.float32)
    layout = device_layout(full=[(rows[:, 0], 0), (rows[:, 1], 1)])
    assert layout.full_page_bytes == 64


class Tensorish:
    """What torch tensors offer, on a device of choice."""

    def __init__(self, array: Tensor, device: str) -> None:
        self.array = array
        self.device = type("device", (), {"type": device})
        self.shape = array.shape

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def element_size(self) -> int:
        return self.array.itemsize

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.array.itemsize for step in self.array.strides)


def test_tensors_of_other_libraries() -> None:
    array = np.arange(12, dtype=np.int16).reshape(3, 4)
    layout = device_layout(swa=[(Tensorish(array, "cpu"), 4)])
    region = HostRegion(layout, swa_pages=1)
    assert KvCopier(layout, region).save(swa=[(2, 1)]).wait()
    assert bytes(region.page("swa", 1))[:8] == array[2].tobytes()
    with pytest.raises(InvalidArgument, match="on device cuda"):
        device_layout(swa=[(Tensorish(array, "cuda"), 4)])


def test_cuda_is_looked_up_only_when_asked_for(small: Small) -> None:
    try:
        small.region.register_cuda()
    except CudaError as error:
        assert "cannot register the host region with CUDA" in str(error)  # noqa: PT017  either is right
    else:
        small.region.register_cuda()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused(small: Small) -> None:
    job = small.copier.load(full=[(1, 1)])
    assert job.wait()
    small.region.page("full", 1, writable=True)[:3] = b"abc"

    def child(results: Any) -> None:
        for call in (lambda: small.copier.load(full=[(1, 1)]), job.wait, job.cancel, small.copier.in_flight):
            try:
                call()
            except ForkedProcessError:
                results.put("refused")
        small.copier.close()
        results.put(bytes(small.region.page("full", 1)[:3]))

    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=child, args=(results,))
    process.start()
    assert [results.get(timeout=30) for _ in range(5)] == ["refused"] * 4 + [bytes(3)], "the child's region is zeros"
    process.join()
    assert process.exitcode == 0
    assert bytes(small.region.page("full", 1)[:3]) == b"abc"
