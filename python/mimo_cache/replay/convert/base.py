"""What all formats have in common: options, requests, blocks, sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mimo_cache._core import BlockIds, InvalidArgument, TraceError

from . import source
from .source import bad, parsed


@dataclass(frozen=True)
class Options:
    """How to convert."""

    block_size: int | None = None
    """Tokens per block of the trace; `None` for the format's own."""
    skip_bad: bool = False
    sort: bool = False
    """Hold all requests and sort them by time."""
    seed: int = 0
    spread: float = 3600.0
    """kv-cache-tester: seconds over which the starts of sessions are spread."""
    share_tools: bool = False
    """kv-cache-tester: sessions with equally many tool tokens share the blocks of their tools."""
    gap: float = 1.0
    """Event logs: seconds without a block after which a request is over."""
    max_blocks: int = 1 << 26
    """Most distinct blocks."""


@dataclass(frozen=True)
class Request:
    """One request of a trace."""

    t_ms: int
    session: int
    prompt: int
    output: int
    runs: Sequence[Sequence[int]]
    """Ids of the full blocks: [first, count]."""


class Format:
    """A format of traces: `records` reads a file, `take` turns a record into requests, `end` gives what was held."""

    name: ClassVar[str]
    own_block: ClassVar[int]
    """Tokens per block of the source, or of the trace where the source has none."""
    splits: ClassVar[bool] = False
    """Any block size will do, since tokens are known."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.block_size = self.default_block() if options.block_size is None else options.block_size
        if not 1 <= self.block_size <= 1 << 20 or (not self.splits and self.block_size % self.own_block):
            allowed = "1 to 1048576" if self.splits else f"a multiple of {self.own_block}, the blocks of {self.name}"
            raise InvalidArgument(f"block size is {self.block_size}, allowed is {allowed}")
        self.ids = BlockIds(options.max_blocks)
        self._small = BlockIds(options.max_blocks)

    def default_block(self) -> int:
        """Tokens per block when none are asked for."""
        return self.own_block

    def records(self, path: Path) -> Iterator[tuple[int, Any]]:
        """Records with their line numbers; a `TraceError` in place of one that cannot be read."""
        for number, line in source.lines(path):
            if isinstance(line, TraceError):
                yield number, line
                continue
            try:
                yield number, parsed(number, line)
            except TraceError as error:
                yield number, error

    def take(self, number: int, value: Any) -> Iterable[Request]:
        """The requests of a record."""
        raise NotImplementedError

    def end(self) -> Iterable[Request]:
        """Requests that were held back until the end."""
        return ()

    def distinct(self) -> int:
        """Distinct blocks so far."""
        return len(self.ids)

    def runs_of(self, number: int, blocks: Sequence[int], prompt: int) -> list[list[int]]:
        """Runs of ids of a prompt whose source blocks have these hashes; several make a block where that is larger."""
        many = self.block_size // self.own_block
        full = prompt // self.block_size
        if len(blocks) < full * many:
            message = f"{prompt} tokens have {full * many} full blocks of {self.own_block}, and {len(blocks)} are named"
            raise bad(number, f"{message}; allowed is one hash a block")
        used = blocks[: full * many]
        if many > 1:
            # The id of the last of a block's parts stands for all before it.
            parts = [id_ for first, count in self._small.of_hashes(used) for id_ in range(first, first + count)]
            used = parts[many - 1 :: many]
        return self.ids.of_hashes(used)


class Sessions:
    """Names of conversations to numbers, for the newest million names."""

    MOST: ClassVar[int] = 1 << 20

    def __init__(self) -> None:
        self._known: dict[object, int] = {}
        self._next = 0

    def of(self, name: object, parent: object = None) -> int:
        """The number of `name`: its own, that of its parent, or a new one."""
        number = self._known.pop(name, None)
        if number is None and parent is not None:
            number = self._known.get(parent)
        if number is None:
            number = self._next
            self._next += 1
        self._known[name] = number
        if len(self._known) > self.MOST:
            del self._known[next(iter(self._known))]
        return number
