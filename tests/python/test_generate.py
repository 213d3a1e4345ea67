"""`mimo-cache generate` and `LLM` on the checkpoint that comes along."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="the runner needs torch")

from mimo_cache import cli  # noqa: E402
from mimo_cache.runner import LLM, RequestError, SamplingParams  # noqa: E402

PROMPT = "The class statement defines"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny", memory="16M")


def test_text_streams_and_figures_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "--prompt", PROMPT, "--max-tokens", "48"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(PROMPT)
    assert out.endswith("\n")
    assert len(out) >= len(PROMPT) + 40
    assert "27 prompt tokens, 0 reused; 48 new" in err


def test_the_second_prompt_reuses_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    text = PROMPT * 4
    words = ["generate", "--prompt", text, "--prompt", text + " and", "--max-tokens", "4", "--json"]
    assert cli.main(words) == 0
    first, second = json.loads(capsys.readouterr().out.splitlines()[-1])["completions"]
    assert (first["reused"], second["reused"]) == (0, 96)
    assert second["prompt_tokens"] == second["reused"] + sum(second["misses"].values())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--max-tokens", "0"], "max_tokens is 0, allowed is 1 to"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--top-p", "0"], "top_p is 0"),
        (["--backend", "cuda9"], "backend is 'cuda9', allowed is one of reference, torch"),
        (["--memory", "lots"], "memory is 'lots'"),
        (["--memory", "1K"], "memory is 1024 bytes, at least"),
        (["--model", "/nowhere"], "/nowhere"),
        (["--max-tokens", "1000000"], "allowed are"),
    ],
)
def test_errors_are_one_sentence(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "--prompt", PROMPT, *words]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err


def test_greedy_text_is_transformers(llm: LLM) -> None:
    transformers = pytest.importorskip("transformers", reason="logits are compared with transformers")
    other = transformers.AutoModelForCausalLM.from_pretrained(llm.path, dtype=torch.float32)
    prompt = "The with statement is used to wrap the execution of a block"
    ids = torch.tensor([llm.tokenizer.encode(prompt)])
    with torch.inference_mode():
        made = other.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=96, do_sample=False)
    mine = llm.generate(prompt, SamplingParams(max_tokens=96))[0]
    assert mine.token_ids == made[0, ids.shape[1] :].tolist()


def test_the_checkpoint_writes_words(llm: LLM) -> None:
    """Most words of its greedy text are words of its kind of text."""
    from pydoc_data.topics import topics  # noqa: PLC0415

    known = {w.lower() for text in topics.values() for w in text.split()}
    text = llm.generate(PROMPT, SamplingParams(max_tokens=300))[0].text
    words = text.split()[1:-1]
    assert len(words) > 20
    assert sum(w.lower() in known for w in words) / len(words) > 0.8


def test_a_stream_is_the_completion(llm: LLM) -> None:
    params = SamplingParams(max_tokens=40, temperature=0.8, top_k=20, top_p=0.9, seed=5)
    pieces = list(llm.stream(PROMPT, params))
    whole = llm.generate(PROMPT, params)[0]
    assert "".join(p.text for p in pieces) == whole.text
    assert [p.token_id for p in pieces] == whole.token_ids
    assert [p.finish for p in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish == whole.finish


def test_a_closed_stream_leaves_nothing(llm: LLM) -> None:
    stream = llm.stream(PROMPT, SamplingParams(max_tokens=40))
    next(stream)
    stream.close()
    assert not llm.engine.busy
    assert llm.cache.stats().open_sequences == 0
    llm.cache.check_integrity()


def test_stop_tokens(llm: LLM) -> None:
    free = llm.generate(PROMPT, SamplingParams(max_tokens=40))[0]
    stop = free.token_ids[7]
    cut = llm.generate(PROMPT, SamplingParams(max_tokens=40, stop_token_ids=[stop]))[0]
    assert cut.finish == "stop"
    assert cut.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]


def test_one_impossible_prompt_among_good_ones_leaves_nothing_queued(llm: LLM) -> None:
    prompts: list[str | list[int]] = [PROMPT, [65] * (llm.config.max_positions + 1)]
    with pytest.raises(RequestError, match="the model's positions"):
        llm.generate(prompts)
    assert not llm.engine.busy
    assert llm.cache.stats().open_sequences == 0
    assert llm.generate([PROMPT], SamplingParams(max_tokens=2))[0].finish == "length"


def test_threads_share_it() -> None:
    """Streams and calls from several threads: each gets what it would get alone, bit for bit."""
    llm = LLM("tiny", backend="reference", memory="16M")
    prompts = [f"{name} statement" for name in ("The with", "A return", "The import", "An assert")]
    params = [SamplingParams(max_tokens=12, temperature=0.7, seed=i) for i in range(4)]
    want = [c.token_ids for c in llm.generate(prompts, params, store=False)]

    def one(i: int) -> list[int]:
        if i % 2:
            return [piece.token_id for piece in llm.stream(prompts[i], params[i])]
        return llm.generate(prompts[i], params[i])[0].token_ids

    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(one, range(4))) == want
    assert not llm.engine.busy
    assert llm.cache.stats().open_sequences == 0
    llm.cache.check_integrity()
