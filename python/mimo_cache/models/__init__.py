"""MiMo-V2 models from hub checkpoints: configuration, table of tensors, and weights.

`load` reads a directory as it comes from the hub; `ModelConfig.from_path` reads its configuration alone and needs no
torch. `docs/models.md` says which spellings and formats are read, and what is refused.

`config.py` is what a model is, `spelling.py` reads it from `config.json`; `names.py` says which tensors a model has,
`checkpoint.py` opens safetensors files, `fp8.py` and `qkv.py` undo their storage formats, `loader.py` fills
`weights.py`, the containers that kernels read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from .config import AttentionShape, ModelConfig
from .errors import CheckpointError, MissingExtraError, need
from .weights import AttentionWeights, DenseWeights, LayerWeights, ModelWeights, MoeWeights, MtpWeights

if TYPE_CHECKING:
    import torch

__all__ = [
    "AttentionShape",
    "AttentionWeights",
    "CheckpointError",
    "DenseWeights",
    "LayerWeights",
    "MissingExtraError",
    "ModelConfig",
    "ModelWeights",
    "MoeWeights",
    "MtpWeights",
    "load",
]


def load(
    path: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    mtp: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[ModelConfig, ModelWeights]:
    """Reads the configuration and the weights of the checkpoint in directory `path`.

    dtype is that of the weights in memory ("float32", "bfloat16", "float16" or torch's own): None for float32 on the
    CPU and the config's dtype on other devices. Without `mtp` the MTP heads are neither read nor part of the config
    (`mtp_heads` 0). `progress` is called with bytes read and bytes to read.

    Raises `ConfigError` for a config that is wrong or not supported, `CheckpointError` for files that are broken, that
    lack tensors or have others, or with weights that are not finite, `FileError` for files that cannot be read, and
    `MissingExtraError` without torch and safetensors.
    """
    need("torch")
    need("safetensors.torch")
    from .loader import load_weights  # noqa: PLC0415  needs torch

    config = ModelConfig.from_path(path, mtp_heads=None if mtp else 0)
    return config, load_weights(path, config, dtype=dtype, device=device, progress=progress)
