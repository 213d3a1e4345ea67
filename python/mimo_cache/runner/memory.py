"""The device pools: torch tensors that hold what the cache's page ids name.

Two pools, as in the cache. A page of the full pool is a row of `full_k` and `full_v` in every full layer. A page of the
SWA pool is a row of `swa_k` and `swa_v` in every SWA layer and in every MTP head (heads stand behind the layers), and
of `hidden`, the trunk's hidden state after its last norm, from which MTP rows are rebuilt. Page 0 is the null page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mimo_cache.kernels import Kernels
from mimo_cache.models.config import ModelConfig


@dataclass(slots=True)
class Pools:
    """Tensors [layers, pages, page_size, KV heads, dim], and hidden [pages, page_size, hidden].

    `swa_index[l]` or `full_index[l]` is the row of trunk layer l; MTP head k is row `swa_layers + k`.
    """

    page_size: int
    full_k: Any
    full_v: Any
    swa_k: Any
    swa_v: Any
    hidden: Any
    swa_layers: int

    @classmethod
    def make(
        cls, config: ModelConfig, *, page_size: int, full_pages: int, swa_pages: int, dtype: Any, device: str
    ) -> Pools:
        """Zeroed pools with `full_pages` and `swa_pages` usable pages besides the null page."""
        full_layers = sum(kind == "full" for kind in config.layer_kinds)
        swa_layers = len(config.layer_kinds) - full_layers

        def pool(layers: int, pages: int, heads: int, dim: int) -> Any:
            return torch.zeros(layers, pages + 1, page_size, heads, dim, dtype=dtype, device=device)

        full, swa = config.full, config.swa
        return cls(
            page_size,
            pool(full_layers, full_pages, full.kv_heads, full.k_dim),
            pool(full_layers, full_pages, full.kv_heads, full.v_dim),
            pool(swa_layers + config.mtp_heads, swa_pages, swa.kv_heads, swa.k_dim),
            pool(swa_layers + config.mtp_heads, swa_pages, swa.kv_heads, swa.v_dim),
            torch.zeros(swa_pages + 1, page_size, config.hidden_size, dtype=dtype, device=device),
            swa_layers,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all pools, null pages included."""
        tensors = (self.full_k, self.full_v, self.swa_k, self.swa_v, self.hidden)
        return sum(int(t.numel()) * int(t.element_size()) for t in tensors)

    def copy(self, kernels: Kernels, copies: Sequence[tuple[str, int, int]]) -> None:
        """Runs the copies of a plan in order: (group, source page, destination page)."""
        for group, source, destination in copies:
            if group == "full":
                kernels.copy_pages((self.full_k, self.full_v), [(source, destination)])
            else:
                pools = (self.swa_k, self.swa_v, self.hidden.unsqueeze(0))
                kernels.copy_pages(pools, [(source, destination)])
