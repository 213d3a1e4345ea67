"""Arguments of calls, looked at before anything is sent: whatever a caller gives, the answer is `InvalidArgument`."""

from __future__ import annotations

import ctypes
import itertools
import numbers
import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from mimo_cache.gcache.errors import InvalidArgument
from mimo_cache.gcache.types import KEY_BYTES, MAX_VALUE_BYTES, PARTS, ObjectId, PutItem

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from mimo_cache.gcache.types import Memory

T = TypeVar("T")

MAX_WORD = (1 << 32) - 1
MAX_LEASE_MS = MAX_WORD
MAX_DEADLINE = 3600.0
_SHOWN = 80


def shown(value: object) -> str:
    """A value in an error: as long as a line, whatever it is."""
    try:
        text = ascii(value)
    except Exception:
        # Its own words fail, for instance those of an int with too many digits.
        return f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def check_int(value: object, what: str, least: int, most: int) -> int:
    """An int, or what counts as one (numpy's), between two bounds; a bool is none."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(cast("int", value))
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise InvalidArgument(f"{what} is {shown(value)}, allowed is an int from {least} to {most}")
    return number


def check_text(value: object, what: str, most: int) -> str:
    """Text of at most `most` bytes of UTF-8."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{what} is of type {type(value).__name__}, allowed is text")
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} is {shown(value)}, allowed is text without lone surrogates") from None
    if length > most:
        raise InvalidArgument(f"{what} has {length} bytes, allowed is {most}")
    return value


def listed(values: Iterable[T], what: str, allowed: str) -> list[T]:
    """A list of what an iterable gives. Text and bytes are iterables too, but never what is meant."""
    if not isinstance(values, str | bytes | bytearray | memoryview):
        try:
            return list(values)
        except TypeError:
            pass
    raise InvalidArgument(f"{what} is of type {type(values).__name__}, allowed is a list of {allowed}")


def check_key(key: object, what: str) -> bytes:
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        found = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise InvalidArgument(f"{what} is {found}, allowed is {KEY_BYTES} bytes")
    return key


def check_id(one: object) -> ObjectId:
    if not isinstance(one, tuple) or len(one) != len(ObjectId._fields):
        raise InvalidArgument(f"id is {shown(one)}, allowed is an ObjectId, or a tuple (key, part, extent)")
    key, part, extent = one
    check_key(key, "key of an object")
    check_key(extent, "extent of an object")
    return ObjectId(key, check_int(part, "part", 0, PARTS - 1), extent)


def check_ids(ids: Iterable[ObjectId]) -> list[ObjectId]:
    return [check_id(one) for one in listed(ids, "ids", "ObjectIds")]


def check_keys(keys: Iterable[bytes]) -> list[bytes]:
    return [check_key(key, "key") for key in listed(keys, "keys", f"keys of {KEY_BYTES} bytes")]


def check_extents(keys: Sequence[bytes], extents: Iterable[bytes] | None) -> list[bytes]:
    """The extent of each of the keys, which are checked; a key without one is an extent of its own."""
    if extents is None:
        return list(keys)
    given = listed(extents, "extents", f"keys of {KEY_BYTES} bytes")
    if len(given) != len(keys):
        raise InvalidArgument(f"extents has {len(given)} entries, allowed is one for each of the {len(keys)} keys")
    return [check_key(extent, "extent") for extent in given]


def check_lease(lease_ms: int) -> int:
    return check_int(lease_ms, "lease_ms", 0, MAX_LEASE_MS)


def check_deadline(deadline: object) -> float:
    try:
        seconds = float(deadline) if isinstance(deadline, numbers.Real) else 0.0
    except OverflowError:
        seconds = 0.0
    if not 0 < seconds <= MAX_DEADLINE:
        raise InvalidArgument(f"deadline is {shown(deadline)} s, allowed is above 0 and at most {MAX_DEADLINE:.0f} s")
    return seconds


def flat(buffer: Memory, what: str, writable: bool) -> memoryview:
    """The bytes of a buffer, in one dimension."""
    try:
        view = memoryview(cast("Buffer", buffer))
    except (TypeError, ValueError, BufferError) as error:
        # numpy refuses some of its types with a ValueError.
        raise InvalidArgument(f"{what} is a {type(buffer).__name__} ({error}), allowed is a buffer") from None
    if not view.c_contiguous:
        raise InvalidArgument(f"{what} is not contiguous, allowed is contiguous memory")
    if writable and view.readonly:
        raise InvalidArgument(f"{what} is read-only, allowed is writable memory")
    try:
        return view.cast("B") if view.nbytes else memoryview(bytearray())
    except TypeError:
        raise InvalidArgument(f"{what} has elements of format {view.format!r}; view it as uint8") from None


def check_into(into: Iterable[Memory] | None, count: int) -> list[memoryview | None]:
    if into is None:
        return [None] * count
    given = listed(into, "into", "buffers, one for each id")
    if len(given) != count:
        raise InvalidArgument(f"into has {len(given)} buffers, allowed is one for each of the {count} ids")
    views = [flat(buffer, f"buffer {i} of into", True) for i, buffer in enumerate(given)]
    # By address: two arrays may be views of one memory.
    ranges = [(ctypes.addressof(ctypes.c_char.from_buffer(v)), len(v), i) for i, v in enumerate(views) if len(v)]
    for (start, length, one), (after, _, other) in itertools.pairwise(sorted(ranges)):
        if after < start + length:
            raise InvalidArgument(
                f"buffers {min(one, other)} and {max(one, other)} of into overlap, allowed is memory of their own"
            )
    return list(views)


def check_items(items: Iterable[PutItem]) -> tuple[list[PutItem], list[memoryview]]:
    """The items with every field checked, and the bytes of each."""
    checked, views = [], []
    everything: list[object] = list(listed(items, "items", "PutItems"))
    for i, given in enumerate(everything):
        if not isinstance(given, tuple) or not 2 <= len(given) <= len(PutItem._fields):
            allowed = "a PutItem, or a tuple (id, data, page_index, superseded, layout)"
            raise InvalidArgument(f"item {i} is of type {type(given).__name__}, allowed is {allowed}")
        item = PutItem(*given)
        view = flat(item.data, f"data of item {i}", False)
        if not 1 <= len(view) <= MAX_VALUE_BYTES:
            raise InvalidArgument(f"data of item {i} has {len(view)} bytes, allowed is 1 to {MAX_VALUE_BYTES}")
        if not isinstance(item.superseded, bool):
            raise InvalidArgument(f"superseded of item {i} is {shown(item.superseded)}, allowed is True or False")
        page_index = check_int(item.page_index, f"page_index of item {i}", 0, MAX_WORD)
        layout = check_int(item.layout, f"layout of item {i}", 0, MAX_WORD)
        checked.append(PutItem(check_id(item.id), item.data, page_index, item.superseded, layout))
        views.append(view)
    return checked, views
