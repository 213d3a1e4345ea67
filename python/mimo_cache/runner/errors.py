"""Errors of the runner."""

from __future__ import annotations

from mimo_cache import MimoCacheError


class RequestError(MimoCacheError, ValueError):
    """A request that cannot be served as it is: a bad parameter, no token, or longer than model or pools allow."""
