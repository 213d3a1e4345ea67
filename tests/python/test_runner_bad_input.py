"""What callers of the runner get wrong: each is a typed error in one sentence, and leaves nothing in the cache."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the runner needs torch")

from mimo_cache import FileError, MimoCacheError, cli, kernels  # noqa: E402
from mimo_cache.runner import LLM, RequestError, SamplingParams  # noqa: E402
from mimo_cache.runner.llm import TINY  # noqa: E402
from mimo_cache.runner.sampling import Sampler  # noqa: E402

PROMPT = "The class statement defines"
TWO = SamplingParams(max_tokens=2)


class Awkward:
    """An object whose array cannot be made."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise OSError("not today")


@pytest.fixture(scope="module")
def shared() -> LLM:
    return LLM("tiny", memory="8M")


@pytest.fixture
def llm(shared: LLM) -> Iterator[LLM]:
    yield shared
    assert not shared.engine.busy
    assert shared.cache.stats().open_sequences == 0
    shared.cache.check_integrity()


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        (None, "prompts is of type NoneType"),
        (5, "prompts is of type int"),
        ({0: 1}, "prompts is of type dict"),
        ({1, 2}, "prompts is of type set"),
        (iter([1, 2]), "prompts is of type list_iterator"),
        (np.array(3), "prompts is of type ndarray"),
        (b"abc", "a prompt is of type bytes"),
        ([bytearray(b"abc")], "a prompt is of type bytearray"),
        ("a\ud800", "a lone surrogate at index 1"),
        ([[1, [2]]], "a prompt is no array of token ids"),
        ([Awkward()], "not today"),
        ([np.array([1], "m8[s]")], "timedelta64"),
        ([torch.zeros(3, requires_grad=True)], "no array of token ids"),
        ([PROMPT, None], "a prompt has shape"),
    ],
)
def test_prompts(llm: LLM, prompts: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        llm.generate(prompts, TWO)


def test_rows_of_an_array_are_prompts(llm: LLM) -> None:
    ids: Any = np.arange(10).reshape(2, 5)
    want = [c.token_ids for c in llm.generate(ids.tolist(), TWO)]
    assert [c.token_ids for c in llm.generate(ids, TWO)] == want
    assert [c.token_ids for c in llm.generate(torch.from_numpy(ids), TWO)] == want
    assert llm.generate(torch.arange(5), TWO)[0].token_ids == want[0]


@pytest.mark.parametrize("params", [None, 5, [5], {"max_tokens": 2}])
def test_params(llm: LLM, params: Any) -> None:
    with pytest.raises(RequestError, match="param"):
        llm.generate(PROMPT, params)
    with pytest.raises(RequestError, match="allowed is SamplingParams"):
        list(llm.stream(PROMPT, params))


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_tokens", [True, 2.5, "3", None, 0, 1 << 21, np.array([1, 2])]),
        ("temperature", ["1", None, float("nan"), float("inf"), -1, 10**400, np.array([0.5, 0.6])]),
        ("top_k", [2.5, None, "5", -1, float("nan"), True]),
        ("top_p", ["a", None, float("nan"), 0, 1.5, np.array([0.5, 0.6])]),
        ("seed", [1.5, None, "a", -1, 1 << 64, 10**5000]),
        ("stop_token_ids", [5, None, "abc", [1.5], [-1], ["a"], [[1]], [np.array([1, 2])], [True]]),
        ("ignore_eos", [5, "no", None, np.array([1, 2])]),
        ("keep_logits", ["yes", np.array([1, 2])]),
    ],
)
def test_sampling_params(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(RequestError, match="allowed is"):
            SamplingParams(**{field: value})


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    given: dict[str, Any] = {
        "max_tokens": torch.tensor(3),
        "temperature": np.float32(0.5),
        "top_k": np.int8(4),
        "seed": np.uint64(2**64 - 1),
        "stop_token_ids": iter(np.array([7, 8])),
    }
    assert SamplingParams(**given) == SamplingParams(3, 0.5, 4, 1.0, 2**64 - 1, (7, 8))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_no_token_follows_from_logits_that_are_not_finite(temperature: float, bad: float) -> None:
    logits = torch.zeros(8)
    logits[3] = bad
    with pytest.raises(RequestError, match="largest logit is"):
        Sampler(SamplingParams(temperature=temperature))(logits)


def test_tiny_temperatures_are_greedy() -> None:
    logits = torch.tensor([1.0, 3.0, float("-inf"), 2.0])
    for temperature in (1e-9, 1e-300, 5e-324):
        assert Sampler(SamplingParams(temperature=temperature))(logits) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"page_size": 0}, "page_size is 0"),
        ({"max_running": "8"}, "max_running is"),
        ({"max_running": True}, "max_running is True"),
        ({"max_step_tokens": 2.5}, "max_step_tokens is 2.5"),
        ({"memory": "٣M"}, "memory is"),
        ({"memory": "90T"}, "allowed|this machine has"),
        ({"full_pages": 100, "swa_pages": 1 << 30}, "this machine has"),
        ({"scratch_pages": 4}, "scratch_pages is 4 without"),
        ({"backend": []}, r"backend is \[\]"),
        ({"device": "meta"}, "device is"),
        ({"device": "privateuseone"}, "device is"),
        ({"path": None}, "path is of type NoneType"),
        ({"path": b"tiny"}, "path is of type bytes"),
        ({"path": "\0"}, "null byte"),
        ({"path": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_engines(options: dict[str, Any], says: str) -> None:
    with pytest.raises(MimoCacheError, match=says) as info:
        LLM(**options)
    assert len(str(info.value).splitlines()) == 1


def test_a_tokenizer_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    (model / "tokenizer.json").unlink()
    os.mkfifo(model / "tokenizer.json")
    with pytest.raises(FileError, match="not a regular file"):
        LLM(model)


def test_a_backend_whose_module_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "BACKENDS", dict(kernels.BACKENDS))
    for target in ("nowhere.at.all:Cls", "mimo_cache.kernels.reference:Nothing", ":"):
        kernels.register("new", target)
        with pytest.raises(kernels.UnknownBackend, match="cannot be imported"):
            kernels.get("new")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--prompt", "\udcff\udcfeabc"], "a lone surrogate at index 0"),
        (["--prompt", "a", "--prompt", "\udcff"], "a lone surrogate at index 0"),
        (["--prompt", "a", "--memory", "20T"], "this machine has|allowed"),
        (["--prompt", "a", "--model", "\udcff"], "surrogate|No such file"),
    ],
)
def test_the_command_says_one_sentence(words: list[str], says: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "--max-tokens", "2", *words]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("mimo-cache: ")
    assert re.search(says, last)
