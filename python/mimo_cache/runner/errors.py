"""Errors of the runner."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

from mimo_cache import MimoCacheError
from mimo_cache.models.errors import shown


class RequestError(MimoCacheError, ValueError):
    """A request that cannot be served as it is: a bad parameter, no token, or longer than model or pools allow."""


def whole(name: str, value: object, low: int, high: int, allowed: str = "") -> int:
    """`value` as an int from `low` to `high`: an int, or what numpy and torch use as one. Raises `RequestError`."""
    allowed = allowed or f"{low} to {high}"
    if isinstance(value, bool):
        raise RequestError(f"{name} is {value}, allowed is a whole number, {allowed}")
    try:
        number = operator.index(cast(Any, value))
    except (TypeError, RuntimeError) as error:
        raise RequestError(f"{name} is {shown(value)}, allowed is a whole number, {allowed}") from error
    if not low <= number <= high:
        raise RequestError(f"{name} is {shown(number)}, allowed is {allowed}")
    return number


def real(name: str, value: object, good: Callable[[float], bool], allowed: str) -> float:
    """`value` as a float for which `good` holds: any real number of Python, numpy or torch. Raises `RequestError`."""
    if isinstance(value, str | bytes | bytearray):  # which float() would read
        raise RequestError(f"{name} is {shown(value)}, allowed is a number, {allowed}")
    try:
        number = float(cast(Any, value))
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise RequestError(f"{name} is {shown(value)}, allowed is a number, {allowed}") from error
    if not good(number):
        raise RequestError(f"{name} is {value}, allowed is {allowed}")
    return number
