"""What the tiny model is: its shape and its training run, as plain frozen values. Needs no torch.

`Shape` is a MiMo-V2 geometry (one dense layer, then experts) small enough to train on two CPU cores; `Recipe` is how it
is trained. A training state on disk records both, and resuming under others is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

EOS = 256
"""Id that ends a document. Ids below are bytes; ids from here to `Shape.vocab` are specials."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the network. `pattern`: 0 for a full layer, 1 for an SWA layer. `window_keys`: keys that an SWA query
    sees, its own included. `rotated`: leading dims of q and k under RoPE, int(k_dim x 0.334)."""

    vocab: int = 320
    hidden: int = 96
    pattern: tuple[int, ...] = (0, 1, 1, 1, 0, 1, 1)
    heads: int = 4
    full_kv_heads: int = 1
    swa_kv_heads: int = 2
    k_dim: int = 24
    v_dim: int = 16
    rotary_factor: float = 0.334
    full_theta: float = 1e6
    swa_theta: float = 1e4
    value_scale: float = 0.707
    window_keys: int = 17
    dense: int = 192
    expert: int = 48
    experts: int = 8
    experts_per_token: int = 2
    mtp_heads: int = 3
    eps: float = 1e-5

    @property
    def rotated(self) -> int:
        """RoPE's dims: even, as rotate-half pairs them."""
        return int(self.k_dim * self.rotary_factor)


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of training steps at one context length: `rows` sequences of `context` bytes per step."""

    steps: int
    rows: int
    context: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the network is trained: phases in order, AdamW under one cosine, MTP heads weighted against the trunk."""

    phases: tuple[Phase, ...] = (
        Phase(3600, 16, 256),
        Phase(1000, 2, 2048),
        Phase(200, 1, 8192),
        Phase(800, 2, 2048),
        Phase(100, 1, 8192),
    )
    rate: float = 3e-3
    final_rate: float = 0.02
    warmup: int = 100
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    mtp_weight: float = 0.3
    balance: float = 1e-3
    seed: int = 1

    @property
    def steps(self) -> int:
        """Steps of all phases."""
        return sum(phase.steps for phase in self.phases)

    def scaled(self, steps: int) -> Recipe:
        """The same curriculum over `steps` steps."""
        phases = [replace(p, steps=p.steps * steps // self.steps) for p in self.phases]
        phases[0] = replace(phases[0], steps=phases[0].steps + steps - sum(p.steps for p in phases))
        return replace(self, phases=tuple(phases), warmup=max(1, min(self.warmup, steps // 10)))

    def phase_at(self, step: int) -> Phase:
        """The phase that `step` (from 0) belongs to; the last one for steps beyond the end."""
        for phase in self.phases:
            if step < phase.steps:
                return phase
            step -= phase.steps
        return self.phases[-1]
