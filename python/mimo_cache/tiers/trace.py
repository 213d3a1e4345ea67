"""Spans of the moves between tiers, for whoever asks for them. Needs no package, and costs nothing when nobody does.

A tracer is an object with `start_span(name, attributes=...)`, whose spans have `set_attributes(dict)` and `end()`, as
those of `opentelemetry.trace` have: `LLM(tracer=opentelemetry.trace.get_tracer("..."))`. A span's parent is what is
current in the thread that begins it: that of the request for a prefetch, which begins where the request is queued.
Times are the tracer's own. A tracer that raises loses its span and disturbs nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from mimo_cache._core import InvalidArgument

__all__ = ["Span", "Spans", "tracer_of"]

NAME = "mimo_cache"


def tracer_of(tracer: Any) -> Any:
    """What a caller has given: None, a tracer, or True for that of `opentelemetry.trace`.

    Raises `InvalidArgument` for anything else, and for True where that package is not installed.
    """
    if tracer is None or tracer is False:
        return None
    if tracer is True:
        try:
            from opentelemetry import trace  # noqa: PLC0415  optional
        except ImportError as error:
            raise InvalidArgument("tracer is True without opentelemetry-api, allowed is an installed one") from error
        return trace.get_tracer(NAME)
    if not callable(getattr(tracer, "start_span", None)):
        said = f"tracer is of type {type(tracer).__name__}"
        raise InvalidArgument(f"{said}, allowed is None, True, or an object with start_span")
    return tracer


class Span:
    """One move. Ended once; what comes later is ignored."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def end(self, **attributes: Any) -> None:
        """It is over. Attributes that are None are left out."""
        span, self._span = self._span, None
        if span is None:
            return
        with suppress(Exception):
            span.set_attributes(_named(attributes))
        with suppress(Exception):
            span.end()


NOTHING = Span()


class Spans:
    """Begins spans with a tracer, or does nothing without one."""

    def __init__(self, tracer: Any = None) -> None:
        self._tracer = tracer_of(tracer)

    def start(self, name: str, attributes: Mapping[str, Any]) -> Span:
        """A span of this name below `mimo_cache.`."""
        if self._tracer is None:
            return NOTHING
        with suppress(Exception):
            return Span(self._tracer.start_span(f"{NAME}.{name}", attributes=_named(attributes)))
        return NOTHING


def _named(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{NAME}.{name}": value for name, value in attributes.items() if value is not None}
