"""Arguments of calls, looked at before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

from mimo_cache.gcache.errors import InvalidArgument
from mimo_cache.gcache.types import KEY_BYTES, MAX_VALUE_BYTES, PARTS, ObjectId, PutItem

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from mimo_cache.gcache.types import Memory

MAX_LEASE_MS = (1 << 32) - 1
MAX_DEADLINE = 3600.0


def check_key(key: bytes, what: str) -> bytes:
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        shown = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        raise InvalidArgument(f"{what} is {shown}, allowed is {KEY_BYTES} bytes")
    return key


def check_ids(ids: Iterable[ObjectId]) -> list[ObjectId]:
    checked = [ObjectId(*one) for one in ids]
    for key, part, extent in checked:
        check_key(key, "key of an object")
        check_key(extent, "extent of an object")
        if not isinstance(part, int) or not 0 <= part < PARTS:
            raise InvalidArgument(f"part is {part!r}, allowed is 0 to {PARTS - 1}")
    return checked


def check_extents(keys: Sequence[bytes], extents: Sequence[bytes] | None) -> list[bytes]:
    """The extent of each key; a key without one is an extent of its own."""
    for key in keys:
        check_key(key, "key")
    if extents is None:
        return list(keys)
    if len(extents) != len(keys):
        raise InvalidArgument(f"extents has {len(extents)} entries, allowed is one for each of the {len(keys)} keys")
    return [check_key(extent, "extent") for extent in extents]


def check_lease(lease_ms: int) -> int:
    if not 0 <= lease_ms <= MAX_LEASE_MS:
        raise InvalidArgument(f"lease_ms is {lease_ms}, allowed is 0 to {MAX_LEASE_MS}")
    return lease_ms


def check_deadline(deadline: float) -> float:
    if not 0 < deadline <= MAX_DEADLINE:
        raise InvalidArgument(f"deadline is {deadline} s, allowed is above 0 and at most {MAX_DEADLINE:.0f} s")
    return float(deadline)


def flat(buffer: Memory, what: str, writable: bool) -> memoryview:
    """The bytes of a buffer, in one dimension."""
    try:
        view = memoryview(cast("Buffer", buffer))
    except TypeError:
        raise InvalidArgument(f"{what} is a {type(buffer).__name__}, allowed is a buffer") from None
    if not view.c_contiguous:
        raise InvalidArgument(f"{what} is not contiguous, allowed is contiguous memory")
    if writable and view.readonly:
        raise InvalidArgument(f"{what} is read-only, allowed is writable memory")
    try:
        return view.cast("B") if view.nbytes else memoryview(bytearray())
    except TypeError:
        raise InvalidArgument(f"{what} has elements of format {view.format!r}; view it as uint8") from None


def check_into(into: Sequence[Memory] | None, count: int) -> list[memoryview | None]:
    if into is None:
        return [None] * count
    if len(into) != count:
        raise InvalidArgument(f"into has {len(into)} buffers, allowed is one for each of the {count} ids")
    return [flat(buffer, f"buffer {i} of into", True) for i, buffer in enumerate(into)]


def check_items(items: Iterable[PutItem]) -> tuple[list[PutItem], list[memoryview]]:
    """The items with checked ids, and the bytes of each."""
    checked = [PutItem(*item) for item in items]
    ids = check_ids(item.id for item in checked)
    views = [flat(item.data, f"data of item {i}", False) for i, item in enumerate(checked)]
    for i, (item, view) in enumerate(zip(checked, views, strict=True)):
        if not 1 <= len(view) <= MAX_VALUE_BYTES:
            raise InvalidArgument(f"data of item {i} has {len(view)} bytes, allowed is 1 to {MAX_VALUE_BYTES}")
        for name, value in (("page_index", item.page_index), ("layout", item.layout)):
            if not 0 <= value < 1 << 32:
                raise InvalidArgument(f"{name} of item {i} is {value}, allowed is 0 to {(1 << 32) - 1}")
    return [item._replace(id=one) for item, one in zip(checked, ids, strict=True)], views
