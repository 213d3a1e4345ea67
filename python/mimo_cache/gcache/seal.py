"""Checks of messages: a CRC32C over all that one says, so that a flipped bit in a name is noticed before it is another
object's name. `docs/protocol.md`, "Checks", is the rule; this walks the contract's descriptors, so that no field can be
forgotten.

The check of a call's first request is its number; it is the seed of every other check in that call, in both directions.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor

from mimo_cache._core import crc32c
from mimo_cache.gcache.errors import Broken
from mimo_cache.gcache.v1 import gcache_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

M = TypeVar("M", bound="Message")

FIRST = 0
"""Seed of the first request of a call."""
_WORD = (1 << 64) - 1
_TEXT = (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING)
_PIECE_DATA = pb.Piece.DESCRIPTOR.fields_by_name["data"].full_name
LATER = frozenset({"gcache.v1.Piece.source"})
"""Numbers that version 1 did not have. They count only where they are not 0, so that one rule holds for all versions:
they are sent where a version that has them was agreed upon."""


_known: dict[str, tuple[tuple[str, str, bool, bool], ...]] = {}


def _fields(message: Message) -> tuple[tuple[str, str, bool, bool], ...]:
    """Of each field but the check: name, kind, whether it repeats, whether it can be absent."""
    known = _known.get(message.DESCRIPTOR.full_name)
    if known is not None:
        return known
    found = []
    fields: list[Any] = sorted(message.DESCRIPTOR.fields, key=lambda f: f.number)
    for field in fields:
        if field.name == "check":
            continue
        kind = "message" if field.type == FieldDescriptor.TYPE_MESSAGE else "text" if field.type in _TEXT else "int"
        # The bytes of a piece have a CRC of their own; here their length counts.
        kind = "length" if field.full_name == _PIECE_DATA else "later" if field.full_name in LATER else kind
        # Releases of protobuf differ in how a descriptor says it.
        repeats = hasattr(getattr(message, field.name), "extend")
        found.append((field.name, kind, repeats, field.has_presence))
    _known[message.DESCRIPTOR.full_name] = tuple(found)
    return tuple(found)


def _one(out: bytearray, kind: str, value: Any) -> None:
    if kind == "message":
        _add(out, value)
    elif kind == "int" or (kind == "later" and value):
        out += struct.pack("<Q", int(value) & _WORD)
    elif kind != "later":
        text = value.encode() if isinstance(value, str) else value
        out += struct.pack("<Q", len(text))
        out += text if kind == "text" else b""


def _add(out: bytearray, message: Message) -> None:
    """The fields in the order of their numbers."""
    for name, kind, repeats, can_be_absent in _fields(message):
        value = getattr(message, name)
        if repeats and kind == "int":
            out += struct.pack(f"<{len(value) + 1}Q", len(value), *value)
        elif repeats:
            out += struct.pack("<Q", len(value))
            for one in value:
                _one(out, kind, one)
        elif can_be_absent:
            there = message.HasField(name)
            out += struct.pack("<Q", there)
            if there:
                _one(out, kind, value)
        else:
            _one(out, kind, value)


def check_of(message: Message, seed: int = FIRST) -> int:
    """What the check of a message must be, 32 bits."""
    out = bytearray(message.DESCRIPTOR.full_name.encode() + struct.pack("<I", seed))
    _add(out, message)
    return crc32c(out)


def sealed(message: M, seed: int = FIRST) -> M:
    """The message, with its check set."""
    checked: Any = message
    checked.check = check_of(message, seed)
    return message


def opened(message: M, request: Message) -> M:
    """An answer to `request`, the first of its call.

    Raises:
        Broken: it has no check, or another one: it was altered on its way, or answers another call.
    """
    asked: Any = request
    answer: Any = message
    found = check_of(message, asked.check)
    if not answer.HasField("check"):
        raise Broken(f"a {message.DESCRIPTOR.name} without a check")
    if answer.check != found:
        name = message.DESCRIPTOR.name
        raise Broken(f"a {name} with the check {answer.check:08x}, that of its fields is {found:08x}")
    return message
