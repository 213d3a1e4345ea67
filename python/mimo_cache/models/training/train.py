"""The training loop: state on disk every few minutes, resumable to the bit.

Files in the output directory: `state.pt` (everything a resumed run needs), `best.pt` (weights with the lowest held-out
loss so far), `log.jsonl` (one line per evaluation). A file is written beside its place and then moved there.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .data import Corpus, Sampler, join
from .net import Moe, Net
from .settings import Recipe, Shape

SAVE_SECONDS = 120.0
EVALUATE_STEPS = 250
EVALUATION_CONTEXT = 2048


class Trainer:
    """One run: `advance` until `done`. `state` and `restore` carry everything that the next step depends on."""

    def __init__(self, shape: Shape, recipe: Recipe, corpus: Corpus) -> None:
        self.shape, self.recipe = shape, recipe
        torch.manual_seed(recipe.seed)
        self.net = Net(shape)
        matrices = [p for p in self.net.parameters() if p.ndim >= 2]
        vectors = [p for p in self.net.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=recipe.rate, betas=recipe.betas, fused=True)
        self.sampler = Sampler(corpus, recipe.seed)
        self.step = 0
        self.best = math.inf

    @property
    def done(self) -> bool:
        return self.step >= self.recipe.steps

    def rate(self) -> float:
        """Learning rate of the coming step: linear warm-up, then one cosine over all phases."""
        r = self.recipe
        cosine = 0.5 * (1 + math.cos(math.pi * self.step / r.steps))
        return r.rate * min(1.0, (self.step + 1) / r.warmup) * (r.final_rate + (1 - r.final_rate) * cosine)

    def advance(self) -> Tensor:
        """One step. Losses in nats, [1 + mtp_heads]."""
        phase, rate = self.recipe.phase_at(self.step), self.rate()
        ids = self.sampler.batch(self.step, phase.rows, phase.context + 1 + self.shape.mtp_heads)
        losses = self.net.losses(ids)
        self.optimizer.zero_grad(set_to_none=True)
        (losses[0] + self.recipe.mtp_weight * losses[1:].sum()).backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.recipe.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        # Routers are balanced without a loss: an expert with less than its share becomes easier to choose.
        for module in self.net.modules():
            if isinstance(module, Moe):
                load = module.load.float()
                nudge = self.recipe.balance * rate / self.recipe.rate
                module.gate.e_score_correction_bias += nudge * (load.mean() - load).sign()
        self.step += 1
        return losses.detach()

    def state(self) -> dict[str, Any]:
        return {
            "shape": asdict(self.shape),
            "recipe": asdict(self.recipe),
            "step": self.step,
            "best": self.best,
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`. Raises `ValueError` when it belongs to another shape or recipe."""
        for name, ours in (("shape", asdict(self.shape)), ("recipe", asdict(self.recipe))):
            if state[name] != ours:
                differing = {key: value for key, value in state[name].items() if value != ours.get(key)}
                raise ValueError(f"the saved run has another {name}: {differing}; start again without --resume")
        self.step, self.best = state["step"], state["best"]
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])


@torch.no_grad()
def bits_per_byte(net: Net, documents: tuple[bytes, ...], context: int) -> float:
    """Bits per byte of the documents, joined and cut into stretches of `context`; the end of a document counts as a
    byte."""
    ids = join(documents)
    total = 0.0
    for start in range(0, len(ids) - 1, context):
        piece = ids[start : start + context + 1]
        total += F.cross_entropy(net(piece[None, :-1])[0], piece[1:], reduction="sum").item()
    return total / (len(ids) - 1) / math.log(2)


def save(path: Path, value: object) -> None:
    """Writes through a file beside `path`, so that an interrupted write loses nothing."""
    beside = path.with_suffix(".part")
    torch.save(value, beside)
    os.replace(beside, path)


def train(out: Path, corpus: Corpus, shape: Shape, recipe: Recipe, resume: bool, say: Callable[[str], None]) -> Path:
    """Trains to the end. Returns the path of the best weights: a state dict of `Net`.

    Raises `FileNotFoundError` when `resume` finds no state, `ValueError` when the state is of another run."""
    out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(shape, recipe, corpus)
    if resume:
        trainer.restore(torch.load(out / "state.pt", weights_only=True))
        say(f"resumed at step {trainer.step}")
    began, first, saved = time.monotonic(), trainer.step, time.monotonic()
    mean = torch.zeros(1 + shape.mtp_heads)
    while not trainer.done:
        losses = trainer.advance()
        mean = losses if mean[0] == 0 else mean.lerp(losses, 0.02)
        if trainer.step % EVALUATE_STEPS == 0 or trainer.done:
            held_out = bits_per_byte(trainer.net, corpus.held_out, EVALUATION_CONTEXT)
            passed = time.monotonic() - began
            left = sum(_cost(recipe, i) for i in range(trainer.step, recipe.steps))
            left *= passed / sum(_cost(recipe, i) for i in range(first, trainer.step))
            line = {"step": trainer.step, "held_out": round(held_out, 4), "train": [round(x, 4) for x in mean.tolist()]}
            with (out / "log.jsonl").open("a", encoding="utf-8") as log:
                log.write(json.dumps(line | {"seconds": round(passed)}) + "\n")
            trained = mean[0].item() / math.log(2)
            say(
                f"step {trainer.step}/{recipe.steps}: {trained:.3f} bits per byte in training, {held_out:.3f} held out; "
                f"about {left / 60:.0f} minutes left"
            )
            if held_out < trainer.best:
                trainer.best = held_out
                save(out / "best.pt", trainer.net.state_dict())
        if trainer.done or time.monotonic() - saved > SAVE_SECONDS:
            save(out / "state.pt", trainer.state())
            saved = time.monotonic()
    return out / "best.pt"


def _cost(recipe: Recipe, step: int) -> float:
    """Relative time of a step: tokens, and full layers' attention, which grows with the context."""
    phase = recipe.phase_at(step)
    return phase.rows * phase.context * (1 + phase.context / 8192)
