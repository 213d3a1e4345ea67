"""Half-width weights and pools: everything runs, stays close to fp32, and cached is still uncached bit for bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mimo_cache.models.config import ModelConfig
from mimo_cache.runner import LLM, Engine, SamplingParams
from oracle import Oracle
from paged import Paged
from small_models import BACKENDS, checkpoint, config, distance, engine, parts, tokens, weights

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# Without experts: a router that flips on a rounding error is another model.
DENSE = config(moe_layers=(False,) * 4, num_experts=0, experts_per_token=0, dtype="bfloat16")
EXPERTS = config(dtype="bfloat16")
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, keep_logits=True)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend."""
    return str(request.param)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As the runner runs."""
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("sizes", [[40], [1] * 40, [7, 9, 1, 1, 22]], ids=["whole", "decode", "chunks"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_close_to_float64(backend: str, dtype: str, sizes: list[int]) -> None:
    """Logits, KV, MTP rows and drafts, against float64 on the same rounded weights; relative to their size."""
    drawn = weights(DENSE, dtype=DTYPES[dtype])
    model, _ = parts(DENSE, drawn, backend, 4)
    seq = Paged(model).run(tokens(1, 40), sizes, draft=True)
    assert seq.logits[0].dtype == torch.float32
    assert model.pools.swa_k.dtype == model.pools.hidden.dtype == DTYPES[dtype]
    found = Paged(model).differences(seq, Oracle(DENSE, drawn))
    # Eight bits of mantissa are 2^-8 = 0.4 % for each operation of about fifty in a row; eleven bits an eighth of it.
    most = {"bfloat16": 0.25, "float16": 0.04}[dtype]
    assert all(d < most for d in found.values()), found


def serve(server: Engine, prompts: list[list[int]]) -> list[tuple[list[int], Any, int]]:
    """Tokens, logits and the hit of each."""
    out: dict[int, list[Any]] = {}
    uids = [server.add(np.array(prompt), PARAMS) for prompt in prompts]
    while server.busy:
        for output in server.step():
            out.setdefault(output.uid, []).append(output)
    server.cache.check_integrity()
    return [([o.token for o in out[u]], torch.stack([o.logits for o in out[u]]), out[u][0].report.usable) for u in uids]


@pytest.mark.parametrize("made", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_cached_is_uncached_in_bfloat16(backend: str, made: ModelConfig) -> None:
    drawn = weights(made, dtype=torch.bfloat16)
    prompts = [tokens(1, 30), [*tokens(1, 26), 1, 2, 3, 4], tokens(2, 9)]
    server = engine(made, drawn, backend, chunk=11)
    first, again = serve(server, prompts), serve(server, prompts)
    assert [hit for _, _, hit in again] == [28, 28, 8]
    for prompt, one, two in zip(prompts, first, again, strict=True):
        alone = serve(engine(made, drawn, backend), [prompt])[0]
        for _, logits, _ in (one, two):
            assert logits.isfinite().all()
            if backend == "reference":
                assert torch.equal(logits, alone[1])
            elif made is DENSE:
                assert distance(logits[0], alone[1][0]) < 0.25


def test_a_checkpoint_in_bfloat16(tmp_path: Path, backend: str) -> None:
    """`dtype` is that of weights and KV; fp32 is what a CPU gets unasked."""
    path = checkpoint(tmp_path)
    plain = LLM(path, backend=backend, memory="4M")
    half = LLM(path, backend=backend, memory="4M", dtype="bfloat16")
    assert plain.engine.model.pools.full_k.dtype == torch.float32
    assert half.engine.model.pools.full_k.dtype == half.engine.model.embed.dtype == torch.bfloat16
    assert half.cache.full_pages > 1.8 * plain.cache.full_pages
    for _ in range(2):
        made = half.generate("x" * 40, PARAMS)[0]
        assert made.logits.isfinite().all()
    assert made.report.usable == 32
