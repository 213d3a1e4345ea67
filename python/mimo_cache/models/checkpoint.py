"""A checkpoint directory: which tensors it has, opened lazily.

Opening reads headers and the index, nothing else; `read` reads one tensor. Files are taken to be hostile (`header.py`).
The layout is the hub's: `model.safetensors`, or `model.safetensors.index.json` whose `weight_map` names the shard of
each tensor. Shards stay inside the directory by name; symbolic links are followed, because the hub's own cache is made
of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from mimo_cache import FileError

from .config import ModelConfig
from .errors import CheckpointError, need, shown
from .files import read_limited
from .header import Entry, parse, read_header
from .names import TensorSpec, ignored, tensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_INDEX = 64 << 20
"""Longest index in bytes; that of V2.5-Pro has about 20 MB."""
MAX_SHARDS = 4096
MAX_LISTED = 20
"""Tensors of each kind that an error names."""
PLAIN = ("F32", "BF16", "F16")
FP8 = "F8_E4M3"
OPEN_FILES = 4
"""Files held open: a weight and its factors may lie in two."""


class Checkpoint:
    """The tensors of a directory by name. Close it, or use it in a `with` statement."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Reads headers and index. Raises `FileError` and `CheckpointError`."""
        self.path = Path(path)
        self._handles: dict[Path, Any] = {}
        single, index = self.path / SINGLE, self.path / INDEX
        if os.path.exists(single):
            self.tensors = read_header(single)
        elif os.path.exists(index):
            self.tensors = _sharded(self.path, index)
        elif os.path.isdir(self.path):
            raise CheckpointError(f"{self.path}: no weights, allowed is a directory with {SINGLE} or {INDEX}")
        else:
            raise FileError(f"{self.path}: no such directory")

    def read(self, name: str) -> Any:
        """The tensor `name`, in the memory of the CPU, with the dtype it is stored in."""
        entry = self.tensors[name]
        try:
            tensor = self._handle(entry.file).get_tensor(name)
        except Exception as error:  # the library's own error type has no stable name
            raise CheckpointError(f"{entry.file}: {shown(name)} cannot be read ({error})") from error
        if tuple(tensor.shape) != entry.shape:
            raise CheckpointError(f"{entry.file}: {shown(name)} changed while it was read")
        return tensor

    def _handle(self, file: Path) -> Any:
        handle = self._handles.pop(file, None)
        if handle is None:
            while len(self._handles) >= OPEN_FILES:
                self._drop(next(iter(self._handles)))
            handle = need("safetensors").safe_open(os.fspath(file), framework="pt", device="cpu")
            handle.__enter__()
        self._handles[file] = handle  # the newest is last
        return handle

    def _drop(self, file: Path) -> None:
        self._handles.pop(file).__exit__(None, None, None)

    def close(self) -> None:
        """Closes every file."""
        for file in list(self._handles):
            self._drop(file)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self, config: ModelConfig) -> list[TensorSpec]:
        """The table of `config` in the order in which the files hold it.

        Raises one `CheckpointError` that names every missing, unexpected and misshapen tensor, at most `MAX_LISTED` of
        each with their number. No tensor is read.
        """
        missing, unexpected, misshapen = _Listing("missing"), _Listing("unexpected"), _Listing("misshapen")
        expected: set[str] = set()
        found: list[TensorSpec] = []

        def look(name: str, shape: tuple[int, ...], dtypes: Iterable[str]) -> Entry | None:
            entry = self.tensors.get(name)
            if entry is None:
                missing.add(lambda: name)
                return None
            expected.add(name)
            if entry.shape != shape or entry.dtype not in dtypes:
                allowed = f"{' or '.join(dtypes)} {list(shape)}"
                misshapen.add(lambda: f"{name} is {entry}, allowed is {allowed}")
            return entry

        for spec in tensors(config):
            entry = look(spec.name, spec.shape, PLAIN if spec.storage == "plain" else (*PLAIN, FP8))
            if entry is None:
                continue
            found.append(spec)
            if entry.dtype == FP8 and spec.storage != "plain":
                look(spec.scale_name, spec.scale_shape, PLAIN)
        for name in self.tensors:
            if name not in expected and not ignored(name, config):
                unexpected.add(lambda name=name: shown(name).strip('"'))  # type: ignore[misc]
        lists = [str(x) for x in (missing, unexpected, misshapen) if x.count]
        if lists:
            raise CheckpointError(f"{self.path}: the weights are not those of the config: {'; '.join(lists)}")
        return sorted(found, key=lambda spec: (self.tensors[spec.name].file, self.tensors[spec.name].start))


class _Listing:
    """Tensors of one kind of error."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.count = 0
        self.first: list[str] = []

    def add(self, text: Callable[[], str]) -> None:
        self.count += 1
        if len(self.first) < MAX_LISTED:
            self.first.append(text())

    def __str__(self) -> str:
        more = self.count - len(self.first)
        return f"{self.count} {self.word} ({', '.join(self.first)}{f', and {more} more' if more else ''})"


def _sharded(path: Path, index: Path) -> dict[str, Entry]:
    """The tensors that `index` names, each from its shard."""
    data = read_limited(index, MAX_INDEX)
    if data is None:
        raise CheckpointError(f"{index}: it is too long, allowed are {MAX_INDEX} bytes")
    weight_map = parse(data, f"{index}").get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(f, str) for f in weight_map.values()):
        raise CheckpointError(f"{index}: weight_map is {shown(weight_map)}, allowed is an object of file names")
    shards = sorted(set(weight_map.values()))
    if len(shards) > MAX_SHARDS:
        raise CheckpointError(f"{index}: it names {len(shards)} files, allowed is at most {MAX_SHARDS}")
    out: dict[str, Entry] = {}
    unlisted, absent = _Listing("in a file and not in the index"), _Listing("in the index and not in its file")
    for shard in shards:
        entries = read_header(path / _confined(index, shard))
        for name, entry in entries.items():
            if weight_map.get(name) == shard:
                out[name] = entry
            else:
                unlisted.add(lambda name=name, shard=shard: f"{shown(name)} in {shard}")  # type: ignore[misc]
    for name, shard in weight_map.items():
        if name not in out:
            absent.add(lambda name=name, shard=shard: f"{shown(name)} of {shard}")  # type: ignore[misc]
    lists = [str(x) for x in (unlisted, absent) if x.count]
    if lists:
        raise CheckpointError(f"{index}: tensors that index and files do not agree on: {'; '.join(lists)}")
    return out


def _confined(index: Path, shard: str) -> str:
    """`shard`, if it cannot leave the directory by name."""
    pure = PurePosixPath(shard)
    plain = shard.isprintable() and "\\" not in shard and ":" not in shard
    if not plain or pure.is_absolute() or ".." in pure.parts or pure.suffix != ".safetensors":
        raise CheckpointError(
            f"{index}: {shown(shard)} names a shard, allowed is a .safetensors file inside the directory"
        )
    return shard
