"""The forward pass over paged KV against an independent float64 model: logits, hidden states, KV and MTP rows, drafts.

Each sequence runs on shuffled pages whose unwritten and outdated rows hold NaN. That a rule is pinned by these
comparisons is shown by breaking it in the float64 model: the difference is then far above the tolerance.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from mimo_cache.kernels.contract import Shape
from mimo_cache.kernels.rows import Work
from mimo_cache.models.config import AttentionShape
from mimo_cache.runner import Model
from oracle import Array, Oracle, Trace
from paged import Paged, Seq
from small_models import BACKENDS, chunks, close, config, distance, parts, shape, tokens, weights

NEAR, FAR = 1e-4, 1e-2
"""Equal, in fp32; and a difference that shows."""

MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "like Flash": (4, {}),
    "like Pro": (
        8,
        {"full": shape(2, 1e5, False), "swa": shape(2, 1e2, True), "value_scale": 0.612, "window_keys": 9},
    ),
    "W is 0": (4, {"window_keys": 1}),
    "W is a page": (4, {"window_keys": 5}),
    "W is shorter than a page": (16, {"window_keys": 4}),
    "W is longer than the text": (4, {"window_keys": 60}),
    "pages of one": (1, {"window_keys": 4}),
    "no MTP head": (4, {"mtp_heads": 0}),
    "one MTP head": (4, {"mtp_heads": 1}),
    "all full": (4, {"layer_kinds": ("full", "full"), "mtp_heads": 0}),
    "all SWA": (4, {"layer_kinds": ("swa", "swa")}),
    "dense": (4, {"moe_layers": (False,) * 4, "num_experts": 0, "experts_per_token": 0}),
    "router not normed and scaled": (4, {"norm_topk_prob": False, "routed_scaling": 2.5}),
    "sinks in full layers, none in SWA": (4, {"full": shape(1, 1e5, True), "swa": shape(2, 1e2, False)}),
    "SWA heads of another size": (
        4,
        {"swa": shape(4, 1e2, True, heads=8, k_dim=8, v_dim=12, rotary_dim=8)},
    ),
    "RoPE on all dims, no value scale": (
        4,
        {"full": shape(4, 1e5, False, rotary_dim=12), "value_scale": 1.0},
    ),
}
LENGTH = 40


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend."""
    return str(request.param)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As the runner runs."""
    with torch.inference_mode():
        yield


@cache
def oracle(name: str) -> Oracle:
    """The float64 model."""
    made = config(**MODELS[name][1])
    return Memory(made, weights(made))


class Memory(Oracle):
    """Computes the trunk of one text once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.traces: dict[tuple[int, ...], Trace] = {}

    def trunk(self, tokens: Sequence[int]) -> Trace:
        """See `Oracle`."""
        text = tuple(tokens)
        if text not in self.traces:
            self.traces[text] = super().trunk(text)
        return self.traces[text]


def paged(name: str, backend: str, window_keys: int | None = None) -> Paged:
    """A model on its pools; with another window in its kernels where asked."""
    model, _ = parts(oracle(name).config, oracle(name).weights, backend, MODELS[name][0])
    if window_keys is not None:
        old = model.kernels.shape
        model.kernels.shape = Shape(
            old.page_size, window_keys, old.experts_per_token, old.norm_topk_prob, old.routed_scaling, old.device
        )
    return Paged(model, seed=5)


def check(runs: Paged, seqs: list[Seq], oracle: Oracle, within: float = NEAR) -> None:
    """Everything that the sequences collected is the oracle's."""
    for seq in seqs:
        found = runs.differences(seq, oracle)
        assert all(d <= within for d in found.values()), {k: f"{d:.1e}" for k, d in found.items() if not d <= within}


