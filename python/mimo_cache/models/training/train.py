"""The training loop: state on disk every few minutes, resumable to the bit.

Files in the output directory: `state.pt` (everything a resumed run needs), `best.pt` (weights with the lowest held-out
loss so far), `log.jsonl` (one line per evaluation). A file is written beside its place and then moved there.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .data import Corpus, Sampler, join
from .evaluate import CONTEXT, bits_per_byte
from .net import Moe, Net
from .settings import Recipe, Shape

SAVE_SECONDS = 120.0
EVALUATE_STEPS = 250
STATE, BEST, LOG = "state.pt", "best.pt", "log.jsonl"


class StateError(ValueError):
    """A saved run that cannot be gone on with."""


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
        self.seconds = 0.0
        self.mean = torch.zeros(1 + shape.mtp_heads)

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
        losses = losses.detach()
        self.mean = losses if self.step == 1 else self.mean.lerp(losses, 0.02)
        return losses

    def state(self) -> dict[str, Any]:
        return {
            "shape": asdict(self.shape),
            "recipe": asdict(self.recipe),
            "step": self.step,
            "best": self.best,
            "seconds": self.seconds,
            "mean": self.mean,
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`. Raises `StateError` when it belongs to another shape or recipe."""
        absent = self.state().keys() - state.keys()
        if absent:
            raise StateError(f"the saved run lacks {', '.join(sorted(absent))}; start again without --resume")
        for name, ours in (("shape", asdict(self.shape)), ("recipe", asdict(self.recipe))):
            if state[name] != ours:
                differing = {key: value for key, value in state[name].items() if value != ours.get(key)}
                raise StateError(f"the saved run has another {name}: {differing}; start again without --resume")
        self.step, self.best = state["step"], state["best"]
        self.seconds, self.mean = state["seconds"], state["mean"]
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])


def save(path: Path, value: object) -> None:
    """Writes through a file beside `path`, so that an interrupted write loses nothing."""
    beside = path.with_suffix(".part")
    torch.save(value, beside)
    os.replace(beside, path)


def load(path: Path) -> Any:
    """What `save` wrote. Raises `StateError` when it is missing or broken."""
    try:
        return torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise StateError(f"{path} does not exist; start without --resume") from None
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, KeyError) as error:
        raise StateError(f"{path} cannot be read ({error}); start again without --resume") from error


def train(
    out: Path, corpus: Corpus, shape: Shape, recipe: Recipe, *, resume: bool, say: Callable[[str], None]
) -> tuple[Net, float]:
    """Trains to the end. Returns the network with the best weights, and the seconds that all parts of the run took.

    Raises `StateError` when `resume` finds no state, or one of another run."""
    out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(shape, recipe, corpus)
    held_out = join(corpus.held_out)
    if resume:
        trainer.restore(load(out / STATE))
        say(f"resumed at step {trainer.step}")
    else:
        (out / LOG).unlink(missing_ok=True)
    before, first = trainer.seconds, trainer.step
    began = saved = time.monotonic()
    while not trainer.done:
        trainer.advance()
        trainer.seconds = before + time.monotonic() - began
        if trainer.step % EVALUATE_STEPS == 0 or trainer.done:
            loss = bits_per_byte(trainer.net, held_out, CONTEXT)
            line = {
                "step": trainer.step,
                "held_out": round(loss, 4),
                "train": [round(x, 4) for x in trainer.mean.tolist()],
            }
            with (out / LOG).open("a", encoding="utf-8") as log:
                log.write(json.dumps(line | {"seconds": round(trainer.seconds)}) + "\n")
            left = sum(_cost(recipe, i) for i in range(trainer.step, recipe.steps))
            left *= (trainer.seconds - before) / sum(_cost(recipe, i) for i in range(first, trainer.step))
            say(
                f"step {trainer.step}/{recipe.steps}: {trainer.mean[0].item() / math.log(2):.3f} bits per byte in "
                f"training, {loss:.3f} held out; about {left / 60:.0f} minutes left"
            )
            if loss < trainer.best:
                trainer.best = loss
                save(out / BEST, trainer.net.state_dict())
        if trainer.done or time.monotonic() - saved > SAVE_SECONDS:
            save(out / STATE, trainer.state())
            saved = time.monotonic()
    trainer.net.load_state_dict(load(out / BEST))
    return trainer.net, trainer.seconds


def _cost(recipe: Recipe, step: int) -> float:
    """Relative time of a step: tokens, and full layers' attention, which grows with the context."""
    phase = recipe.phase_at(step)
    return phase.rows * phase.context * (1 + phase.context / 8192)
