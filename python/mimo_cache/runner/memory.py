"""The device pools: torch tensors that hold what the cache's page ids name.

Two pools, as in the cache. A page of the full pool is a row of `full_k` and `full_v` in every full layer. A page of the
SWA pool is a row of `swa_k` and `swa_v` in every SWA layer and in every MTP head (heads stand behind the layers), and
of `hidden`, the trunk's hidden state after its last norm, from which MTP rows are rebuilt. Page 0 is the null page.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mimo_cache.kernels import Kernels
from mimo_cache.models.config import ModelConfig
from mimo_cache.tiers import DeviceLayout, device_layout

from .errors import RequestError


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
        """Zeroed pools with `full_pages` and `swa_pages` usable pages besides the null page.

        Raises `RequestError` for more bytes than the machine's memory or the device has.
        """
        full_layers = sum(kind == "full" for kind in config.layer_kinds)
        swa_layers = len(config.layer_kinds) - full_layers

        full, swa, rows = config.full, config.swa, swa_layers + config.mtp_heads
        shapes = (
            (full_layers, full_pages + 1, page_size, full.kv_heads, full.k_dim),
            (full_layers, full_pages + 1, page_size, full.kv_heads, full.v_dim),
            (rows, swa_pages + 1, page_size, swa.kv_heads, swa.k_dim),
            (rows, swa_pages + 1, page_size, swa.kv_heads, swa.v_dim),
            (swa_pages + 1, page_size, config.hidden_size),
        )
        needed = sum(math.prod(shape) for shape in shapes) * dtype.itemsize
        what = f"pools of {full_pages} full and {swa_pages} SWA pages take {needed / 1e9:.3g} GB"
        if torch.device(device).type == "cpu":
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            if needed > memory:
                raise RequestError(f"{what}, this machine has {memory / 1e9:.3g} GB of memory")
        try:
            full_k, full_v, swa_k, swa_v, hidden = (torch.zeros(s, dtype=dtype, device=device) for s in shapes)
        except RuntimeError as error:
            said = " ".join(str(error).split())[:200]
            raise RequestError(f"{what}, which {device} does not give ({said})") from error
        return cls(page_size, full_k, full_v, swa_k, swa_v, hidden, swa_layers)

    def layout(self, kinds: Sequence[str]) -> DeviceLayout:
        """Where a page's bytes lie, layer by layer, for copies to and from host memory. kinds: "full" or "swa" of each
        trunk layer; MTP heads and hidden states come after the last one. CPU tensors only."""
        full, swa = [], []
        rows = {"full": 0, "swa": 0}
        for layer, kind in enumerate(kinds):
            row = rows[kind]
            rows[kind] += 1
            if kind == "full":
                full += [(self.full_k[row], layer), (self.full_v[row], layer)]
            else:
                swa += [(self.swa_k[row], layer), (self.swa_v[row], layer)]
        for row in range(self.swa_layers, len(self.swa_k)):
            swa += [(self.swa_k[row], len(kinds)), (self.swa_v[row], len(kinds))]
        if self.swa_k.shape[1] > 1:
            swa.append((self.hidden, len(kinds)))
        return device_layout(full=full, swa=swa if self.swa_k.shape[1] > 1 else [])

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
