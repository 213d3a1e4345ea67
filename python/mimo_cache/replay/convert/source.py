"""Reading what others wrote: lines of JSON, plain or gzip, within bounds, every error with its line number."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from mimo_cache._core import TraceError

MAX_LINE = 64 << 20
"""Longest line, in bytes: a prompt of 2^20 tokens as JSON has about a tenth."""

MAX_INT = (1 << 63) - 1
MAX_PROMPT = (1 << 31) - 1
"""Longest prompt, in tokens."""


def bad(line: int, message: str) -> TraceError:
    """An error at a line, in the core's words."""
    error = TraceError(f"trace line {line}: {message}")
    error.line = line
    return error


def shown(value: object) -> str:
    """A value for an error, cut."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked when its first two say gzip."""
    with path.open("rb") as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            yield file
            return
        with gzip.open(file) as unpacked:
            yield cast(BinaryIO, unpacked)


def lines(path: Path) -> Iterator[tuple[int, bytes | TraceError]]:
    """Lines with their numbers; a line that cannot be read comes as the error it is, and reading goes on if it can."""
    with opened(path) as file:
        number = 0
        while True:
            number += 1
            try:
                line = file.readline(MAX_LINE + 1)
                if len(line) > MAX_LINE:
                    yield number, bad(number, f"the line is longer than {MAX_LINE} bytes, the most that is allowed")
                    while line and not line.endswith(b"\n"):
                        line = file.readline(1 << 20)
                    continue
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                yield number, bad(number, f"the compressed data is damaged or cut short ({error})")
                return
            if not line:
                return
            if line.strip():
                yield number, line


def parsed(number: int, line: bytes) -> Any:
    """The JSON value of a line."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        what = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise bad(number, f"not JSON ({what[:120]})") from None


def record(number: int, value: Any) -> Mapping[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise bad(number, f"found {shown(value)}, allowed is one JSON object")
    return value


def whole(number: int, source: Mapping[str, Any], key: str, most: int = MAX_INT, default: int | None = None) -> int:
    """A whole number from 0 to `most`."""
    value = source.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise bad(number, f"{key} is {shown(value)}, allowed is a whole number from 0 to {most}")
    return value


def milliseconds(number: int, source: Mapping[str, Any], key: str, unit: int, default: float | None = None) -> int:
    """A time of `unit` milliseconds, rounded to whole milliseconds."""
    value = source.get(key, default)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value * unit < 1 << 62:
        return round(value * unit)
    raise bad(number, f"{key} is {shown(value)}, allowed is a number that is not negative")


def hashes(number: int, source: Mapping[str, Any], key: str) -> list[int]:
    """A list of block hashes of at most 64 bits."""
    value = source.get(key)
    if not isinstance(value, list):
        raise bad(number, f"{key} is {shown(value)}, allowed is a list of whole numbers")
    for item in value:
        if not isinstance(item, int) or isinstance(item, bool) or not -(1 << 63) <= item < 1 << 64:
            raise bad(number, f"{key} has {shown(item)}, allowed are whole numbers of at most 64 bits")
    return value