@pytest.mark.parametrize("sizes", [[LENGTH], [1] * LENGTH, chunks(3, LENGTH, 11)], ids=["whole", "decode", "chunks"])
@pytest.mark.parametrize("name", MODELS)
def test_equals_float64(backend: str, name: str, sizes: list[int]) -> None:
    runs = paged(name, backend)
    seq = runs.run(tokens(1, LENGTH), sizes, draft=True)
    assert len(seq.logits) == LENGTH
    assert sorted(seq.drafts) == list(range(runs.heads))
    check(runs, [seq], oracle(name))


@pytest.mark.parametrize("name", ["like Flash", "like Pro"])
@pytest.mark.parametrize("seed", range(3))
def test_equals_float64_in_batches(backend: str, name: str, seed: int) -> None:
    """Several sequences, some with a chunk, some decoding, some resting, in every step."""
    source, runs = np.random.default_rng(seed), paged(name, backend)
    seqs = [runs.start(tokens(1, LENGTH)), runs.start(tokens(2, 17)), runs.start(tokens(3, 5))]
    while left := [seq for seq in seqs if seq.done < len(seq.tokens)]:
        some = [seq for seq in left if source.random() < 0.8] or left[:1]
        most = int(source.choice([1, 3, 9]))
        runs.step([(s, min(int(source.integers(1, most + 1)), len(s.tokens) - s.done)) for s in some], draft=True)
    check(runs, seqs, oracle(name))


def test_the_reference_makes_the_same_bits_in_any_chunks_and_any_company() -> None:
    """Logits, hidden states, KV, MTP rows and drafts."""
    runs = paged("like Flash", "reference")
    whole = runs.run(tokens(1, LENGTH), [LENGTH], draft=True)
    for sizes in ([1] * LENGTH, chunks(3, LENGTH, 11), chunks(4, LENGTH, 3)):
        mine, other = runs.start(tokens(1, LENGTH)), runs.start(tokens(6, LENGTH))
        for n in sizes:
            runs.step([(other, n), (mine, n)], draft=True)
        for name in ("logits", "hidden", "kv", "mtp", "drafts"):
            for a, b in zip(_flat(getattr(mine, name)), _flat(getattr(whole, name)), strict=True):
                assert torch.equal(a, b), f"{name} in chunks of {sizes[:5]}"


def _flat(found: Any) -> Iterator[Any]:
    if isinstance(found, dict):
        for key in sorted(found):
            yield from _flat(found[key])
    elif isinstance(found, list | tuple):
        for item in found:
            yield from _flat(item)
    else:
        yield found


# --- each rule is pinned ----------------------------------------------------------------------------------------------


def broken(rule: str, break_it: Callable[[Oracle, Any], Any]) -> Oracle:
    """The float64 model with one rule replaced."""
    made = Oracle(oracle("like Flash").config, oracle("like Flash").weights)
    old = getattr(made, rule)
    setattr(made, rule, lambda *args: break_it(made, (old, *args)))
    return made


def _one_key(by: int) -> Callable[[Oracle, Any], bool]:
    def sees(o: Oracle, args: Any) -> bool:
        _, kind, query, key = args
        return bool(key <= query and (kind == "full" or query - key < o.config.window_keys + by))

    return sees


def _sink_with_a_value(_: Oracle, args: Any) -> Array:
    old, scores, values, sink = args
    if sink is None:
        return np.asarray(old(scores, values, sink))
    return np.asarray(old(np.append(scores, sink), np.vstack((values, np.ones(values.shape[1]))), None), np.float64)


def _turn_all(_: Oracle, args: Any) -> Array:
    old, s, x, position = args
    return np.asarray(old(replace(s, rotary_dim=s.k_dim), x, position))


def _pair_neighbours(_: Oracle, args: Any) -> Array:
    old, s, x, position = args
    half = s.rotary_dim // 2
    order = [*range(0, 2 * half, 2), *range(1, 2 * half, 2), *range(2 * half, len(x))]
    out: Array = np.zeros(len(x))
    out[order] = old(s, x[order], position)
    return out


