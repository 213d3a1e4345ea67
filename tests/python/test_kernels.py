"""The contract of the kernel backends, operation by operation, each against a loop in float64.

Rows that a kernel may not read hold NaN, so that whatever reads them shows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch

from mimo_cache import MimoCacheError
from mimo_cache.kernels import BACKENDS, Kernels, UnknownBackend, get, register
from mimo_cache.kernels.contract import Shape
from mimo_cache.kernels.rows import MtpWork, Work, slots_of
from small_models import BACKENDS as NAMES
from small_models import close

Group = Literal["full", "swa"]
HEADS, KV, K_DIM, V_DIM = 6, 2, 8, 5
SCALE = 0.6


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend."""
    return str(request.param)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As the runner runs."""
    with torch.inference_mode():
        yield


def make(backend: str, page: int = 4, window_keys: int = 6, **changes: Any) -> Kernels:
    fields: dict[str, Any] = {"experts_per_token": 2, "norm_topk_prob": True, "routed_scaling": 1.0, "device": "cpu"}
    return get(backend)(Shape(page_size=page, window_keys=window_keys, **{**fields, **changes}))


# --- attention --------------------------------------------------------------------------------------------------------


@dataclass
class Scene:
    """Pools of one layer, q [n, H, dim] of each sequence by position, and the work of one call."""

    works: list[Work]
    q: list[Any]
    k: list[Any]
    v: list[Any]
    k_pool: Any
    v_pool: Any


def scene(group: Group, page: int, window: int, spans: list[tuple[int, int]], seed: int = 0) -> Scene:
    """Sequences that compute positions [first, end) each, in pools where all rows that they may not see are NaN."""
    source = torch.Generator().manual_seed(seed)
    total = sum(-(-end // page) for _, end in spans) + 3
    free = (torch.randperm(total, generator=source) + 1).tolist()
    k_pool = torch.full((total + 1, page, KV, K_DIM), float("nan"))
    v_pool = torch.full((total + 1, page, KV, V_DIM), float("nan"))
    out = Scene([], [], [], [], k_pool, v_pool)
    for first, end in spans:
        q, k = (torch.randn(end, n, K_DIM, generator=source) for n in (HEADS, KV))
        v = torch.randn(end, KV, V_DIM, generator=source)
        low = 0 if group == "full" else max(0, first - window)
        base = 0 if group == "full" else low // page
        pages = np.array([free.pop() for _ in range(base, -(-end // page))], np.int64)
        where = np.arange(low, end)
        slots = torch.from_numpy(slots_of(pages, base, where, page))
        k_pool.view(-1, KV, K_DIM)[slots], v_pool.view(-1, KV, V_DIM)[slots] = k[where], v[where]
        full, swa = (pages, np.zeros(0, np.int64)) if group == "full" else (np.zeros(0, np.int64), pages)
        out.works.append(Work(first, np.zeros(end - first, np.int64), full, base, swa, logits=end - first))
        out.q.append(q)
        out.k.append(k)
        out.v.append(v)
    return out


def attend(kernels: Kernels, group: Group, scene: Scene, sink: Any | None) -> list[Any]:
    """The kernel's output [end - first, H, V dim] of each sequence."""
    found: list[dict[int, Any]] = [{} for _ in scene.works]
    for rows in kernels.cut(scene.works):
        q = torch.randn(len(rows.positions), HEADS, K_DIM)
        for span in rows.spans:
            tables = [w.full_pages if group == "full" else w.swa_pages for w in scene.works]
            index = next(i for i, t in enumerate(tables) if t is span.full_pages or t is span.swa_pages)
            for p in range(span.valid_from, span.valid_to):
                q[span.start + p - span.first] = scene.q[index][p]
        out = kernels.attention(q, scene.k_pool, scene.v_pool, rows, group, SCALE, sink)
        assert out.shape == (len(rows.positions), HEADS, V_DIM)
        for row, index in rows.wanted:
            found[index][int(rows.positions[row])] = out[row]
    for work, rows_found in zip(scene.works, found, strict=True):
        assert sorted(rows_found) == list(range(work.first, work.end)), "a row was left out or computed twice"
    return [torch.stack([rows[p] for p in sorted(rows)]) for rows in found]


