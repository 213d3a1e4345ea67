"""KV cache for hybrid sliding-window language models.

Start with `PrefixCache`: one per engine instance, made from a `Geometry`. A `Request` looks a prompt up, a `Sequence`
holds pages for it, `PrefixCache.fill` writes page tables for a model step, and the returned `Plan` says what to copy
before its kernels run. The package names and counts pages; their memory belongs to the caller.

Everything here is usable from many threads, from one process: a forked child is refused with `ForkedProcessError`.
"""

from mimo_cache._core import (
    Checkpoint,
    ConfigError,
    Event,
    Explanation,
    FileError,
    ForkedProcessError,
    GCacheClient,
    Geometry,
    IntegrityError,
    InvalidArgument,
    Key,
    KvGroup,
    Match,
    MimoCacheError,
    OutOfPages,
    Plan,
    PoolStats,
    PrefixCache,
    Region,
    Report,
    Request,
    Sequence,
    SequenceStateError,
    Snapshot,
    SnapshotPage,
    SplitStats,
    Stats,
    StepOrderError,
    TraceError,
    __version__,
)

__all__ = [
    "Checkpoint",
    "ConfigError",
    "Event",
    "Explanation",
    "FileError",
    "ForkedProcessError",
    "GCacheClient",
    "Geometry",
    "IntegrityError",
    "InvalidArgument",
    "Key",
    "KvGroup",
    "Match",
    "MimoCacheError",
    "OutOfPages",
    "Plan",
    "PoolStats",
    "PrefixCache",
    "Region",
    "Report",
    "Request",
    "Sequence",
    "SequenceStateError",
    "Snapshot",
    "SnapshotPage",
    "SplitStats",
    "Stats",
    "StepOrderError",
    "TraceError",
    "__version__",
]
