"""Weights in fp8 e4m3 with a float32 factor for each block of 128 x 128.

w[i, j] = fp8[i, j] * scale_inv[i // 128, j // 128], in float32; the last blocks of rows and columns may be smaller.
The same rule as DeepSeek-V3's checkpoints, whose name for the factors (`weight_scale_inv`) MiMo-V2 uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .names import BLOCK

if TYPE_CHECKING:
    from torch import Tensor


def dequantise(weight: Tensor, scale: Tensor, out: Tensor) -> None:
    """Writes the product into `out` [R, C], rounded once to its dtype.

    weight: [R, C] float8_e4m3fn; scale: [ceil(R / 128), ceil(C / 128)] float32, both on the device of `out`. Needs
    128 x C float32 of memory besides.
    """
    rows, columns = weight.shape
    for i, factors in enumerate(scale):
        part = slice(i * BLOCK, min(rows, (i + 1) * BLOCK))
        # A column's factor, the ragged last block cut to what is there.
        row = factors.repeat_interleave(BLOCK)[:columns]
        out[part].copy_(weight[part].to(row.dtype).mul_(row))
