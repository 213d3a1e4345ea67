"""The tiny model: training resumes to the bit, the split is honest, others read the checkpoint, its figures hold."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimo_cache import Geometry

torch = pytest.importorskip("torch", reason="training needs torch, which the extra [runner] brings")
pytest.importorskip("safetensors", reason="training needs safetensors, which the extra [runner] brings")

# These need torch.
from mimo_cache.models.training import data, evaluate, export  # noqa: E402
from mimo_cache.models.training.net import Attention, Moe, Net  # noqa: E402
from mimo_cache.models.training.settings import EOS, Phase, Recipe, Shape  # noqa: E402
from mimo_cache.models.training.train import BEST, LOG, STATE, StateError, Trainer, load, save, train  # noqa: E402

SHIPPED = Path(export.__file__).parents[1] / "tiny"
SMALL = Shape(hidden=32, pattern=(0, 1, 0), dense=48, expert=16, experts=4)
SHORT = Recipe(phases=(Phase(8, 2, 48), Phase(4, 1, 100), Phase(8, 2, 40)), warmup=4)
CORPUS = data.Corpus(
    ((b"the quick brown fox " * 40, 2), (b"jumps over a lazy dog. " * 30, 1)), (b"the lazy fox " * 20,)
)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """The number of threads is part of what makes sums of floats repeat."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small_net(seed: int = 0, shape: Shape = SMALL) -> Net:
    """Random weights, norms, sinks and router biases too."""
    torch.manual_seed(seed)
    net = Net(shape)
    with torch.no_grad():
        for tensor in net.state_dict().values():
            if tensor.ndim == 1:
                tensor.add_(torch.randn_like(tensor) * 0.2)
    return net