def _other_theta(o: Oracle, args: Any) -> Array:
    old, s, x, position = args
    theta: float = (o.config.full if s is o.config.swa else o.config.swa).rope_theta
    return np.asarray(old(replace(s, rope_theta=theta), x, position))


def _weigh_with_the_bias(o: Oracle, args: Any) -> list[tuple[int, float]]:
    old, x, ffn = args
    scores = 1 / (1 + np.exp(-(o.double(ffn.router) @ x))) + o.double(ffn.bias)
    chosen = [e for e, _ in old(x, ffn)]
    return [(e, float(scores[e] / sum(scores[c] for c in chosen))) for e in chosen]


RULES: dict[str, tuple[str, Callable[[Oracle, Any], Any]]] = {
    "a window of one key less": ("sees", _one_key(-1)),
    "a window of one key more": ("sees", _one_key(1)),
    "windows in full layers too": ("sees", lambda o, a: a[3] <= a[2] and a[2] - a[3] < o.config.window_keys),
    "a sink with a value": ("mix", _sink_with_a_value),
    "no sink": ("mix", lambda _, a: a[0](a[1], a[2], None)),
    "no value scale": ("value", lambda _, a: a[1]),
    "RoPE on all dims": ("rotate", _turn_all),
    "RoPE of neighbours": ("rotate", _pair_neighbours),
    "thetas exchanged": ("rotate", _other_theta),
    "KV heads in turns": ("kv_head", lambda _, a: a[2] % a[1].kv_heads),
    "weights with the bias": ("route", _weigh_with_the_bias),
    "experts in the order of scores without bias": (
        "route",
        lambda o, a: [(e, 0.5) for e in np.argsort(-(o.double(a[2].router) @ a[1]))[:2]],
    ),
    "MTP heads one token early": ("token_of_head", lambda _, a: a[2] + a[1]),
}


@pytest.mark.parametrize("rule", RULES)
def test_breaking_a_rule_shows(backend: str, rule: str) -> None:
    """Each rule moves what is compared above by a hundred times the tolerance or more."""
    runs = paged("like Flash", backend)
    seq = runs.run(tokens(1, LENGTH), [LENGTH], draft=True)
    wrong = broken(*RULES[rule])
    trunk = wrong.trunk(seq.tokens)
    hidden = oracle("like Flash").trunk(seq.tokens).hidden
    heads = [wrong.draft(k, seq.tokens, hidden).logits for k in range(runs.heads)]
    found = [torch.stack(seq.drafts[k])[: len(rows)] for k, rows in enumerate(heads)]
    moved = {
        "trunk": distance(torch.stack(seq.logits), trunk.logits),
        "draft": max(distance(a, b[: len(a)]) for a, b in zip(found, heads, strict=True)),
    }
    in_trunk = rule != "MTP heads one token early"
    in_heads = rule not in ("windows in full layers too", "weights with the bias") and "experts" not in rule
    assert (moved["trunk"] > FAR) == in_trunk, moved
    assert (moved["draft"] > FAR) == in_heads, moved


@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize("sizes", [[LENGTH], [1] * LENGTH, [7] * 5 + [5]], ids=["whole", "decode", "chunks"])
def test_kernels_with_a_window_that_is_one_off_are_found_out(backend: str, wrong: int, sizes: list[int]) -> None:
    """Trunk and MTP heads: the comparison with float64 fails for one key less and one key more."""
    runs = paged("like Flash", backend, window_keys=6 + wrong)
    seq = runs.run(tokens(1, LENGTH), sizes, draft=True)
    found = runs.differences(seq, oracle("like Flash"))
    # One key more reads rows that are NaN by now, where they are not of the same chunk.
    assert not found["logits"] <= FAR
    # The heads are asked on right hidden states, so that only their own window is wrong.
    right = paged("like Flash", backend)
    kernels = right.model.kernels
    good, bad = kernels.shape, replace(kernels.shape, window_keys=6 + wrong)
    forward = right.model.forward

    def trunk(works: Any) -> Any:
        kernels.shape = good
        try:
            return forward(works)
        finally:
            kernels.shape = bad

    right.model.forward = trunk
    seq = right.run(tokens(1, LENGTH), sizes, draft=True)
    found = right.differences(seq, oracle("like Flash"))
    assert found["logits"] <= NEAR
    assert all(not found[f"draft logits of head {k}"] <= FAR for k in range(3)), found


