"""What calls take and return."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt
    from typing_extensions import Buffer

    Memory: TypeAlias = Buffer | npt.NDArray[Any]
    """Contiguous memory. numpy's arrays are buffers, but type checkers hear of that from Python 3.12 on only."""

Source: TypeAlias = Literal["memory", "disk", "remote"]
"""A storage tier of a node."""
SOURCES: tuple[Source, ...] = get_args(Source)
"""The fastest first."""
KEY_BYTES = 32
PARTS = 64
CHUNK_BYTES = 1 << 20
MAX_VALUE_BYTES = 128 << 20


class ObjectId(NamedTuple):
    """One part of one page, and where it belongs."""

    key: bytes
    """Chain key of the page, 32 bytes."""
    part: int
    """group x 32 + shard, 0 to 63."""
    extent: bytes
    """Chain key of the first page of its extent, 32 bytes."""


class PutItem(NamedTuple):
    """A value to store."""

    id: ObjectId
    data: Memory
    """1 byte to 128 MiB of contiguous memory. It must not change before `put` returns."""
    page_index: int = 0
    """Index of the page in its prefix: a node drops the tail of an extent before its head."""
    superseded: bool = False
    """An SWA page whose checkpoint has a successor: a node drops it first."""
    layout: int = 0
    """Layout number of the bytes, for tools that look into them."""


class GetStatus(Enum):
    """Why a get has no bytes, or that it has."""

    HIT = "hit"
    ABSENT = "absent"
    """The node has no such object for this tenant."""
    DAMAGED = "damaged"
    """Its bytes did not match their CRC; the node drops it."""
    TOO_LONG = "too long"
    """The value is longer than the buffer given for it."""
    UNREACHABLE = "unreachable"
    """The node is down, too busy, or was down a moment ago."""
    LATE = "late"
    """The node did not send it within the deadline."""
    REFUSED = "refused"
    """Its node refused the request, for what it asks or for who asks; `refusals()` has its sentence."""


class PutStatus(Enum):
    """What became of an item."""

    STORED = "stored"
    PRESENT = "present"
    """It was there already, with the bytes of its first writer."""
    BUSY = "busy"
    """Another writer is at it."""
    NO_ROOM = "no room"
    """The node's memory is held by pins, leases and writers."""
    CORRUPT = "corrupt"
    """Bytes changed on the way; nothing was stored."""
    UNREACHABLE = "unreachable"
    LATE = "late"
    """No answer within the deadline; it may have been stored all the same."""
    REFUSED = "refused"
    """Its node refused the request, for what it asks or for who asks; `refusals()` has its sentence."""


@dataclass(frozen=True, slots=True)
class GetResult:
    """One object of a `get`."""

    status: GetStatus
    length: int = 0
    """Bytes of the value; 0 without a hit, but for `TOO_LONG`, where it says what would fit."""
    data: memoryview | None = None
    """The value's bytes, in the caller's buffer where one was given; None without a hit."""
    layout: int = 0
    source: Source | None = None
    """The node's tier that had it, by where this get found it; None without a hit, and from a node of protocol version
    1, which does not say."""

    @property
    def hit(self) -> bool:
        return self.status is GetStatus.HIT


class Deleted(NamedTuple):
    """Answer of `delete`."""

    deleted: int
    """How many objects were there."""
    unreachable: tuple[str, ...]
    """Nodes that did not answer: their objects may be there still."""
    refused: tuple[str, ...] = ()
    """Nodes that refused; `refusals()` has their sentences."""


class Verified(NamedTuple):
    """Answer of `verify`."""

    sound: int
    dropped: int
    unreachable: tuple[str, ...]
    refused: tuple[str, ...] = ()
    """Nodes that refused; `refusals()` has their sentences."""


@dataclass(frozen=True, slots=True)
class TierStats:
    """One storage tier of a node. Sizes are bytes; counters start at 0 with the node."""

    name: str
    capacity_bytes: int
    used_bytes: int
    keys: int
    objects: int
    held_slots: int
    """Slots that cannot be evicted now: pinned, leased or being written."""
    leases: int
    lease_bytes: int
    writers: int
    index_bytes: int
    hits: int
    misses: int
    committed: int
    present: int
    busy: int
    no_room: int
    aborted: int
    evicted_objects: int
    evicted_bytes: int
    deleted: int
    damaged: int
    written_bytes: int
    """Bytes written to the device; 0 for memory."""
    read_bytes: int
    demoted: int
    """Values that came from the tier above; 0 for memory."""
    promoted: int
    """Values that went back into the tier above; 0 for memory."""
    trouble: str
    """What the tier cannot do and why; empty when nothing is wrong."""


@dataclass(frozen=True, slots=True)
class NodeStats:
    """One node."""

    node: str
    program: str
    start_id: int
    """Another number each time the node starts."""
    uptime_ms: int
    draining: bool
    connections: int
    streams: int
    tiers: tuple[TierStats, ...]