def by_hand(group: Group, scene: Scene, window_keys: int, sink: Any | None) -> list[Any]:
    """The contract's formula."""
    out = []
    for work, q, k, v in zip(scene.works, scene.q, scene.k, scene.v, strict=True):
        rows = np.zeros((work.end - work.first, HEADS, V_DIM))
        for i in range(work.first, work.end):
            low = 0 if group == "full" else max(0, i - window_keys + 1)
            for h in range(HEADS):
                kv = h // (HEADS // KV)
                a = SCALE * (k[low : i + 1, kv].double() @ q[i, h].double()).numpy()
                extra = 0.0 if sink is None else np.exp(float(sink[h]))
                p = np.exp(a) / (extra + np.exp(a).sum())
                rows[i - work.first, h] = p @ v[low : i + 1, kv].double().numpy()
        out.append(rows)
    return out


SPANS = {
    "prefill": [(0, 30)],
    "one row": [(0, 1)],
    "decode": [(29, 30)],
    "decode at the start of a page": [(32, 33)],
    "chunk in the middle": [(7, 23)],
    "a batch that decodes": [(3, 4), (40, 41), (0, 1), (17, 18)],
    "a mixed batch": [(3, 4), (9, 31), (40, 41), (0, 5), (62, 64)],
}


@pytest.mark.parametrize("spans", SPANS.values(), ids=SPANS)
@pytest.mark.parametrize(("page", "window_keys"), [(4, 6), (1, 3), (8, 9), (16, 2), (4, 1), (4, 30)])
@pytest.mark.parametrize("group", ["full", "swa"])
def test_attention(backend: str, group: Group, page: int, window_keys: int, spans: list[tuple[int, int]]) -> None:
    kernels, made = make(backend, page, window_keys), scene(group, page, window_keys - 1, spans)
    for sink in (None, torch.tensor([0.5, -2.0, 3.0, 0.0, 1.0, -0.5])):
        found, want = attend(kernels, group, made, sink), by_hand(group, made, window_keys, sink)
        assert all(close(f, w, 1e-5) for f, w in zip(found, want, strict=True))


@pytest.mark.parametrize(("window_keys", "group"), [(300, "swa"), (40, "swa"), (1, "full")])
def test_attention_over_many_blocks_of_queries(backend: str, window_keys: int, group: Group) -> None:
    """Longer than every block that a backend cuts queries into."""
    kernels, made = make(backend, 16, window_keys), scene(group, 16, window_keys - 1, [(11, 400)])
    assert close(attend(kernels, group, made, None)[0], by_hand(group, made, window_keys, None)[0], 1e-5)


@pytest.mark.parametrize("spans", [[(20, 21)], [(9, 33)]], ids=["decode", "chunk"])
@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_window_that_is_one_off_is_seen(backend: str, spans: list[tuple[int, int]], wrong: int) -> None:
    """A query sees exactly `window_keys` keys: a kernel with one fewer or one more is far from the formula."""
    made = scene("swa", 4, 8, spans)  # rows for up to 8 + 1 keys are there
    right = attend(make(backend, 4, 8), "swa", made, None)[0]
    want = by_hand("swa", made, 8, None)[0]
    assert close(right, want, 1e-5)
    off = attend(make(backend, 4, 8 + wrong), "swa", made, None)[0]
    assert not close(off, want, 1e-2)


def test_the_last_key_of_the_window_counts_and_the_next_does_not(backend: str) -> None:
    """W = 5: position i - 5 moves row i, position i - 6 does not, bit for bit."""
    kernels = make(backend, 4, 6)
    for first, end in ((20, 21), (17, 21)):
        made = scene("swa", 4, 8, [(first, end)])
        before = attend(kernels, "swa", made, None)[0][-1]
        for distance, moves in ((5, True), (6, False)):
            at = 20 - distance
            work = made.works[0]
            slot = int(slots_of(work.swa_pages, work.swa_base, np.array([at]), 4)[0])
            kept = made.v_pool.view(-1, KV, V_DIM)[slot].clone()
            made.v_pool.view(-1, KV, V_DIM)[slot] += 1
            after = attend(kernels, "swa", made, None)[0][-1]
            made.v_pool.view(-1, KV, V_DIM)[slot] = kept
            assert torch.equal(before, after) != moves, distance