@pytest.mark.parametrize("what", ["trunk", "head 0", "head 1", "head 2"])
def test_row_i_depends_on_position_i_minus_w_and_no_further(backend: str, what: str) -> None:
    """One SWA layer, W 5: of the rows before i, those from i - 5 on move row i, those before do not, bit for bit."""
    made = config(layer_kinds=("swa",), moe_layers=(False,))
    drawn = weights(made)
    model, _ = parts(made, drawn, backend, 4)
    moves = []
    for at in range(20, -1, -1):
        runs = Paged(model, seed=1)
        runs._forget = lambda seq: None  # type: ignore[method-assign]
        seq = runs.run(tokens(1, 30), [20])
        before = _ask(runs, seq, what)
        row = 0 if what == "trunk" else 1 + int(what[-1])
        pool, number = model.pools.swa_v, seq.swa[at // 4]
        if at < 20:
            pool[row, number, at % 4] += 1
        moves.append(not torch.equal(_ask(runs, seq, what), before))
    assert moves == [False] + [True] * 5 + [False] * 15


def _ask(runs: Paged, seq: Seq, what: str) -> Any:
    """Row 20 of the trunk, or of an MTP head over the rows that are stored: its logits."""
    none = np.zeros(0, np.int64)
    ids = np.array(seq.tokens, np.int64)
    if 5 not in seq.swa:
        seq.swa[5] = runs.free_swa.pop()
    pages = np.array([seq.swa[p] for p in range(6)], np.int64)
    if what == "trunk":
        return runs.model.forward([Work(20, ids[20:21], none, 0, pages, 20, 20, logits=1)])[0]
    head = int(what[-1])
    if not runs.pools.hidden[seq.swa[5], 0].isfinite().all():
        runs.model.forward([Work(20, ids[20:21], none, 0, pages, 20, 20)])
        row = runs.pools.swa_layers + head
        runs.pools.swa_k[row, seq.swa[5], 0] = runs.pools.swa_v[row, seq.swa[5], 0] = 0.5
    return runs.model.draft(head, [Work(20, ids[20 : 20 + head + 2], none, 0, pages, logits=1)])[0]


# --- what else the model promises -------------------------------------------------------------------------------------


def test_rows_before_the_first_to_write_are_left_alone(backend: str) -> None:
    """A row that is recomputed for its layers alone is not stored, and what stands there is read as it stands."""
    runs = paged("like Flash", backend)
    seq = runs.run(tokens(1, 20), [20])
    runs2 = paged("like Flash", backend)
    again = runs2.start(tokens(1, 20))
    runs2.step([(again, 20)])
    pools = runs2.pools
    pages = np.array(again.full, np.int64)
    # SWA rows before 8 are there; full rows up to 16 are the tree's and must not be touched.
    swa = {p: again.swa.get(p) or runs2.free_swa.pop() for p in range(5)}
    for layer in (1, 2):
        for i in range(8):
            pools.swa_k[layer - 1, swa[i // 4], i % 4], pools.swa_v[layer - 1, swa[i // 4], i % 4] = seq.kv[layer][i]
    kept = pools.full_k[:, pages[:4]].clone(), pools.full_v[:, pages[:4]].clone()
    ids = np.array(again.tokens[8:20], np.int64)
    table = np.array([swa[p] for p in range(5)], np.int64)
    logits = runs2.model.forward([Work(8, ids, pages, 0, table, full_write_from=16, swa_write_from=8, logits=12)])[0]
    assert torch.equal(pools.full_k[:, pages[:4]], kept[0])
    assert torch.equal(pools.full_v[:, pages[:4]], kept[1])
    assert close(logits, torch.stack(seq.logits[8:]), NEAR)
    if backend == "reference":
        assert torch.equal(logits, torch.stack(seq.logits[8:]))


@pytest.mark.parametrize("wanted", [0, 1, 3, 9])
def test_only_the_wanted_logits_come_back(backend: str, wanted: int) -> None:
    runs = paged("like Flash", backend)
    whole = torch.stack(runs.run(tokens(1, 9), [9]).logits)
    full, swa = np.array([11, 12, 13]), np.array([11, 12, 13])
    ids = np.array(tokens(1, 9), np.int64)
    other = Work(0, ids[:2], np.array([21]), 0, np.array([21]), logits=1)
    found = runs.model.forward([Work(0, ids, full, 0, swa, logits=wanted), other])
    assert found[0].shape == (wanted, runs.model.config.vocab_size)
    assert found[0].dtype == torch.float32
    assert close(found[0], whole[9 - wanted :])
    assert close(found[1], whole[1:2])


def test_a_head_that_is_not_there_is_refused(backend: str) -> None:
    runs = paged("one MTP head", backend)
    for head in (-1, 1):
        with pytest.raises(ValueError, match=f"head is {head}, allowed is 0 to 0"):
            runs.model.draft(head, [])
    with pytest.raises(ValueError, match="has no MTP head"):
        paged("no MTP head", backend).model.draft(0, [])


def test_positions_far_out_turn_as_the_formula_says(backend: str) -> None:
    """RoPE tables grow with positions; the angle at 100,000 is as good as fp32 allows."""
    made = oracle("like Flash")
    runs = paged("like Flash", backend)
    for kind, s in (("full", made.config.full), ("swa", made.config.swa)):
        rope = runs.model._rope_rows(kind, torch.tensor([3, 5000, 99_999]))
        x = np.random.default_rng(0).normal(size=s.k_dim)
        for i, position in enumerate((3, 5000, 99_999)):
            turned = made.rotate(s, x, position)
            half = s.rotary_dim // 2
            cos, sin = np.asarray(rope[0][i, 0]), np.asarray(rope[1][i, 0])
            swapped = np.concatenate((x[half : 2 * half], x[:half]))
            assert close(x[: 2 * half] * cos + swapped * sin, turned[: 2 * half], 2e-2 if position > 9999 else 1e-3)


def test_weights_that_lie_anywhere_give_the_same_bits() -> None:
    """Views with odd strides and addresses, as tensors mapped from a file are."""
    made = oracle("like Flash")
    drawn = weights(made.config)

    def moved(tensor: Any) -> Any:
        room = torch.empty(tensor.numel() + 3, dtype=tensor.dtype)
        room[3:] = tensor.reshape(-1)
        return room[3:].view(tensor.shape)

    for layer in drawn.layers:
        layer.input_norm, layer.post_norm = moved(layer.input_norm), moved(layer.post_norm)
        layer.attention.q, layer.attention.o = moved(layer.attention.q), moved(layer.attention.o)
        layer.ffn.gate_up, layer.ffn.down = moved(layer.ffn.gate_up), moved(layer.ffn.down)
    drawn.embed, drawn.lm_head = moved(drawn.embed), moved(drawn.lm_head)
    model, _ = parts(made.config, drawn, "reference", 4)
    found = Paged(model).run(tokens(1, 20), [20]).logits
    want = paged("like Flash", "reference").run(tokens(1, 20), [20]).logits
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def test_shapes_are_those_of_the_config() -> None:
    """A guard for this file: the models above differ in what they say they do."""
    assert MODELS["SWA heads of another size"][1]["swa"] == AttentionShape(8, 4, 8, 12, 8, 1e2, True)
    assert isinstance(paged("like Flash", "torch").model, Model)
