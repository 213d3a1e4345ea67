"""transformers' own `generate` on the same checkpoint, with the settings under which it is fastest here."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mimo_cache.bench.timing import say

ATTENTION = ("eager", "sdpa")
EXPERTS = ("eager", "batched_mm", "grouped_mm")
"""Implementations that are tried; a model need not support all."""
TRIES = 3
"""Runs of each, of which the fastest counts."""

Generate = Callable[[], list[int]]


def generator(path: Path, prompt: list[int], new: int) -> tuple[Generate | None, str]:
    """What makes `new` greedy tokens behind `prompt`, and its name; None and the reason where that cannot be run.

    fp32, inference mode, KV cache, no end token; threads as torch is set, as on our side.
    """
    if find_spec("transformers") is None:
        return None, "transformers, which is not installed"
    import transformers  # noqa: PLC0415  optional

    transformers.utils.logging.disable_progress_bar()
    best: tuple[float, Generate, str] | None = None
    problem = ""
    for attention in ATTENTION:
        for experts in EXPERTS:
            try:
                candidate = _load(path, prompt, new, attention, experts)
                seconds = min(_timed(candidate) for _ in range(TRIES))
            except (ValueError, TypeError, ImportError, RuntimeError, KeyError) as error:
                problem = str(error).splitlines()[0] if str(error) else type(error).__name__
                continue
            name = f"transformers {transformers.__version__}, {attention} attention, {experts} experts"
            say(f"{name}: {new / seconds:.0f} tokens/s")
            if best is None or seconds < best[0]:
                best = seconds, candidate, name
    if best is None:
        return None, f"transformers {transformers.__version__}, which cannot run the checkpoint ({problem})"
    return best[1], best[2]


def _load(path: Path, prompt: list[int], new: int, attention: str, experts: str) -> Generate:
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model: Any = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation=attention, experts_implementation=experts, local_files_only=True
    ).eval()
    model.generation_config.eos_token_id = None
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)

    def generate() -> list[int]:
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=mask, max_new_tokens=new, do_sample=False, use_cache=True, pad_token_id=0
            )
        tokens: list[int] = out[0, len(prompt) :].tolist()
        return tokens

    return generate


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