def test_a_sink_adds_to_the_denominator_only(backend: str) -> None:
    """With all values one, a row is one minus the sink's share; a sink of -inf is none; a huge one leaves nothing."""
    kernels, made = make(backend), scene("swa", 4, 5, [(3, 9), (12, 13)])
    ones = Scene(made.works, made.q, made.k, made.v, made.k_pool, made.v_pool.clone().clamp_(1, 1))
    plain = attend(kernels, "swa", made, None)
    for found in attend(kernels, "swa", ones, None):
        assert close(found, torch.ones_like(found), 1e-6)
    for found, want in zip(attend(kernels, "swa", made, torch.full((HEADS,), -1e30)), plain, strict=True):
        assert close(found, want, 1e-6)
    for found in attend(kernels, "swa", made, torch.full((HEADS,), 80.0)):
        assert close(found, torch.zeros_like(found), 1e-6)
    sink = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 3.0])
    for found, bare, one in zip(
        attend(kernels, "swa", made, sink), plain, attend(kernels, "swa", ones, sink), strict=True
    ):
        share = one[..., :1]  # what the sink leaves to the keys
        assert (share < 1).all()
        assert close(found, bare * share, 1e-6)


def test_query_heads_read_the_kv_head_of_their_block(backend: str) -> None:
    """Heads 0 to 2 read KV head 0 and heads 3 to 5 read KV head 1, not every other one."""
    kernels = make(backend)
    for group, spans in (("full", [(0, 9)]), ("full", [(8, 9)]), ("swa", [(0, 9)]), ("swa", [(8, 9)])):
        made = scene(group, 4, 5, spans)  # type: ignore[arg-type]
        before = attend(kernels, group, made, None)[0]  # type: ignore[arg-type]
        made.v_pool[:, :, 1] += 1
        moved = (attend(kernels, group, made, None)[0] != before).flatten(2).any(2)  # type: ignore[arg-type]
        assert moved.tolist() == [[False] * 3 + [True] * 3] * len(before)


def test_the_reference_computes_the_same_bits_in_any_chunks() -> None:
    kernels, made = make("reference"), scene("swa", 4, 40, [(0, 30)])
    whole = attend(kernels, "swa", made, None)[0]
    work = made.works[0]
    for size in (1, 3, 4, 7):
        parts = []
        for lo in range(0, 30, size):
            hi = min(30, lo + size)
            ids = np.zeros(hi - lo, np.int64)
            part = Scene(
                [Work(lo, ids, work.full_pages, 0, work.swa_pages, logits=hi - lo)],
                made.q,
                made.k,
                made.v,
                made.k_pool,
                made.v_pool,
            )
            parts.append(attend(kernels, "swa", part, None)[0])
        assert torch.equal(torch.cat(parts), whole)


# --- experts ----------------------------------------------------------------------------------------------------------


def experts(rows: int, seed: int = 0) -> tuple[Any, ...]:
    """x, router, bias, gate_up and down of 5 experts."""
    source = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Any:
        return torch.randn(*size, generator=source) * size[-1] ** -0.5

    return normal(rows, 12) * 3, normal(5, 12) * 2, normal(5), normal(5, 2 * 7, 12), normal(5, 12, 7)


def moe_by_hand(parts: tuple[Any, ...], top: int, norm: bool, scaling: float) -> Any:
    x, router, bias, gate_up, down = (t.double().numpy() for t in parts)
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        s = 1 / (1 + np.exp(-router @ row))
        chosen = sorted(range(len(s)), key=lambda e: -(s[e] + bias[e]))[:top]
        total = sum(s[e] for e in chosen) + 1e-20 if norm else 1.0
        for e in chosen:
            gate, up = np.split(gate_up[e] @ row, 2)
            out[i] += scaling * s[e] / total * (down[e] @ (gate / (1 + np.exp(-gate)) * up))
    return out


@pytest.mark.parametrize("rows", [1, 2, 3, 33])
@pytest.mark.parametrize(("top", "norm", "scaling"), [(2, True, 1.0), (1, True, 1.0), (3, False, 2.5), (5, True, 0.5)])
def test_moe(backend: str, rows: int, top: int, norm: bool, scaling: float) -> None:
    kernels = make(backend, experts_per_token=top, norm_topk_prob=norm, routed_scaling=scaling)
    parts = experts(rows)
    assert close(kernels.moe(*parts), moe_by_hand(parts, top, norm, scaling), 1e-5)


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_the_bias_chooses_and_does_not_weigh(backend: str, rows: int) -> None:
    """With a bias that rules two experts in, the result is that of a model with these two alone."""
    kernels, (x, router, _, gate_up, down) = make(backend), experts(rows)
    found = kernels.moe(x, router, torch.tensor([9.0, 0, 0, 9.0, 0]), gate_up, down)
    two = (x, router[[0, 3]], torch.zeros(2), gate_up[[0, 3]], down[[0, 3]])
    assert close(found, moe_by_hand(two, 2, True, 1.0), 1e-5)


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_an_expert_that_is_not_chosen_does_not_matter(backend: str, rows: int) -> None:
    """Not even where it overflows."""
    kernels, (x, router, bias, gate_up, down) = make(backend), experts(rows)
    bias[4] = -9
    want = kernels.moe(x, router, bias, gate_up, down)
    gate_up[4], down[4] = 1e30, 1e30
    assert torch.equal(kernels.moe(x, router, bias, gate_up, down), want)


