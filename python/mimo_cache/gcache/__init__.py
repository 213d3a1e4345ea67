"""GCache from Python: a client for the nodes that keep pages for many engines, in pure Python on grpcio.

For scripts, tools and runtimes without the Rust client, which has the same calls. Needs `mimo-cache[gcache]`.

    client = connect(["a=127.0.0.1:7401", "b=127.0.0.1:7402"], tenant=7)
    ids = [ObjectId(key, part=0, extent=extent) for key, extent in zip(keys, extents_of(keys, extent_pages))]
    client.put([PutItem(i, page) for i, page in zip(ids, pages)])
    for result in client.get(ids, into=buffers): ...

**Interface.** `connect(nodes, ...)` gives a `Client`, `connect_async` an `AsyncClient` whose calls are awaited. Both
have

| call | returns |
| --- | --- |
| `exists(keys, extents=None, lease_ms=0)` | for each key the mask of the parts that are there: bit p for part p |
| `get(ids, into=None)` | for each id a `GetResult`: its status, and on a hit the length and a view of the bytes |
| `put(items)` | for each item a `PutStatus` |
| `touch(ids)` | how many are there; give the tail of a prefix first and its head last |
| `delete(ids)` | a `Deleted`: how many were there, and nodes that could not be asked |
| `verify(ids)` | a `Verified`: how many are sound, how many the node found damaged and dropped |
| `stats()` | for each node's name its `NodeStats`, or None where it did not answer or refused |
| `refusals()` | for each node's name the `Refused` that it answered last; nodes that answered since are not there |
| `locate(extent)` | name of the node that owns an extent, without asking anybody |
| `close()` | ends the connections; a client is a context manager too |

- **Names.** A chain key is 32 bytes (`docs/keys.md`). An object is one part of one page; part = group x 32 + shard,
  group 0 full, 1 SWA. Where it lives follows from its *extent*: the chain key of the extent's first page
  (`docs/placement.md`). `extents_of(keys, extent_pages)` gives it for the pages of a prefix.
- **Buffers.** Values are anything with the buffer protocol and contiguous memory (bytes, numpy; torch through
  `.numpy()`), in any shape and dtype; bytes count. `into` gives one writable buffer for each id; bytes are copied
  there as they come, so no two may overlap. A value longer than its buffer is a miss. A buffer whose result is no hit
  holds anything.
- **Time.** Every call takes `deadline` in seconds, by default the client's; it bounds what one node may take. A dead,
  hung or slow node costs one deadline, then it is left alone for a while that doubles up to 30 s: what it owns is a
  miss at once. Where a call had less than 20 ms and a second for each 200 MB, only the fourth in a row counts.
- **Errors.** Nodes that cannot be reached or are too busy are misses, never exceptions. What the caller did wrong
  raises `InvalidArgument`, before anything is sent, and a call after `close()` raises `Closed`. What one node refuses
  (a tenant without rights, another version, a node of another name at its address) has the status `REFUSED`, a mask of
  0, or the node's name in `refused`; `refusals()` has the sentence. A call that was refused whole raises `Refused`.
- **Ends.** `close()` makes misses of what runs. ^C, or the cancellation of a task, ends what runs for a call before it
  leaves the call: buffers are the caller's again.
- **Checks.** Every chunk is compared with the CRC32C that its writer computed; a difference is a miss with the status
  `DAMAGED`, is told to the node, and never raises.
- A `Client` may be used by many threads, an `AsyncClient` by the tasks of one loop.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mimo_cache.gcache.errors import Closed, GCacheError, InvalidArgument, Refused
from mimo_cache.gcache.ring import Node, Ring, extents_of
from mimo_cache.gcache.types import (
    Deleted,
    GetResult,
    GetStatus,
    NodeStats,
    ObjectId,
    PutItem,
    PutStatus,
    TierStats,
    Verified,
)

if TYPE_CHECKING:
    from mimo_cache.gcache.aio import AsyncClient, connect_async
    from mimo_cache.gcache.blocking import Client, connect

# What needs grpcio. Names, results and placement do not: the Rust client shares them.
_CLIENTS = {"AsyncClient": "aio", "connect_async": "aio", "Client": "blocking", "connect": "blocking"}


def __getattr__(name: str) -> Any:
    if name not in _CLIENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{_CLIENTS[name]}")
    except ModuleNotFoundError as error:
        if error.name not in ("grpc", "google", "google.protobuf"):
            raise
        raise ImportError("this client needs grpcio and protobuf: pip install 'mimo-cache[gcache]'") from error
    return getattr(module, name)


__all__ = [
    "AsyncClient",
    "Client",
    "Closed",
    "Deleted",
    "GCacheError",
    "GetResult",
    "GetStatus",
    "InvalidArgument",
    "Node",
    "NodeStats",
    "ObjectId",
    "PutItem",
    "PutStatus",
    "Refused",
    "Ring",
    "TierStats",
    "Verified",
    "connect",
    "connect_async",
    "extents_of",
]