def same(a: Any, b: Any) -> bool:
    """Equal to the bit, through dicts and lists of tensors."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(torch.equal(a, b)) if isinstance(a, torch.Tensor) else bool(a == b)


@pytest.mark.parametrize("stop", [1, 9, 12, 19])
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path, stop: int) -> None:
    whole = Trainer(SMALL, SHORT, CORPUS)
    losses = [whole.advance() for _ in range(SHORT.steps)]
    first = Trainer(SMALL, SHORT, CORPUS)
    for _ in range(stop):
        first.advance()
    save(tmp_path / STATE, first.state())
    second = Trainer(SMALL, SHORT, CORPUS)
    second.restore(load(tmp_path / STATE))
    rest = [second.advance() for _ in range(stop, SHORT.steps)]
    assert same(losses[stop:], rest)
    assert same(whole.state(), second.state())
    assert whole.done
    assert second.done


def test_seeds_differ_and_steps_learn() -> None:
    a, b = Trainer(SMALL, SHORT, CORPUS), Trainer(SMALL, replace(SHORT, seed=2), CORPUS)
    first = a.advance()
    assert not same(first, b.advance())
    for _ in range(SHORT.steps - 1):
        last = a.advance()
    assert last[0] < first[0] - 0.5
    assert any(m.gate.e_score_correction_bias.abs().max() > 0 for m in a.net.modules() if isinstance(m, Moe))


def test_train_keeps_the_best_weights_and_a_log(tmp_path: Path) -> None:
    net, seconds = train(tmp_path, CORPUS, SMALL, SHORT, resume=False, say=lambda _: None)
    assert same(net.state_dict(), load(tmp_path / BEST))
    line = json.loads((tmp_path / LOG).read_text())
    assert line["step"] == SHORT.steps
    assert line["held_out"] == pytest.approx(
        evaluate.bits_per_byte(net, data.join(CORPUS.held_out), evaluate.CONTEXT), abs=1e-4
    )
    # Resuming a finished run trains no further.
    again, same_seconds = train(tmp_path, CORPUS, SMALL, SHORT, resume=True, say=lambda _: None)
    assert same(net.state_dict(), again.state_dict())
    assert same_seconds == seconds


def test_a_state_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"state\.pt does not exist"):
        train(tmp_path, CORPUS, SMALL, SHORT, resume=True, say=lambda _: None)
    save(tmp_path / STATE, Trainer(SMALL, SHORT, CORPUS).state())
    with pytest.raises(StateError, match=r"another recipe: \{'seed': 1\}"):
        train(tmp_path, CORPUS, SMALL, replace(SHORT, seed=2), resume=True, say=lambda _: None)
    with pytest.raises(StateError, match=r"another shape: \{'hidden': 32\}"):
        train(tmp_path, CORPUS, replace(SMALL, hidden=64), SHORT, resume=True, say=lambda _: None)
    content = (tmp_path / STATE).read_bytes()
    save(tmp_path / STATE, {key: value for key, value in load(tmp_path / STATE).items() if key != "net"})
    with pytest.raises(StateError, match="lacks net"):
        train(tmp_path, CORPUS, SMALL, SHORT, resume=True, say=lambda _: None)
    for broken in (b"", content[: len(content) // 2], b"not a state"):
        (tmp_path / STATE).write_bytes(broken)
        with pytest.raises(StateError, match="cannot be read"):
            train(tmp_path, CORPUS, SMALL, SHORT, resume=True, say=lambda _: None)


@pytest.mark.parametrize("steps", [10, 57, 5700, 12345])
def test_a_scaled_recipe_has_that_many_steps(steps: int) -> None:
    scaled = Recipe().scaled(steps)
    assert scaled.steps == steps
    assert [p.context for p in scaled.phases] == [p.context for p in Recipe().phases]
    contexts = [p.context for p in scaled.phases for _ in range(p.steps)]
    assert [scaled.phase_at(step).context for step in range(steps)] == contexts


def test_the_split_is_disjoint_and_repeats() -> None:
    corpus = data.load()
    assert corpus.digest == data.load().digest
    topics = data.read_topics()
    held_out = set(corpus.held_out)
    assert len(held_out) >= len(data.HELD_OUT) // 2, "this Python has renamed most of the topics that are held out"
    assert 0.03 < sum(map(len, held_out)) / sum(len(text.encode()) for text in topics.values()) < 0.07
    judged = set().union(*(data.runs(d.decode()) for d in held_out))
    assert len(judged) > 1000
    for document, _ in corpus.train:
        assert document not in held_out
        assert judged.isdisjoint(data.runs(document.decode()))
    # Most topics are trained on: the rule that drops near copies does not eat the corpus.
    assert sum(text.encode() in {d for d, _ in corpus.train} for text in topics.values()) > len(topics) / 2


def test_batches_depend_on_seed_and_step_alone() -> None:
    a, b = data.Sampler(CORPUS, 1), data.Sampler(CORPUS, 1)
    a.batch(0, 2, 30)
    assert same(a.batch(200, 2, 30), b.batch(200, 2, 30))
    assert not same(a.batch(201, 2, 30), b.batch(200, 2, 30))
    assert not same(a.batch(200, 2, 30), data.Sampler(CORPUS, 2).batch(200, 2, 30))


@pytest.mark.parametrize("length", [17, 40, 64])
def test_an_swa_query_sees_exactly_17_keys(length: int) -> None:
    torch.manual_seed(0)
    shape = Shape()
    attention = Attention(shape, swa=True)
    x = torch.randn(1, length, shape.hidden, requires_grad=True)
    for query in (0, 15, 16, length - 1):
        (grad,) = torch.autograd.grad(attention(x)[0, query].sum(), x)
        seen = grad[0].abs().sum(-1).nonzero().flatten().tolist()
        assert seen == list(range(max(0, query - 16), query + 1))


@torch.no_grad()  # type: ignore[untyped-decorator]
def test_swa_attention_is_the_formula() -> None:
    net = small_net()
    attention = net.model.layers[1].self_attn
    shape = net.shape
    x = torch.randn(1, 45, shape.hidden)
    got = attention(x)[0]
    q, k, v = (
        torch.nn.functional.linear(x[0], p.weight).view(45, -1, dim).double()
        for p, dim in (
            (attention.q_proj, shape.k_dim),
            (attention.k_proj, shape.k_dim),
            (attention.v_proj, shape.v_dim),
        )
    )
    half = shape.rotated // 2
    for z in (q, k):
        for t in range(45):
            for i in range(half):
                turn = t * shape.swa_theta ** (-2 * i / shape.rotated)
                a, b = z[t, :, i].clone(), z[t, :, i + half].clone()
                z[t, :, i] = a * math.cos(turn) - b * math.sin(turn)
                z[t, :, i + half] = b * math.cos(turn) + a * math.sin(turn)
    rows = []
    for t in range(45):
        heads = []
        for h in range(shape.heads):
            kv = h // (shape.heads // shape.swa_kv_heads)
            seen = range(max(0, t - 16), t + 1)
            e = [math.exp(float(q[t, h] @ k[s, kv]) / math.sqrt(shape.k_dim)) for s in seen]
            below = sum(e) + math.exp(float(attention.attention_sink_bias[h]))
            heads.append(sum(w / below * shape.value_scale * v[s, kv] for w, s in zip(e, seen, strict=True)))
        rows.append(torch.cat(heads))
    want = torch.nn.functional.linear(torch.stack(rows), attention.o_proj.weight.double())
    assert torch.allclose(got.double(), want, atol=1e-5)


@pytest.mark.parametrize("head", [0, 1, 2])
def test_a_head_reads_the_token_before_the_one_it_predicts(head: int) -> None:
    net = small_net()
    ids = torch.randint(256, (1, 40))
    hidden = torch.randn(1, 30, net.shape.hidden)

    def draft(tokens: Any) -> Any:
        return net.draft(head, tokens[:, head + 1 : head + 31], hidden)

    changed = ids.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 256
    differs = (draft(ids) != draft(changed)).any(-1)[0].nonzero().flatten().tolist()
    assert differs[0] == 20 - head - 1
    assert differs[-1] <= differs[0] + 16
    # In the loss row i of the head is held against the token at i + head + 2.
    t = 40 - 1 - net.shape.mtp_heads
    logits = net.draft(head, ids[:, head + 1 : t + head + 1], net.hidden(ids[:, :t]))
    want = torch.nn.functional.cross_entropy(logits[0], ids[0, head + 2 : t + head + 2])
    assert net.losses(ids)[1 + head].item() == pytest.approx(want.item(), rel=1e-5)


class Spy:
    """Gives every token the probability 2 to the minus (tokens before it in the pass), and keeps what it was asked."""

    def __call__(self, ids: Any) -> Any:
        before = torch.arange(1, ids.shape[1] + 1, dtype=torch.float32)
        rest = torch.log1p(-torch.pow(2.0, -before.double())).float() - math.log(319)
        logits = rest[:, None].repeat(1, 320)
        following = torch.cat((ids[0, 1:], ids.new_tensor([7])))
        logits[torch.arange(len(before)), following] = -before * math.log(2)
        return logits[None]


@pytest.mark.parametrize(("count", "context", "first"), [(100, 16, 0), (100, 200, 0), (33, 16, 16), (101, 16, 40)])
def test_every_byte_counts_once_and_has_half_a_context(count: int, context: int, first: int) -> None:
    ids = torch.full((count,), 7)
    total = evaluate.bits_per_byte(Spy(), ids, context, first) * (count - 1 - first)  # type: ignore[arg-type]
    want = 0
    for target in range(first + 1, count):
        start = max(0, -(-(target - context) // (context // 2))) * (context // 2)
        want += target - start
        assert target - start >= min(target, context // 2)
    assert total == pytest.approx(want, rel=1e-5)


def test_accept_length_is_that_of_a_plain_decode_loop() -> None:
    net, _ = train_briefly()
    prompt = 40
    ids = evaluate.greedy(net, data.join([CORPUS.train[0][0]])[None, :prompt], 60)[0]
    lengths, p = [], prompt
    while p + 3 < len(ids):
        hidden = net.hidden(ids[None, :p])
        drafts: list[int] = []
        for head in range(3):
            # Rows 0 .. p - 1; the newest reads the last draft, or the token just sampled.
            row_tokens = torch.cat((ids[head + 1 : p + 1], torch.tensor(drafts, dtype=torch.int64)))
            drafts.append(int(net.draft(head, row_tokens[None], hidden)[0, -1].argmax()))
        right = 0
        while right < 3 and drafts[right] == ids[p + 1 + right]:
            right += 1
        lengths.append(right + 1)
        p += right + 1
    assert evaluate.accept_lengths(net, ids, prompt) == lengths
    assert len(set(lengths)) > 1, "a text on which every round is alike shows nothing"


def train_briefly() -> tuple[Net, Any]:
    """A net that has begun to learn, so that some of its drafts are right."""
    trainer = Trainer(SMALL, replace(SHORT, phases=(Phase(60, 4, 64),)), CORPUS)
    while not trainer.done:
        last = trainer.advance()
    return trainer.net, last


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    net = small_net()
    export.write(net, tmp_path, 4096)
    assert same(export.read(tmp_path, SMALL).state_dict(), net.state_dict())
    with pytest.raises(RuntimeError, match=r"model\.layers\.2\.mlp\.gate_up|layers\.3"):
        export.read(tmp_path, replace(SMALL, pattern=(0, 1, 0, 1)))
    with pytest.raises(RuntimeError, match="Unexpected"):
        export.read(tmp_path, replace(SMALL, pattern=(0, 1)))


def test_the_core_reads_the_geometry(tmp_path: Path) -> None:
    export.write(Net(Shape()), tmp_path, 8192)
    geometry = Geometry.from_file(tmp_path / "config.json", page_size=16)
    assert (geometry.mtp_heads, geometry.window_keys) == (3, 17)
    assert geometry.layers == ["full", "swa", "swa", "swa", "full", "swa", "swa"]


def test_the_tokenizer_is_the_identity_on_bytes(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="comparing needs the package tokenizers")
    export.write(small_net(), tmp_path, 4096)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == Shape().vocab
    assert tokenizer.encode("a<|endoftext|>").ids == [97, EOS]

    plain = st.text(max_size=40).filter(lambda text: "<|endoftext|>" not in text)

    @given(plain | st.sampled_from(["  two  blanks\t\r\n", " ,don't . ", "é\u2028漢\U0001f600\x00\x7f"]))
    def check(text: str) -> None:
        ids = tokenizer.encode(text).ids
        assert ids == list(text.encode())
        assert tokenizer.decode(ids) == text

    check()


def transformers_model(path: Path) -> Any:
    transformers = pytest.importorskip("transformers", reason="comparing needs the package transformers")
    if not hasattr(transformers, "MiMoV2FlashForCausalLM"):
        pytest.skip(f"transformers {transformers.__version__} does not have mimo_v2_flash; 5.20 or newer does")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


@pytest.mark.filterwarnings("default")
def test_the_shipped_checkpoint_gives_the_same_logits_in_transformers() -> None:
    model = transformers_model(SHIPPED)
    assert model.config.sliding_window == 17
    ids = data.join(evaluate.read_held_out(SHIPPED / evaluate.HELD_OUT))[None, :1500]
    with torch.inference_mode():
        difference = (model(ids).logits - export.read(SHIPPED)(ids)).abs().max().item()
    assert difference < 1e-4


@pytest.mark.filterwarnings("default")
def test_the_shipped_tokenizer_loads_in_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="comparing needs the package transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(SHIPPED)
    text = " What's  new?\n\tÜber 漢字 , . "
    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token_id == EOS


def test_the_shipped_files_are_what_export_writes(tmp_path: Path) -> None:
    figures = json.loads((SHIPPED / evaluate.FIGURES).read_text())
    export.write(export.read(SHIPPED), tmp_path, figures["max_positions"])
    for written in tmp_path.iterdir():
        assert written.read_bytes() == (SHIPPED / written.name).read_bytes(), written.name
    assert (SHIPPED / export.WEIGHTS).stat().st_size <= 6_000_000


def test_the_shipped_figures_hold() -> None:
    figures = json.loads((SHIPPED / evaluate.FIGURES).read_text())
    held_out = evaluate.read_held_out(SHIPPED / evaluate.HELD_OUT)
    assert len(held_out) == len(data.HELD_OUT)
    measured = evaluate.bits_per_byte(export.read(SHIPPED), data.join(held_out), evaluate.CONTEXT)
    assert measured == pytest.approx(figures["bits_per_byte"], rel=0.05)
