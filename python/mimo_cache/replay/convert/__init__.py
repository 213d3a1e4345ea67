"""Traces of other formats to the one that replay reads: `mimo-cache trace convert`.

A format reads lines and gives `Request`s; `source` reads files within bounds, `write` writes traces. Which fields each
format reads is in docs/replay.md.
"""

from .base import Options, Request
from .formats import FORMATS
from .write import Report, convert

__all__ = ["FORMATS", "Options", "Report", "Request", "convert"]
