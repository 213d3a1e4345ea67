"""A progress bar for commands that load a model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

WIDTH = 30


def bar(stream: TextIO | None = None) -> Callable[[int, int], None] | None:
    """What `load` takes as `progress`: one line on `stream` (stderr) that is drawn anew at each percent.

    None where the stream is no terminal, so that logs and pipes stay clean.
    """
    out = sys.stderr if stream is None else stream
    if out is None or not out.isatty():
        return None
    drawn = -1

    def draw(done: int, total: int) -> None:
        nonlocal drawn
        percent = 100 * done // total if total else 100
        if percent == drawn:
            return
        drawn = percent
        filled = "#" * (WIDTH * percent // 100)
        end = "\n" if done >= total else ""
        out.write(f"\rloading weights [{filled:<{WIDTH}}] {percent:3} % of {total / 1e9:.2f} GB{end}")
        out.flush()

    return draw
