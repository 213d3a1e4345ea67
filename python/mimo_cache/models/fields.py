"""Typed access to the fields of a JSON object from an untrusted file.

Absent and `null` are the same. Everything else that is not what was asked for is a `ConfigError` with the field, the
value and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from mimo_cache import ConfigError

from .errors import bad, shown

T = TypeVar("T")
MAX_EOS = 256
"""Most tokens that end a text."""


class Fields:
    """An object, and the path to it for messages."""

    __slots__ = ("_map", "_path")

    def __init__(self, fields: Mapping[str, object], path: str = "") -> None:
        self._map = fields
        self._path = path

    def get(self, name: str) -> object | None:
        """The value, or None."""
        return self._map.get(name)

    def has(self, name: str) -> bool:
        """The field is there, be it `null`."""
        return name in self._map

    def error(self, name: str, value: str, allowed: str) -> ConfigError:
        """Error about field `name`."""
        return bad(f"{self._path}{name}", value, allowed)

    def number(self, name: str, low: int, high: int) -> int | None:
        """A whole number from `low` to `high`."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(name, shown(value), f"a whole number from {low} to {high}")
        return value

    def required(self, name: str, low: int, high: int) -> int:
        """`number`, which must be there."""
        value = self.number(name, low, high)
        if value is None:
            raise self.error(name, "missing", f"a whole number from {low} to {high}")
        return value

    def real(self, name: str, low: float, high: float) -> float | None:
        """A finite number with low < value <= high."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value <= high:
            raise self.error(name, shown(value), f"a number above {low:g} and at most {high:g}")
        return float(value)

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, shown(value), "a string")
        return value

    def flag(self, name: str) -> bool | None:
        """true or false."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, shown(value), "true or false")
        return value

    def inner(self, name: str) -> Fields | None:
        """An object inside this one."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, shown(value), "an object")
        return Fields(value, f"{self._path}{name}.")

    def items(self, name: str, length: int, allowed: str, turn: Callable[[object], T | None]) -> list[T] | None:
        """A list of exactly `length` items, each turned by `turn`, which gives None for what is not allowed."""
        value = self.get(name)
        if value is None:
            return None
        allowed = f"a list of {length} (num_hidden_layers), each {allowed}"
        if not isinstance(value, (list, tuple)) or len(value) != length:
            raise self.error(name, shown(value), allowed)
        out: list[T] = []
        for i, item in enumerate(value):
            turned = turn(item)
            if turned is None:
                raise self.error(f"{name}[{i}]", shown(item), allowed)
            out.append(turned)
        return out

    def only(self, name: str, *allowed: object) -> None:
        """Refuses every value but `allowed`, absent and null: what else it may say is not computed here."""
        value = self.get(name)
        if value is None:
            return
        # 1 and True, 0 and False are equal in Python and not in JSON.
        if not any(type(value) is type(one) and value == one for one in allowed):
            words = ", ".join([*(shown(one) for one in allowed), "or absent"]) if allowed else "absent"
            raise self.error(name, shown(value), words)


def agreed(*given: tuple[str, T | None]) -> T | None:
    """The value that every spelling of one fact gives, or None; a `ConfigError` names the two that differ."""
    first: tuple[str, T] | None = None
    for name, value in given:
        if value is None:
            continue
        if first is None:
            first = (name, value)
        elif value != first[1]:
            raise bad(name, _plain(value), f"{_plain(first[1])}, as {first[0]} says")
    return first[1] if first else None


def agreed_lists(*given: tuple[str, list[T] | None]) -> list[T] | None:
    """`agreed` for lists with an item per layer; the error names the first layer that differs."""
    first: tuple[str, list[T]] | None = None
    for name, items in given:
        if items is None:
            continue
        if first is None:
            first = (name, items)
            continue
        for i, (item, said) in enumerate(zip(items, first[1], strict=True)):
            if item != said:
                raise bad(f"layer {i} in {name}", _plain(item), f"{_plain(said)}, as {first[0]} says")
    return first[1] if first else None


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def eos_ids(f: Fields, vocab: int) -> tuple[int, ...]:
    """`eos_token_id`, one or a list, of tokens below `vocab`."""
    value = f.get("eos_token_id")
    if value is None:
        return ()
    ids = value if isinstance(value, (list, tuple)) else [value]
    if len(ids) > MAX_EOS or not all(type(i) is int and 0 <= i < vocab for i in ids):
        raise f.error("eos_token_id", shown(value), f"at most {MAX_EOS} token ids from 0 to {vocab - 1}")
    return tuple(ids)
