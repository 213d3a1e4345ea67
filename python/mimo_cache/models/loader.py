"""Fills `ModelWeights` from a checkpoint, one tensor at a time.

Everything is checked against the table before memory is taken, so that no file can ask for more than its own bytes
say. Then memory is taken once, experts in stacked tensors, and each stored tensor is written straight to its place:
besides the weights only one stored tensor and one fp8 slab are in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .checkpoint import MAX_LISTED, Checkpoint
from .config import AttentionShape, ModelConfig
from .errors import CheckpointError, bad, shown
from .fp8 import dequantise
from .names import Step, TensorSpec, parameters
from .qkv import split
from .weights import AttentionWeights, DenseWeights, LayerWeights, ModelWeights, MoeWeights, MtpWeights

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CHECKED = 4096
"""Rows whose finiteness is checked at once, which takes a byte per element."""
Empty: TypeAlias = Callable[..., Tensor]


def load_weights(
    path: str | os.PathLike[str],
    config: ModelConfig,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> ModelWeights:
    """The weights of `config` in directory `path`; see `mimo_cache.models.load` for arguments and errors."""
    place = _device(device)
    kind = _dtype(dtype, config, place)
    with Checkpoint(path) as checkpoint:
        specs = checkpoint.check(config)
        weights = _allocate(checkpoint, config, kind, place)
        sizes = [_stored_bytes(checkpoint, spec) for spec in specs]
        total, done = sum(sizes), 0
        not_finite: list[str] = []
        for spec, size in zip(specs, sizes, strict=True):
            target = reduce(_step, spec.place, weights)
            _fill(checkpoint, spec, target, place)
            if not all(_finite(t) for t in _tensors(target, spec)):
                not_finite.append(spec.name)
            done += size
            if progress is not None:
                progress(done, total)
    if not_finite:
        named = ", ".join(not_finite[:MAX_LISTED])
        more = len(not_finite) - MAX_LISTED
        raise CheckpointError(
            f"{checkpoint.path}: values that are not finite in {kind} in {len(not_finite)} tensors: {named}"
            f"{f', and {more} more' if more > 0 else ''}"
        )
    return weights


def empty_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    """Uninitialised weights of `config`."""

    def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=kind, device=device)

    hidden = config.hidden_size

    def ffn(moe: bool) -> DenseWeights | MoeWeights:
        count, size = config.num_experts, config.expert_size
        if not moe:
            return _dense(config, empty)
        return MoeWeights(
            router=empty(count, hidden, kind=torch.float32),
            bias=empty(count, kind=torch.float32),
            gate_up=empty(count, 2 * size, hidden),
            down=empty(count, hidden, size),
        )

    return ModelWeights(
        embed=empty(config.vocab_size, hidden),
        layers=[
            LayerWeights(
                input_norm=empty(hidden),
                attention=_attention(config.shape(kind), hidden, empty),
                post_norm=empty(hidden),
                ffn=ffn(moe),
            )
            for kind, moe in zip(config.layer_kinds, config.moe_layers, strict=True)
        ],
        norm=empty(hidden),
        lm_head=empty(config.vocab_size, hidden),
        mtp=[
            MtpWeights(
                enorm=empty(hidden),
                hnorm=empty(hidden),
                eh_proj=empty(hidden, 2 * hidden),
                input_norm=empty(hidden),
                attention=_attention(config.swa, hidden, empty),
                pre_mlp_norm=empty(hidden),
                ffn=_dense(config, empty),
                final_norm=empty(hidden),
            )
            for _ in range(config.mtp_heads)
        ],
    )


def _attention(shape: AttentionShape, hidden: int, empty: Empty) -> AttentionWeights:
    return AttentionWeights(
        q=empty(shape.heads * shape.k_dim, hidden),
        k=empty(shape.kv_heads * shape.k_dim, hidden),
        v=empty(shape.kv_heads * shape.v_dim, hidden),
        o=empty(hidden, shape.heads * shape.v_dim),
        sink=empty(shape.heads) if shape.sink else None,
    )


def _dense(config: ModelConfig, empty: Empty) -> DenseWeights:
    return DenseWeights(
        gate_up=empty(2 * config.dense_size, config.hidden_size), down=empty(config.hidden_size, config.dense_size)
    )


def _device(device: str | torch.device) -> torch.device:
    try:
        place = torch.device(device)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ImportError) as error:
        said = " ".join(str(error).split())[:100]
        raise bad("device", shown(str(device)), f"one that torch has on this machine ({said})") from error
    if place.type == "meta":
        raise bad("device", '"meta"', "one that holds values")
    return place


def _dtype(dtype: str | torch.dtype | None, config: ModelConfig, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.float32 if device.type == "cpu" else DTYPES[config.dtype]
    if isinstance(dtype, str):
        dtype = DTYPES.get(dtype, dtype)
    if dtype not in DTYPES.values():
        raise bad("dtype", shown(str(dtype)), f"{', '.join(DTYPES)}, or None")
    return dtype


def _allocate(checkpoint: Checkpoint, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> ModelWeights:
    needed = sum(parameters(config)) * dtype.itemsize
    what = f"{checkpoint.path}: the weights take {needed / 1e9:.3g} GB in {dtype}"
    if device.type == "cpu":
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > memory:
            raise CheckpointError(f"{what}, this machine has {memory / 1e9:.3g} GB of memory")
    try:
        return empty_weights(config, dtype, device)
    except RuntimeError as error:
        said = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{what}, which {device} does not give ({said})") from error


def _step(at: Any, step: Step) -> Any:
    return getattr(at, step) if isinstance(step, str) else at[step]


def _stored_bytes(checkpoint: Checkpoint, spec: TensorSpec) -> int:
    scale = checkpoint.tensors.get(spec.scale_name) if spec.storage != "plain" else None
    return checkpoint.tensors[spec.name].size + (scale.size if scale else 0)


def _fill(checkpoint: Checkpoint, spec: TensorSpec, target: Any, device: torch.device) -> None:
    """Reads one tensor of the table into its place."""
    stored = checkpoint.read(spec.name)
    scale: Tensor | None = None
    if stored.dtype == torch.float8_e4m3fn:
        stored = stored.to(device)
        scale = checkpoint.read(spec.scale_name).to(device, torch.float32)
    if spec.storage == "qkv":
        split(stored, scale, spec.slabs, target)
    elif scale is not None:
        dequantise(stored, scale, target)
    else:
        target.copy_(stored)


def _tensors(target: Any, spec: TensorSpec) -> Iterable[Tensor]:
    return (target.q, target.k, target.v) if spec.storage == "qkv" else (target,)


def _finite(tensor: Tensor) -> bool:
    return all(bool(torch.isfinite(part).all()) for part in tensor.split(CHECKED))
