"""Reads and checks the header of one safetensors file, which is taken to be hostile.

A file is 8 bytes of header length (little endian), the header (JSON: name to dtype, shape and the first and one past
the last byte of its data), and the data. https://github.com/huggingface/safetensors#format. Before anything trusts a
file: the header lies inside it and is not longer than `MAX_HEADER`, names are unique, dtypes known, bytes fit shape
and dtype, and the tensors cover the data without overlap or hole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from .errors import CheckpointError, shown
from .files import opened

MAX_HEADER = 32 << 20
"""Longest header in bytes: the 160,000 tensors of V2.5-Pro in one file take 22 MB."""
MAX_DIMS = 8
BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2": 1,
    "F8_E5M2FNUZ": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}
"""Bytes of an element of each known dtype."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor in a file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    """First byte in the file's data."""
    size: int
    """Bytes."""

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def read_header(file: Path) -> dict[str, Entry]:
    """The tensors of `file`. Raises `FileError` and `CheckpointError`."""
    with opened(file) as (source, size):
        length = int.from_bytes(source.read(8), "little")
        room = min(size - 8, MAX_HEADER)
        if length > room:
            allowed = f"at most {room}" if room >= 0 else "none"
            raise CheckpointError(
                f"{file}: the header's length is {length}, allowed is {allowed} in a file of {size} bytes"
            )
        data = source.read(length)
    header = parse(data, f"{file}: the header")
    return _entries(file, header, size - 8 - length)


def parse(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object whose objects have unique names; `what` starts the message of a `CheckpointError`."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what} is not a JSON object with unique names ({str(error)[:100]})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{what} is a JSON {type(value).__name__}, allowed is an object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        name = next(n for n, _ in pairs if n in seen or seen.add(n))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {shown(name)} is there twice")
    return out


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _entries(file: Path, header: dict[str, Any], data_size: int) -> dict[str, Entry]:
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{file}: __metadata__ is {shown(metadata)}, allowed is an object of strings")
    out = {name: _entry(file, name, said) for name, said in header.items()}
    end = 0
    for name, entry in sorted(out.items(), key=lambda item: (item[1].start, item[1].size)):
        if entry.start != end:
            wrong = "overlaps the tensor before it" if entry.start < end else "leaves a hole before it"
            raise CheckpointError(f"{file}: {shown(name)} starts at byte {entry.start}, which {wrong} (ends at {end})")
        end += entry.size
        if end > data_size:
            raise CheckpointError(f"{file}: {shown(name)} ends at byte {end}, allowed is at most {data_size}")
    if end != data_size:
        raise CheckpointError(f"{file}: its tensors end at byte {end} of {data_size} bytes of data, allowed is the end")
    return out


def _entry(file: Path, name: str, said: Any) -> Entry:
    def wrong(what: str, value: object, allowed: str) -> CheckpointError:
        return CheckpointError(f"{file}: {what} of {shown(name)} is {shown(value)}, allowed is {allowed}")

    if not isinstance(said, dict) or set(said) != {"dtype", "shape", "data_offsets"}:
        raise wrong("the description", said, "an object of dtype, shape and data_offsets")
    dtype, shape, offsets = said["dtype"], said["shape"], said["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise wrong("dtype", dtype, ", ".join(BYTES))
    if not _naturals(shape) or len(shape) > MAX_DIMS:
        raise wrong("shape", shape, f"at most {MAX_DIMS} whole numbers from 0 to 2^63")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong("data_offsets", offsets, "a first byte and one not before it")
    size = offsets[1] - offsets[0]
    if prod(shape) * BYTES[dtype] != size:
        raise CheckpointError(
            f"{file}: {shown(name)} has {size} bytes, allowed is what {dtype} {list(shape)} takes, "
            f"{prod(shape) * BYTES[dtype]}"
        )
    return Entry(file, dtype, tuple(shape), offsets[0], size)


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)
