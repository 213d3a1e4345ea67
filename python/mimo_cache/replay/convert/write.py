"""Writing traces: order, header, and a file that is there whole or not at all."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mimo_cache._core import TraceError

from . import source
from .base import Format, Options, Request
from .formats import FORMATS


@dataclass
class Report:
    """What a conversion did."""

    requests: int = 0
    blocks: int = 0
    """Distinct blocks."""
    skipped_lines: int = 0
    first_skipped: str = ""
    block_size: int = 0


def convert(kind: str, path: Path, out: Path | None, options: Options) -> Report:
    """Converts `path` (of the format `kind`) to a trace at `out`, or on stdout for `None`.

    A name that ends with `.gz` is compressed. Raises `TraceError` with the line, or with `options.skip_bad` counts
    such lines and goes on. `out` is replaced when everything is written, and untouched otherwise.
    """
    format_ = FORMATS[kind](options)
    report = Report(block_size=format_.block_size)
    found = _ordered(_requests(format_, path, options, report), options, report)
    header = {"block_size": format_.block_size, "name": path.name.split(".")[0], "source": f"converted from {kind}"}
    if out is None:
        sys.stdout.write(json.dumps(header) + "\n")
        for request in found:
            _count(report, format_)
            sys.stdout.write(_line(request))
        return report
    body, whole = out.with_name(out.name + ".body"), out.with_name(out.name + ".part")
    try:
        with _create(body, out) as file:
            for request in found:
                _count(report, format_)
                file.write(_line(request).encode())
        if not report.requests:
            raise source.bad(1, f"{path.name} has no request")
        # The header comes first and its count last; gzip files may be joined.
        with _create(whole, out) as file:
            file.write((json.dumps({**header, "requests": report.requests}) + "\n").encode())
        with whole.open("ab") as to, body.open("rb") as rest:
            shutil.copyfileobj(rest, to)
        whole.replace(out)
    finally:
        for part in (body, whole):
            part.unlink(missing_ok=True)
    return report


def _count(report: Report, format_: Format) -> None:
    report.requests += 1
    report.blocks = format_.distinct()


def _create(path: Path, out: Path) -> IO[bytes] | _Gzip:
    if out.name.endswith(".gz"):
        # No name and no time inside, so that the same input gives the same bytes.
        return _Gzip(path.open("wb"))
    return path.open("wb")


class _Gzip(gzip.GzipFile):
    """A gzip file that owns what it writes to."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(filename="", mode="wb", fileobj=file, mtime=0)
        self._file = file

    def close(self) -> None:
        super().close()
        self._file.close()


def _line(r: Request) -> str:
    return (
        json.dumps({"t": r.t_ms, "s": r.session, "i": r.prompt, "o": r.output, "h": r.runs}, separators=(",", ":"))
        + "\n"
    )


def _skip(error: TraceError, options: Options, report: Report) -> None:
    """Counts a bad line, or raises it."""
    if not options.skip_bad:
        raise error
    report.skipped_lines += 1
    report.first_skipped = report.first_skipped or str(error)


def _requests(format_: Format, path: Path, options: Options, report: Report) -> Iterator[tuple[int, Request]]:
    number = 0
    for number, value in format_.records(path):
        try:
            if isinstance(value, TraceError):
                raise value
            for request in format_.take(number, value):
                yield number, request
        except TraceError as error:
            _skip(error, options, report)
    for request in format_.end():
        yield number, request


def _ordered(found: Iterable[tuple[int, Request]], options: Options, report: Report) -> Iterator[Request]:
    """In order of arrival: as they come, or with `options.sort` all held and sorted."""
    if options.sort:
        yield from sorted((request for _, request in found), key=lambda r: r.t_ms)
        return
    last = 0
    for number, request in found:
        if request.t_ms < last:
            allowed = f"at least {last} (or sort: --sort)"
            error = source.bad(number, f"the request arrives at {request.t_ms} ms, allowed is {allowed}")
            _skip(error, options, report)
            continue
        last = request.t_ms
        yield request


def as_json(report: Report) -> dict[str, Any]:
    """The report for `--json`."""
    return {
        "requests": report.requests,
        "distinct_blocks": report.blocks,
        "block_size": report.block_size,
        "skipped_lines": report.skipped_lines,
    }


__all__ = ["Report", "Request", "as_json", "convert"]