# --- pages ------------------------------------------------------------------------------------------------------------


def test_write_touches_its_slots_only(backend: str) -> None:
    pool = torch.zeros(5, 4, KV, K_DIM)
    values = torch.randn(4, KV, K_DIM)
    make(backend).write(pool, torch.tensor([7, 19, 2, 2]), values)  # the null page takes anything, twice even
    assert torch.equal(pool[1, 3], values[0])
    assert torch.equal(pool[4, 3], values[1])
    pool[0] = pool[1, 3] = pool[4, 3] = 0
    assert not pool.any()


def test_copies_run_in_order(backend: str) -> None:
    """A later copy reads what an earlier one wrote, in every layer of every pool."""
    pools = [torch.randn(3, 6, 4, KV, dim) for dim in (K_DIM, V_DIM)]
    before = [pool.clone() for pool in pools]
    make(backend).copy_pages(pools, [(1, 2), (2, 3), (5, 1)])
    for pool, old in zip(pools, before, strict=True):
        assert torch.equal(pool[:, [1, 2, 3, 4, 5]], old[:, [5, 1, 1, 4, 5]])


@pytest.mark.parametrize("shape", ["cut", "cut_mtp"])
def test_every_row_is_cut_once_and_goes_where_its_table_says(backend: str, shape: str) -> None:
    """Rows before the first to write, and rows of padding, go to the null page."""
    kernels = make(backend, 4)
    pages = np.array([9, 4, 7], np.int64)
    written: dict[int, int] = {}
    if shape == "cut":
        work = Work(3, np.arange(3, 11), pages, 1, pages, full_write_from=6, swa_write_from=5)
        for rows in kernels.cut([Work(0, np.zeros(0, np.int64), pages, 0, pages), work]):
            real = (rows.positions >= 3) & (rows.positions < 11)
            assert (rows.ids[real] == rows.positions[real]).all()
            for position, full, swa in zip(rows.positions, rows.full_slots, rows.swa_slots, strict=True):
                inside = 6 <= position < 11
                assert full == (pages[position // 4] * 4 if inside else 0) + position % 4
                inside = 5 <= position < 11
                assert swa == (pages[position // 4 - 1] * 4 if inside else 0) + position % 4
                written[int(position)] = written.get(int(position), 0) + int(full >= 4)
        assert {p for p, n in written.items() if n} == set(range(6, 11))
    else:
        tokens = np.arange(100, 112)
        for mtp in kernels.cut_mtp([MtpWork([5, 4, 9], [11, 10, 9], 0, tokens, 1, pages)]):
            for head, (start, end) in enumerate([(5, 11), (4, 10), (9, 9)]):
                for position, token, slot in zip(mtp.positions, mtp.ids[head], mtp.slots[head], strict=True):
                    if start <= position < end:
                        assert token == 100 + position + head + 1
                        assert slot == pages[position // 4 - 1] * 4 + position % 4
                        written[int(position)] = written.get(int(position), 0) + 1
                    else:
                        assert slot < 4
        assert written == {4: 1, 5: 2, 6: 2, 7: 2, 8: 2, 9: 2, 10: 1}
    assert max(written.values()) <= 2


# --- registry ---------------------------------------------------------------------------------------------------------


def test_an_unknown_backend_is_refused_by_name() -> None:
    with pytest.raises(UnknownBackend, match=r"'cuda', allowed is one of reference, torch") as info:
        get("cuda")
    assert isinstance(info.value, MimoCacheError)
    with pytest.raises(UnknownBackend, match="allowed is module:class"):
        register("mine", "no_class")
    assert "mine" not in BACKENDS


def test_a_backend_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "mine", "")
    register("mine", "mimo_cache.kernels.reference:ReferenceKernels")
    assert get("mine") is get("reference")


def test_threads_are_as_before_after_a_guard(backend: str) -> None:
    """Also when the step fails."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(ZeroDivisionError), make(backend).guard():
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
