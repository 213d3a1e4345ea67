"""How far a run is, on stderr."""

from __future__ import annotations

import sys


class Progress:
    """A bar on stderr; a line at every tenth when stderr is no terminal."""

    def __init__(self, terminal: bool) -> None:
        self.terminal = terminal
        self.shown = -1

    def __call__(self, done: int, total: int, note: str) -> None:
        """Shows how far the run is."""
        percent = 100 * done // max(1, total)
        if percent == self.shown or (not self.terminal and percent // 10 == self.shown // 10):
            return
        self.shown = percent
        if self.terminal:
            bar = "#" * (percent * 40 // 100)
            end = "\n" if percent == 100 else ""
            print(f"\r[{bar:<40}] {percent:3} %  {note}\x1b[K", end=end, file=sys.stderr, flush=True)
        else:
            print(f"{percent:3} %  {note}", file=sys.stderr, flush=True)
