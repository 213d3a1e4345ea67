"""One fused `qkv_proj` taken apart.

Its rows are slabs, one for each KV head of the *full* layers (in SWA layers and MTP heads too): slab r holds the rows
of its share of the query heads, then of the KV heads of keys, then of values: [q_r | k_r | v_r]. Heads are in order
over the slabs. In fp8 each slab has its own ceil(rows / 128) rows of factors, so its blocks start anew and a block
may reach from one part into the next. Reading the matrix as [Q | K | V] gives another model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .fp8 import dequantise

if TYPE_CHECKING:
    from torch import Tensor

    from .weights import AttentionWeights


def split(fused: Tensor, scale: Tensor | None, slabs: int, into: AttentionWeights) -> None:
    """Fills `into.q`, `.k` and `.v` from `fused` [rows, hidden]; `scale` are its fp8 factors, if it has them.

    Needs one slab in float32 of memory besides when there are factors.
    """
    height, hidden = fused.shape[0] // slabs, fused.shape[1]
    parts = [target.view(slabs, -1, hidden) for target in (into.q, into.k, into.v)]
    heights = [part.shape[1] for part in parts]
    buffer = None if scale is None else scale.new_empty((height, hidden))
    for r in range(slabs):
        slab = fused[r * height : (r + 1) * height]
        if scale is not None and buffer is not None:
            blocks = scale.shape[0] // slabs
            dequantise(slab, scale[r * blocks : (r + 1) * blocks], buffer)
            slab = buffer
        for part, rows in zip(parts, slab.split(heights), strict=True):
            part[r].copy_(rows)
