"""The compiled core of `mimo_cache`. Import its names from `mimo_cache`.

Sizes are in tokens or pages unless a name says bytes. Every error derives from `MimoCacheError` and leaves the cache as
it was. Integer arguments take an `int` or anything with `__index__`, but no `bool`; a value outside the stated range is
an `InvalidArgument`.
"""

import os
from collections.abc import Callable, Iterable
from collections.abc import Sequence as AbstractSequence
from types import TracebackType
from typing import Any, Literal, Protocol, SupportsIndex, TypeAlias, final, type_check_only

import numpy as np
import numpy.typing as npt

from mimo_cache.gcache.errors import Refused
from mimo_cache.gcache.ring import Node
from mimo_cache.gcache.types import Deleted, GetResult, NodeStats, ObjectId, PutItem, PutStatus, Verified

@type_check_only
class _Buffer(Protocol):
    """An object of the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

@type_check_only
class _Tensor(Protocol):
    """A torch CPU tensor, or another object that numpy can see as an array."""

    def __array__(self) -> npt.NDArray[Any]: ...

# Token ids from 0 to 2^32 - 1: a list or tuple of ints, or a one-dimensional integer array of any width and stride
# (numpy, torch CPU tensor, any buffer). Contiguous int32 and uint32 memory is read where it lies, anything else is
# converted. Negative ids, floats, bools, strings, bytes and more than one axis are refused.
_Tokens: TypeAlias = list[int] | tuple[int, ...] | npt.NDArray[np.integer[Any]] | _Buffer | _Tensor
# A writable, C-contiguous int32 array: numpy, torch CPU tensor (pinned ones too) or another buffer.
_Out: TypeAlias = npt.NDArray[np.int32] | _Buffer | _Tensor
# Multimodal spans (start, len, SHA-256 digest of the content), sorted and disjoint.
_Spans: TypeAlias = list[tuple[int, int, bytes]] | tuple[tuple[int, int, bytes], ...]

__version__: str

class MimoCacheError(Exception):
    """Base of every error of this package."""

class InvalidArgument(MimoCacheError, ValueError):
    """A value outside what is allowed."""

    what: str
    """Which argument."""
    value: str
    """The value, or what is wrong with it, as text."""
    allowed: str
    """What is allowed."""

class OutOfPages(MimoCacheError):
    """Pages that cannot be served now; nothing was changed. `needed > most` can never succeed."""

    pool: str
    """"full", "swa" (windows and checkpoints) or "scratch" (chunk pages beyond the window)."""
    needed: int
    """Pages asked for."""
    free: int
    """Pages on the free list; of free, quarantined and evictable pages `promised` are spoken for."""
    quarantined: int
    """Pages that become free or evictable when running steps retire."""
    evictable: int
    """Cached pages without a lease that no running step can touch."""
    promised: int
    """Pages promised to open sequences and not taken yet."""
    total: int
    """Usable pages of this budget now."""
    most: int
    """The most that it could ever have: `total`, or with a region what the other pool can do without on top."""

class SequenceStateError(MimoCacheError):
    """The call does not fit the state of the sequence or request."""

    call: str
    """The call."""
    state: str
    """The state it found."""
    allowed: str
    """The state it needs."""

class StepOrderError(MimoCacheError):
    """A step or move number out of order."""

    what: str
    """Which number."""
    value: int
    """The number that was given."""
    expected: str
    """What would be accepted."""

class ConfigError(MimoCacheError, ValueError):
    """A model configuration with missing or contradictory fields."""

class TraceError(MimoCacheError, ValueError):
    """A trace line that cannot be read."""

    line: int
    """Its number, from 1."""

class FileError(MimoCacheError, OSError):
    """A file that cannot be read or written."""

class IntegrityError(MimoCacheError):
    """The cache's structures contradict each other, or a call failed inside it: a bug in this package.

    After a call failed inside a cache, every further call on that cache is refused with this error.
    """

class ForkedProcessError(MimoCacheError):
    """A cache of the parent process was used in a forked child. Create the cache in the process that uses it."""

@final
class KvGroup:
    """The layers of one lifetime on one pipeline stage. Figures without "rank" count every KV head once."""

    @property
    def layers(self) -> int:
        """Trunk layers."""
    @property
    def mtp_layers(self) -> int:
        """MTP heads, which are layers beside the trunk."""
    @property
    def heads(self) -> int:
        """KV heads of each layer."""
    @property
    def k_dim(self) -> int:
        """Dimension of K per head."""
    @property
    def v_dim(self) -> int:
        """Dimension of V per head."""
    @property
    def rank_heads(self) -> tuple[int, int]:
        """First and one past the last KV head of this rank."""
    @property
    def shards(self) -> int:
        """Different shards of the heads: ranks, or heads when there are fewer heads than ranks."""
    @property
    def replication(self) -> int:
        """Ranks that hold the same heads."""
    @property
    def trunk_token_bytes(self) -> int:
        """Bytes per token of the trunk layers."""
    @property
    def mtp_token_bytes(self) -> int:
        """Bytes per token of the MTP heads."""
    @property
    def token_bytes(self) -> int:
        """Bytes per token of trunk and MTP."""
    @property
    def trunk_page_bytes(self) -> int:
        """Bytes per page of the trunk layers."""
    @property
    def page_bytes(self) -> int:
        """Bytes per page of trunk and MTP."""
    @property
    def rank_token_bytes(self) -> int:
        """Bytes per token of trunk and MTP on one tensor-parallel rank."""
    @property
    def rank_page_bytes(self) -> int:
        """Bytes per page of trunk and MTP on one tensor-parallel rank."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Geometry:
    """Shape of a model's KV (layers, groups, heads) under a deployment (page size, KV dtype, rank, stage). Immutable.

    The deployment arguments are those of every constructor:

    - `page_size`: tokens per page, a power of two from 1 to 1024.
    - `kv_dtype`: dtype of stored KV, else the model's: "bf16", "fp16", "fp32", "fp8_e4m3" or "fp8_e5m2", the last two
      with ":model", ":token" or ":page" for where their scales live.
    - `tp_size`, `tp_rank`: tensor-parallel ranks that share the KV heads, and this one.
    - `layer_range`: first and one past the last trunk layer of this pipeline stage.
    - `layout`: number of the byte layout of a page. `extent_pages`: pages that a remote tier places together.
    """

    PRESETS: tuple[str, str, str, str]
    """Names that `preset` knows."""

    def __new__(
        cls,
        *,
        name: str,
        layers: list[str] | tuple[str, ...],
        full: tuple[int, int, int] | None = None,
        swa: tuple[int, int, int] | None = None,
        window_keys: int = 0,
        mtp_heads: int = 0,
        hidden_size: int = 0,
        dtype: str = "bf16",
        page_size: int = 64,
        kv_dtype: str | None = None,
        tp_size: int = 1,
        tp_rank: int = 0,
        layer_range: tuple[int, int] | None = None,
        layout: int = 1,
        extent_pages: int = 16,
    ) -> Geometry:
        """A model given field by field.

        `layers` names the kind of every trunk layer, "full" or "swa". `full` and `swa` are (KV heads, K dimension, V
        dimension) of such layers. `window_keys` counts the keys an SWA query sees, itself included. Raises
        `ConfigError` for fields that contradict each other.
        """
    @staticmethod
    def preset(
        name: str,
        *,
        page_size: int = 64,
        kv_dtype: str | None = None,
        tp_size: int = 1,
        tp_rank: int = 0,
        layer_range: tuple[int, int] | None = None,
        layout: int = 1,
        extent_pages: int = 16,
    ) -> Geometry:
        """One of `PRESETS`. Raises `ConfigError` for another name."""
    @staticmethod
    def from_config(
        config: str | bytes | dict[str, Any],
        *,
        name: str | None = None,
        mtp_heads: int | None = None,
        hub_window_plus: int = 1,
        page_size: int = 64,
        kv_dtype: str | None = None,
        tp_size: int = 1,
        tp_rank: int = 0,
        layer_range: tuple[int, int] | None = None,
        layout: int = 1,
        extent_pages: int = 16,
    ) -> Geometry:
        """From the text of a hub `config.json`, or the dict read from it.

        `name` is the model's identity in the fingerprint (default: a digest of the config). `mtp_heads` overrides what
        the config says. `hub_window_plus` is what the hub spelling's window leaves out: 1 key, the query's own, or 0.
        Raises `ConfigError` that names the field, its value and what is allowed.
        """
    @staticmethod
    def from_file(
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        mtp_heads: int | None = None,
        hub_window_plus: int = 1,
        page_size: int = 64,
        kv_dtype: str | None = None,
        tp_size: int = 1,
        tp_rank: int = 0,
        layer_range: tuple[int, int] | None = None,
        layout: int = 1,
        extent_pages: int = 16,
    ) -> Geometry:
        """As `from_config`, from a file. Raises `FileError` when it cannot be read."""
    @property
    def name(self) -> str:
        """Identity of the model."""
    @property
    def layers(self) -> list[str]:
        """Kind of every trunk layer, "full" or "swa"."""
    @property
    def layer_range(self) -> tuple[int, int]:
        """First and one past the last trunk layer of this stage."""
    @property
    def is_last_stage(self) -> bool:
        """This stage computes the last trunk layer, and so the MTP heads."""
    @property
    def dtype(self) -> str:
        """KV dtype in force."""
    @property
    def hidden_size(self) -> int:
        """Width of the trunk's hidden state."""
    @property
    def tp_size(self) -> int:
        """Tensor-parallel ranks."""
    @property
    def tp_rank(self) -> int:
        """This rank."""
    @property
    def page_size(self) -> int:
        """Tokens per page."""
    @property
    def window_keys(self) -> int:
        """Keys an SWA query sees, itself included; 0 without SWA layers."""
    @property
    def window(self) -> int:
        """W: previous tokens an SWA query needs, `window_keys - 1`; 0 without SWA layers."""
    @property
    def mtp_heads(self) -> int:
        """MTP heads of the model."""
    @property
    def full(self) -> KvGroup | None:
        """The full-attention group on this stage."""
    @property
    def swa(self) -> KvGroup | None:
        """The SWA group on this stage with its MTP heads."""
    @property
    def fingerprint(self) -> bytes:
        """32 bytes over everything that decides what a page's bytes mean; never rank, shard or replication."""
    @property
    def checkpoint_pages(self) -> int:
        """SWA pages that one checkpoint keeps."""
    @property
    def hidden_token_bytes(self) -> int:
        """Bytes per token of the hidden state that SWA pages also hold, over all shards."""
    @property
    def hidden_page_bytes(self) -> int:
        """`hidden_token_bytes` of one page."""
    @property
    def rank_hidden_page_bytes(self) -> int:
        """One rank's part of `hidden_page_bytes`."""
    @property
    def stored_full_page_bytes(self) -> int:
        """Bytes of one full page over all shards."""
    @property
    def stored_swa_page_bytes(self) -> int:
        """Bytes of one SWA page with MTP heads and hidden state, over all shards."""
    @property
    def trunk_token_bytes(self) -> int:
        """Bytes of one token in a cache with a single pool: every trunk layer."""
    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of the SWA trunk layers over one window of W tokens."""
    @property
    def checkpoint_mtp_bytes(self) -> int:
        """Bytes of the MTP heads over one window of W tokens."""
    @property
    def checkpoint_in_full_tokens(self) -> int | None:
        """Tokens of full KV that cost as much as `checkpoint_bytes`; `None` without a full group."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Key:
    """What the caller adds to a request's namespace. Requests with different keys never share a page.

    `salt` is free bytes (or text, taken as UTF-8), `adapter` the id of a LoRA adapter; each at most 4,096 bytes.
    """

    def __new__(cls, salt: bytes | str = b"", adapter: str | bytes = "") -> Key: ...
    @property
    def salt(self) -> bytes:
        """The salt."""
    @property
    def adapter(self) -> str:
        """The adapter."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Match:
    """What a lookup found, in tokens."""

    @property
    def full_kv_match(self) -> int:
        """Longest run of whole pages with full KV."""
    @property
    def usable(self) -> int:
        """Largest boundary up to it that is window-safe and leaves one token to compute."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Report:
    """Where every prompt token of one `open` came from, in tokens: `usable` hits, and the sum of `misses`."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
    @property
    def full_kv_match(self) -> int:
        """Longest run of whole pages with full KV."""
    @property
    def usable(self) -> int:
        """Largest boundary up to it that is window-safe and leaves one token to compute."""
    @property
    def promised(self) -> int:
        """Usable tokens announced at `open`."""
    @property
    def delivered(self) -> int:
        """Usable tokens the sequence really starts from."""
    @property
    def misses(self) -> dict[str, int]:
        """Tokens by cause: window, last_token, evicted, in_flight, capacity, never_seen, partial_page."""
    @property
    def turn(self) -> int:
        """1 + turn of the checkpoint that was matched, else 1."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Checkpoint:
    """A boundary that is kept resumable."""

    @property
    def boundary(self) -> int:
        """Prefix length in tokens."""
    @property
    def kinds(self) -> list[str]:
        """Why it is kept: PROMPT_END, SEQ_END, BRANCH, STRIDE, PARK."""
    @property
    def matched(self) -> bool:
        """A match ended on it."""
    @property
    def turn(self) -> int:
        """Turn number of the request that made it."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Explanation:
    """The story of one lookup; `str()` tells it."""

    @property
    def report(self) -> Report:
        """The numbers."""
    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Checkpoints on the matched path, shallow first; at most 64, the deepest."""
    @property
    def stretches(self) -> list[dict[str, Any]]:
        """What missed, in order of position: dicts of `from`, `to` (tokens), `cause`, and for what was evicted
        `dropped`: `why`, `sequence` (its `id`), `calls_ago`, or `None` when that is forgotten. At most 64."""
    @property
    def lost_checkpoints(self) -> list[dict[str, Any]]:
        """Checkpoints that would have made more usable and were dropped, deepest first: dicts of `boundary`, `kinds`,
        and `dropped` as in `stretches`. At most 64."""
    @property
    def lines(self) -> list[str]:
        """One plain sentence each."""

@final
class Plan:
    """What the caller must run before the kernels of a step: copies in order, then rebuilds. False when empty."""

    @property
    def copies(self) -> list[tuple[Literal["full", "swa"], int, int]]:
        """(group, source page, destination page), whole pages of one pool."""
    @property
    def rebuilds(self) -> list[tuple[int, int, int, int]]:
        """(sequence id, SWA page, first position, end position): MTP rows to rebuild from stored hidden states."""
    def __bool__(self) -> bool: ...

@final
class Event:
    """A numbered change of what lookups can find."""

    @property
    def number(self) -> int:
        """Consecutive from 1."""
    @property
    def kind(self) -> Literal["stored", "removed", "window_safe", "window_unsafe", "cleared"]:
        """What happened. "window_safe" and "window_unsafe" speak of the boundaries at the ends of the pages."""
    @property
    def group(self) -> Literal["full", "swa"] | None:
        """The pool of "stored" and "removed"."""
    @property
    def parent(self) -> bytes | None:
        """For "stored": the key before `keys[0]`."""
    @property
    def root(self) -> bytes | None:
        """For "stored" and "cleared": the root key of the namespace."""
    @property
    def keys(self) -> list[bytes]:
        """32-byte chain keys; for "stored" consecutive pages of one prefix."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class SnapshotPage:
    """One resident page."""

    @property
    def key(self) -> bytes:
        """Chain key of the page."""
    @property
    def parent(self) -> bytes:
        """Key of its parent page or root."""
    @property
    def root(self) -> bytes:
        """Root key of its namespace."""
    @property
    def full(self) -> bool:
        """Has full KV."""
    @property
    def swa(self) -> bool:
        """Has SWA KV."""
    @property
    def window_safe(self) -> bool:
        """The boundary at its end is window-safe."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Snapshot:
    """What lookups can find now, parents first; equals the state after event `number`."""

    @property
    def number(self) -> int:
        """Number of the last event that is contained."""
    @property
    def pages(self) -> list[SnapshotPage]:
        """All pages of attached namespaces."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class PoolStats:
    """What a page pool holds, by state, in pages."""

    @property
    def total(self) -> int:
        """Pages there are, without the null page; of a chunk that drains those that are not withdrawn yet."""
    @property
    def free(self) -> int:
        """On the free list."""
    @property
    def private(self) -> int:
        """Owned by sequences."""
    @property
    def cached(self) -> int:
        """Owned by the tree."""
    @property
    def leased(self) -> int:
        """Part of `cached` under a lease."""
    @property
    def quarantined(self) -> int:
        """Waiting for a step or a move."""
    @property
    def promised(self) -> int:
        """Promised to open sequences and not taken yet (full), or reserved for their windows (swa)."""
    @property
    def scratch_used(self) -> int:
        """SWA only: scratch pages in use."""
    def as_dict(self) -> dict[str, int]:
        """All numbers by name, nested ones as dicts."""
    def __eq__(self, other: object, /) -> bool: ...

@final
class SplitStats:
    """How a region is split between the pools. All zero without a region."""

    @property
    def draining(self) -> Literal["full", "swa"] | None:
        """The pool that gives a chunk up just now."""
    @property
    def full_chunks(self) -> int:
        """Chunks of the full pool, one that drains included."""
    @property
    def swa_chunks(self) -> int:
        """Chunks of the SWA pool likewise."""
    @property
    def draining_pages(self) -> int:
        """Pages of the chunk that drains that are not withdrawn yet."""
    @property
    def to_full(self) -> int:
        """Chunks that the full pool got so far."""
    @property
    def to_swa(self) -> int:
        """Chunks that the SWA pool got so far."""
    @property
    def kept(self) -> int:
        """Chunks that did not become empty and stayed where they were."""
    @property
    def full_relocated(self) -> int:
        """Full pages copied out of chunks."""
    @property
    def swa_relocated(self) -> int:
        """SWA pages copied out of chunks."""
    def as_dict(self) -> dict[str, Any]:
        """All numbers by name, nested ones as dicts."""
    def __eq__(self, other: object, /) -> bool: ...

@final
class Stats:
    """Counters since the start, and the state now."""

    @property
    def full(self) -> PoolStats:
        """The full pool."""
    @property
    def swa(self) -> PoolStats:
        """The SWA pool."""
    @property
    def split(self) -> SplitStats:
        """How the region is split."""
    @property
    def misses(self) -> dict[str, int]:
        """Prompt tokens that missed, by cause, over all opens."""
    @property
    def nodes(self) -> int:
        """Tree nodes, roots included."""
    @property
    def checkpoints(self) -> int:
        """Checkpoints now."""
    @property
    def open_sequences(self) -> int:
        """Open sequences, parked ones not counted."""
    @property
    def parked_sequences(self) -> int:
        """Parked sequences."""
    @property
    def opens(self) -> int:
        """`open` and `resume` that succeeded."""
    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens over those."""
    @property
    def hit_tokens(self) -> int:
        """Usable tokens over those."""
    @property
    def full_kv_tokens(self) -> int:
        """Full-KV match over those."""
    @property
    def full_evicted(self) -> int:
        """Full pages evicted."""
    @property
    def checkpoints_evicted(self) -> int:
        """Checkpoints evicted."""
    @property
    def swa_evicted(self) -> int:
        """SWA pages evicted."""
    @property
    def tree_bytes(self) -> int:
        """Bytes of the tree's own structures, an estimate."""
    def as_dict(self) -> dict[str, Any]:
        """All numbers by name, nested ones as dicts."""
    def __eq__(self, other: object, /) -> bool: ...

@final
class Sequence:
    """A request's hold on the cache. Dropping it aborts it; as a context manager it finishes when the block ends
    normally and aborts when an exception leaves it.

    Row rules: the runner computes positions from `committed` on, but writes full KV only from `full_write_from` and
    SWA KV only from `swa_write_from`; pages before those belong to the tree.
    """

    @property
    def id(self) -> int:
        """The number that `Plan.rebuilds` uses."""
    @property
    def full_kv_match(self) -> int:
        """Longest run of whole pages with full KV at `open` (or the last `resume`)."""
    @property
    def usable(self) -> int:
        """Tokens this sequence started from: the largest window-safe boundary within `full_kv_match`."""
    @property
    def report(self) -> Report:
        """Where every prompt token came from, with what a host tier delivered since. Stays readable after the sequence
        has ended.
        """
    @property
    def committed(self) -> int:
        """Tokens whose KV is final."""
    @property
    def known(self) -> int:
        """Tokens whose ids are known; at least `committed`."""
    @property
    def reserved(self) -> int:
        """Slots beyond `committed`."""
    @property
    def full_write_from(self) -> int:
        """Do not write full KV before this position."""
    @property
    def swa_write_from(self) -> int:
        """Do not write SWA KV before this position."""
    @property
    def swa_base(self) -> int:
        """First logical page of the compact SWA table."""
    @property
    def swa_held(self) -> int:
        """SWA pages this sequence holds."""
    @property
    def table_version(self) -> int:
        """Changes whenever a page id of committed tokens changes."""
    @property
    def parked(self) -> bool:
        """Parked: only tokens and cursor are kept."""
    def tokens(self) -> npt.NDArray[np.uint32]:
        """A copy of the known tokens."""
    def full_table(self) -> npt.NDArray[np.uint32]:
        """Page ids of logical pages 0.. covering committed and reserved positions."""
    def swa_table(self) -> tuple[int, npt.NDArray[np.uint32]]:
        """First logical page, and the SWA page ids from there; 0 for none."""
    def reserve(self, n: SupportsIndex) -> None:
        """Slots for `n` more positions: a prefill chunk, or 1 + k drafts for each step in flight.

        Raises `OutOfPages`, beyond prompt and credit, while pages are quarantined, or when a chunk exceeds the scratch.
        """
    def reservable(self) -> int:
        """Largest `n` that `reserve` would accept now."""
    def trim(self) -> int:
        """Gives back all reserved slots; returns how many."""
    def commit(self, computed: SupportsIndex, tokens: _Tokens = ()) -> None:
        """The next `computed` rows (at most `reserved`) are final and `tokens` became known.

        After it `known >= committed`. The prompt is known from the start.
        """
    def fork(self, m: SupportsIndex, credit: SupportsIndex = 0) -> list[Sequence]:
        """`m` new sequences at the committed length with nothing reserved, or `OutOfPages` and none."""
    def park(self, store: bool = True) -> None:
        """Publishes as at finish and keeps only tokens and cursor; `store=False` frees everything."""
    def resume(self, credit: SupportsIndex = 0) -> None:
        """Opens a parked sequence again on its known tokens; `report` is the new one."""
    def finish(self) -> None:
        """Publishes what is complete and ends the sequence."""
    def abort(self) -> None:
        """Ends the sequence; what was published stays cached."""
    def __enter__(self) -> Sequence: ...
    def __exit__(
        self, kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]: ...

@final
class Request:
    """A prompt with a cursor into the tree. Holds no lease; looking again costs only what is new."""

    @property
    def opened(self) -> bool:
        """`open` succeeded, which uses the request up."""
    def peek(self) -> Match:
        """What `open` would find now. Neither lease nor recency."""
    def open(self, credit: SupportsIndex = 0) -> Sequence:
        """Leases what matches and reserves for the prompt and `credit` tokens beyond it.

        Raises `OutOfPages` when either pool cannot serve that; the request may be opened again later.
        """
    def tokens(self) -> npt.NDArray[np.uint32]:
        """A copy of the prompt; empty once opened."""
    def __len__(self) -> int: ...

@final
class Region:
    """One memory region that both pools live in, chunk by chunk: a chunk holds `full_pages` full pages or `swa_pages`
    SWA pages and belongs to one pool at a time.

    Page `id` of a pool with n pages a chunk is page `(id - 1) % n` of chunk `(id - 1) // n`. With pages at even strides
    (see `layout`) each pool is one strided view over the whole region; page 0 lies before it.

    - `chunks`: 2 to 4,096. `full_pages`, `swa_pages`: pages of each pool that a chunk holds, 1 to 65,536.
    - `full_chunks`: chunks of the full pool at the start, the first ones; the others are the SWA pool's.
    - `min_full_chunks`, `min_swa_chunks`: the pools never get smaller. The SWA pool keeps what scratch, a window and
      a checkpoint take in any case. A prompt longer than the full pool is refused: set `min_full_chunks` to hold the
      longest one, or `reassign` until it fits.
    - `adaptive`: chunks change owner by what they are worth; else only by `PrefixCache.reassign`.
    """

    def __new__(
        cls,
        *,
        chunks: SupportsIndex,
        full_pages: SupportsIndex,
        swa_pages: SupportsIndex,
        full_chunks: SupportsIndex,
        min_full_chunks: SupportsIndex = 1,
        min_swa_chunks: SupportsIndex = 1,
        adaptive: bool = True,
    ) -> Region: ...
    @staticmethod
    def fit(
        geometry: Geometry,
        size: SupportsIndex,
        *,
        chunk_bytes: SupportsIndex | None = None,
        swa_share: float = 0.1,
        scratch_pages: SupportsIndex = 0,
        align: SupportsIndex = 256,
        adaptive: bool = True,
    ) -> Region:
        """The region of `size` bytes on the rank of `geometry`, with the chunk of at most `chunk_bytes` (default: a
        64th of the region, at least a page) that wastes least.

        `swa_share` of the bytes, beside those of `scratch_pages` SWA pages, go to the SWA pool at the start. `align` is
        what strides are multiples of, in bytes.
        """
    def layout(self, geometry: Geometry, align: SupportsIndex = 256) -> tuple[int, int, int, float]:
        """How pages lie in a chunk on the rank of `geometry`: (bytes of a chunk, bytes from one full page to the next,
        bytes from one SWA page to the next, unused part of a chunk from 0 to 1). Ranks whose pages have other sizes
        have other strides and the same page ids."""
    @property
    def chunks(self) -> int:
        """Chunks."""
    @property
    def full_pages(self) -> int:
        """Full pages that a chunk holds."""
    @property
    def swa_pages(self) -> int:
        """SWA pages that a chunk holds."""
    @property
    def full_chunks(self) -> int:
        """Chunks of the full pool at the start."""
    @property
    def min_full_chunks(self) -> int:
        """The full pool never has fewer."""
    @property
    def min_swa_chunks(self) -> int:
        """The SWA pool never has fewer."""
    @property
    def adaptive(self) -> bool:
        """Chunks change owner by what they are worth."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class PrefixCache:
    """The prefix cache of one engine instance: it names and counts pages, the caller owns their memory.

    - `full_pages`, `swa_pages`: usable page ids of the two pools (id 0 is the null page and comes on top); 0 for a
      group the model does not have. `scratch_pages`: part of `swa_pages` for chunks longer than a window.
    - `retention`: parts joined by "+": prompt_end, seq_end, branch, sup<n>, stride<tokens>, dense<tokens>:<until>.
    - `policy`: order of eviction, "hit_density", "lru", "arc", "s3fifo" or "turn_hazard" (docs/policies.md).
    - `events`: keys the event ring holds; 0 turns events off. `ghosts`: dropped pages that are remembered to explain
      misses, default 2 * full_pages. `max_pinned_pages`: full pages under a pin at once, default full_pages / 4.
    - `seed`: of the hash tables. `weights`: version of the model's weights, part of every namespace.
    - `region`: both pools in one memory whose chunks change between them; then `full_pages` and `swa_pages` are left
      out, and read as the ids of all chunks.
    """

    def __new__(
        cls,
        geometry: Geometry,
        *,
        full_pages: SupportsIndex = 0,
        swa_pages: SupportsIndex = 0,
        scratch_pages: SupportsIndex = 0,
        retention: str = "prompt_end+branch+sup2+stride8192+dense2048:4096",
        policy: str = "hit_density",
        events: SupportsIndex = 65536,
        ghosts: SupportsIndex | None = None,
        seed: SupportsIndex = 0,
        max_pinned_pages: SupportsIndex | None = None,
        weights: bytes | str = b"",
        region: Region | None = None,
    ) -> PrefixCache: ...
    @staticmethod
    def plain(
        *,
        page_size: SupportsIndex,
        window: SupportsIndex = 0,
        n_mtp: SupportsIndex = 0,
        full_pages: SupportsIndex = 0,
        swa_pages: SupportsIndex = 0,
        scratch_pages: SupportsIndex = 0,
        retention: str = "prompt_end+branch+sup2+stride8192+dense2048:4096",
        policy: str = "hit_density",
        events: SupportsIndex = 65536,
        ghosts: SupportsIndex | None = None,
        seed: SupportsIndex = 0,
        max_pinned_pages: SupportsIndex | None = None,
        weights: bytes | str = b"",
        region: Region | None = None,
    ) -> PrefixCache:
        """A cache without a model. `window` is W, the number of previous tokens an SWA query needs."""
    @property
    def geometry(self) -> Geometry | None:
        """The geometry it was made from."""
    @property
    def page_size(self) -> int:
        """Tokens per page."""
    @property
    def window(self) -> int:
        """W: previous tokens an SWA query needs."""
    @property
    def n_mtp(self) -> int:
        """MTP heads."""
    @property
    def region(self) -> Region | None:
        """The region at the start; `None` for pools of fixed size."""
    @property
    def full_pages(self) -> int:
        """Usable ids of the full pool."""
    @property
    def swa_pages(self) -> int:
        """Usable ids of the SWA pool, scratch included."""
    @property
    def scratch_pages(self) -> int:
        """Part of `swa_pages` that serves chunk pages beyond the window."""
    def swa_width(self, slots: SupportsIndex) -> int:
        """Columns of a compact SWA table for sequences with up to `slots` reserved positions (a chunk, or drafts), the
        same at every step: ceil((W + slots) / page_size) + 2, or 0 without an SWA group."""
    def request(
        self,
        tokens: _Tokens,
        key: Key | None = None,
        spans: _Spans | None = None,
        tenant: SupportsIndex = 0,
        store: bool = True,
    ) -> Request:
        """A request for a prompt of at least one token, which is copied. `store=False` reads the cache and publishes
        nothing. `tenant` owns what the request publishes."""
    def peek(self, tokens: _Tokens, key: Key | None = None, spans: _Spans | None = None) -> Match:
        """A lookup without a request: no lease, no recency, no copy of contiguous int32 or uint32 tokens."""
    def explain(self, tokens: _Tokens, key: Key | None = None, spans: _Spans | None = None) -> Explanation:
        """Why a lookup finds what it finds."""
    def pin(self, tokens: _Tokens, ttl: float, key: Key | None = None, spans: _Spans | None = None) -> int:
        """Evicts what is cached of `tokens` late, for `ttl` seconds; returns the tokens pinned (within
        `max_pinned_pages`)."""
    def fill(
        self,
        step: SupportsIndex,
        seqs: list[Sequence] | tuple[Sequence, ...],
        full_out: _Out | None,
        swa_out: _Out | None,
        swa_base: _Out | None,
        lens: _Out,
    ) -> Plan:
        """Starts step `step` (consecutive, the first is free) and writes its page tables into the caller's memory.

        With B sequences: `full_out` [B, P] takes the full page ids from logical page 0, `swa_out` [B, S] the SWA page
        ids from logical page `swa_base[i]` (or from page 0, with 0 in the holes, when `swa_base` is `None`), `lens` [B]
        committed + reserved. The rest of a row is set to 0. `full_out` or `swa_out` may be `None` when the cache has no
        such group. Run the plan before the kernels of the step.
        """
    def commit_many(
        self,
        seqs: list[Sequence] | tuple[Sequence, ...],
        computed: list[int] | tuple[int, ...] | npt.NDArray[np.integer[Any]],
        tokens: AbstractSequence[_Tokens | None],
    ) -> None:
        """`Sequence.commit` for many, all or nothing."""
    def retire(self, step: SupportsIndex) -> None:
        """Step `step` has run; pages that waited for it become free. Steps retire in order."""
    def take_copies(self) -> tuple[int, Plan] | None:
        """Pending copies to run outside a step, with a move id; their pages are held until `move_done`."""
    def move_done(self, move_id: SupportsIndex) -> None:
        """The copies of a move have run."""
    def reassign(self, to: Literal["full", "swa"], chunk: SupportsIndex | None = None) -> bool:
        """Begins to give a chunk of the region to the pool `to`: this one, or the one with the fewest pages in use.
        `False` when one changes already, or when the other pool could not keep its promises, would get smaller than its
        least, or was fuller of late."""
    def chunk_owners(self) -> list[tuple[Literal["full", "swa"], bool]]:
        """The pool of every chunk, and whether it is giving the chunk up; empty without a region."""
    def clear(self, key: Key | None = None) -> None:
        """Empties a namespace for later lookups, or every namespace for `None`. Open sequences keep what they hold."""
    def set_weights(self, version: bytes | str) -> None:
        """Later requests live in namespaces of this version of the weights; at most 4,096 bytes."""
    def set_tenant_share(self, tenant: SupportsIndex, full_pages: SupportsIndex, swa_pages: SupportsIndex) -> None:
        """The most cached pages that a tenant's publications may own."""
    def drain_events(self, max: SupportsIndex | None = None) -> tuple[list[Event], int]:
        """Takes up to `max` events in order, and how many were lost before the first of them; then resync with
        `snapshot`."""
    def snapshot(self) -> Snapshot:
        """Everything lookups can find now."""
    def stats(self) -> Stats:
        """Counters since the start, and the state now."""
    def check_integrity(self) -> None:
        """Raises `IntegrityError` when the structures contradict each other. For tests: it walks everything."""
    def dump(self, format: Literal["text", "dot"] = "text") -> str:
        """The tree for people: text, or Graphviz."""
    def mtp_record(self, swa_page: SupportsIndex) -> npt.NDArray[np.uint32] | None:
        """The tokens after its end with which a published SWA page's MTP rows were made."""

# Contiguous memory: bytes, numpy, a torch CPU tensor of any dtype, another buffer; or a list or tuple of such, one
# after the other.
_Memory: TypeAlias = _Buffer | npt.NDArray[Any] | _Tensor | AbstractSequence[_Buffer | npt.NDArray[Any] | _Tensor]
# Chain key of the page, part, chain key of the first page of its extent.
_ObjectId: TypeAlias = ObjectId | tuple[bytes, int, bytes]

@final
class GCacheClient:
    """A client of a GCache cluster for engines: many nodes, read straight into the caller's memory.

    The calls of `mimo_cache.gcache.Client`, with the same results, and `put_later`, `flush`, `metrics` and
    `breakers`. Any number of threads may call; the GIL is released while they wait and copy. `mimo_cache.gcache`
    explains names, buffers, time and errors.
    """

    def __new__(
        cls,
        nodes: Iterable[Node | str] | None = None,
        *,
        nodes_file: str | os.PathLike[str] | None = None,
        tenant: SupportsIndex = 0,
        token: str | None = None,
        deadline: float = 1.0,
        buckets: SupportsIndex = 1048576,
        name: str | None = None,
        connections: SupportsIndex = 2,
        queue_bytes: SupportsIndex = 268435456,
        fast_path: bool = True,
    ) -> GCacheClient:
        """`nodes`: `Node`s or text as `name=address*weight`; or `nodes_file`: a TOML file of them, read again when it
        changes. No node is asked before the first call.

        `deadline`, seconds, is what a call may take. `connections` is the most to one node; `queue_bytes` bounds what
        `put_later` may hold; `fast_path` allows the same-host path for reads. The rest as
        `mimo_cache.gcache.connect`.
        """
    def exists(
        self,
        keys: list[bytes] | tuple[bytes, ...],
        extents: AbstractSequence[bytes] | None = None,
        lease_ms: SupportsIndex = 0,
        *,
        want: SupportsIndex = 18446744073709551615,
        deadline: float | None = None,
    ) -> list[int]:
        """For each key the mask of the parts that are there: bit p for part p; 0 where its node cannot be asked.

        With `lease_ms` they stay for so long, as far as the nodes' lease bytes go. `extents`: for each key that of
        its page; None only where every page is an extent of its own. `want`: a key that lacks any of these parts is
        also asked of the owner before the last change of membership.
        """
    def get(
        self,
        ids: Iterable[_ObjectId],
        into: AbstractSequence[_Memory] | None = None,
        *,
        deadline: float | None = None,
    ) -> list[GetResult]:
        """One result for each id. With `into`, one writable buffer for each id (or a list of buffers, to be filled
        one after the other), bytes go there as they come; what is in a buffer without a hit is anything.
        """
    def put(self, items: Iterable[PutItem | tuple[Any, ...]], *, deadline: float | None = None) -> list[PutStatus]:
        """A status for each item. Bytes of objects that are there already are not sent. `data` may be a list of
        buffers; it must not change before this returns.
        """
    def put_later(self, items: Iterable[PutItem | tuple[Any, ...]]) -> int:
        """Stores without waiting: values are copied into a bounded queue and sent in the background, or dropped and
        counted in `metrics()`. Returns how many were taken.
        """
    def flush(self, *, deadline: float | None = None) -> bool:
        """Waits until what `put_later` took was sent or dropped. False: not within the deadline."""
    def touch(self, ids: Iterable[_ObjectId], *, deadline: float | None = None) -> int:
        """Marks objects as used and returns how many are there. Give the tail of a prefix first and its head last."""
    def delete(self, ids: Iterable[_ObjectId], *, deadline: float | None = None) -> Deleted:
        """Forgets objects."""
    def verify(self, ids: Iterable[_ObjectId], *, deadline: float | None = None) -> Verified:
        """Has the nodes compare values with their CRCs and drop those that differ."""
    def stats(self, *, deadline: float | None = None) -> dict[str, NodeStats | None]:
        """For each node's name its counts and sizes, or None where it did not answer."""
    def locate(self, extent: bytes) -> str:
        """Name of the node that owns an extent, by the chain key of its first page, without asking anybody."""
    def breakers(self) -> dict[str, str]:
        """For each node's name "closed", "open" or "half-open": what its circuit breaker is."""
    def refusals(self) -> dict[str, Refused]:
        """For each node's name what it said, as a `Refused`, when it refused a call last; nodes that have answered one
        since are left out.
        """
    def metrics(self) -> dict[str, int]:
        """Everything the client has counted, by name."""
    @property
    def membership_trouble(self) -> str | None:
        """Why the list of nodes may be old; None while its file is read and makes sense."""
    def close(self) -> None:
        """Ends the connections, and with them the leases. Waits for calls under way in other threads, which end with
        their deadlines at the latest; new ones raise `Closed`.
        """
    def __enter__(self) -> GCacheClient: ...
    def __exit__(self, *_args: object) -> None: ...

# A part: address, page stride in bytes, bytes of each page, layer, and the object that keeps the memory alive.
_Part: TypeAlias = tuple[SupportsIndex, SupportsIndex, SupportsIndex, SupportsIndex, object]
# Page ids (device page, host page): an integer array of shape [n, 2] with 32 or 64 bits, or a list of tuples.
_Pairs: TypeAlias = npt.NDArray[np.integer[Any]] | _Buffer | _Tensor | AbstractSequence[tuple[int, int]]

@final
class DeviceLayout:
    """Where the pages of a cache lie in device memory. `mimo_cache.tiers.device_layout` makes one from tensors.

    `full` and `swa`: parts `(address, page_stride, bytes, layer, owner)` with ascending layers. Page i of a part is
    `bytes` bytes at `address + i * page_stride`; page 0 is the null page, which is never touched. `owner` keeps the
    memory alive and is what `CopyJob.layer` returns. The memory must be writable by this process at these addresses,
    without a device in between: nobody can check that.
    """

    def __new__(
        cls,
        *,
        full: AbstractSequence[_Part] | None = None,
        swa: AbstractSequence[_Part] | None = None,
        full_pages: SupportsIndex = 0,
        swa_pages: SupportsIndex = 0,
    ) -> DeviceLayout: ...
    @property
    def layers(self) -> list[int]:
        """Layers that have parts, ascending."""
    @property
    def full_pages(self) -> int:
        """Pages of the full group in device memory, the null page included; 0 without the group."""
    @property
    def swa_pages(self) -> int:
        """Pages of the SWA group in device memory, the null page included; 0 without the group."""
    @property
    def digest(self) -> bytes:
        """32 bytes that stand for the order of bytes in host pages: layers and sizes of all parts."""
    @property
    def full_page_bytes(self) -> int:
        """Bytes of a full page, over all parts."""
    @property
    def swa_page_bytes(self) -> int:
        """Bytes of an SWA page, over all parts."""

@final
class HostRegion:
    """Memory of the host tier: a pool of whole pages for each group of a layout, in one mapping that is taken in full,
    zeroed.

    `full_pages`, `swa_pages`: usable pages; ids are 1 to that, and the null page 0 has no memory. A page is the
    concatenation of its parts in the order of the layout, rounded up to 4,096 bytes. `hugepages`: "auto" asks the
    system for them, "off" does not. The memory is given back when the region, its views and all jobs are gone. Raises
    `HostMemoryError` where it cannot be had.
    """

    def __new__(
        cls,
        layout: DeviceLayout,
        *,
        full_pages: SupportsIndex = 0,
        swa_pages: SupportsIndex = 0,
        hugepages: Literal["auto", "off"] = "auto",
    ) -> HostRegion: ...
    def page(self, group: Literal["full", "swa"], id: SupportsIndex, *, writable: bool = False) -> memoryview:
        """The bytes of a page where they lie; `writable` for tests and for what fetches pages from elsewhere. Must not
        meet a job that names the page.
        """
    def address(self, group: Literal["full", "swa"], id: SupportsIndex) -> tuple[int, int]:
        """Address and bytes of a page, valid while the region lives."""
    def register_cuda(self) -> None:
        """Page-locks the memory for CUDA. Raises `CudaError` where there is no CUDA runtime or it refuses."""
    @property
    def bytes(self) -> int:
        """Bytes of all memory."""
    @property
    def full_pages(self) -> int:
        """Usable full pages."""
    @property
    def swa_pages(self) -> int:
        """Usable SWA pages."""
    @property
    def full_page_bytes(self) -> int:
        """Bytes of a full page: a multiple of 4,096."""
    @property
    def swa_page_bytes(self) -> int:
        """Bytes of an SWA page: a multiple of 4,096."""

@final
class KvCopier:
    """Copies pages between the device memory of a layout and a host region, on threads of its own.

    `threads`: 1 to 64. `max_jobs`, `max_bytes`: what may be in flight; a job beyond it raises `CopyBusy` and copies
    nothing. Jobs run in the order of their submission, loads before saves. While a job runs nobody else writes what it
    reads or touches what it writes.
    """

    def __new__(
        cls,
        layout: DeviceLayout,
        region: HostRegion,
        *,
        threads: SupportsIndex = 1,
        max_jobs: SupportsIndex = 64,
        max_bytes: SupportsIndex | None = None,
    ) -> KvCopier: ...
    def load(self, full: _Pairs | None = None, swa: _Pairs | None = None) -> CopyJob:
        """Copies pages from host to device memory, layer by layer: `full` and `swa` list (device page, host page), as
        an integer array of shape [n, 2] or a list of tuples. Raises `InvalidArgument` or `CopyBusy`, with nothing
        copied.
        """
    def save(self, full: _Pairs | None = None, swa: _Pairs | None = None) -> CopyJob:
        """Copies pages from device to host memory; arguments and errors as `load`."""
    def in_flight(self) -> tuple[int, int]:
        """Jobs and bytes in flight."""
    def close(self) -> None:
        """Cancels what is in flight and ends the threads. Calls after it raise `CopierClosed`; waits raise
        `CopyCancelled`.
        """
    def __enter__(self) -> KvCopier: ...
    def __exit__(self, *_args: object) -> None: ...

@final
class TierPlanner:
    """Decides what goes from a cache down to a host tier and what comes back; copies nothing.

    - `full_pages`, `swa_pages`: pages of host memory, ids from 1. 0 for a group that the cache does not have.
    - `write`: when a prefix goes down, "through" (as soon as it is computed), "back" (when newer ones push it out) or
      "hit<n>" (when it was matched n times).
    - `max_saving`: pages on their way down at once.
    - `layout`: 32 bytes for the order of bytes in host pages (`DeviceLayout.digest`), part of the pages' names.

    A cache has one planner at most. `clear` and `set_weights` of the cache hold for the host tier as well. What was
    fetched is told by `fetched`, what was saved by `saved`, whatever became of it: until then both ends are leased.
    """

    def __new__(
        cls,
        cache: PrefixCache,
        *,
        full_pages: SupportsIndex = 0,
        swa_pages: SupportsIndex = 0,
        write: str = "through",
        max_saving: SupportsIndex = 4096,
        layout: bytes | None = None,
    ) -> TierPlanner: ...
    def usable(self, tokens: _Tokens, key: Key | None = None, spans: _Spans | None = None) -> int:
        """The usable prefix of cache and host tier together, in tokens. Neither lease nor recency."""
    def awaits(self, tokens: _Tokens, key: Key | None = None, spans: _Spans | None = None) -> int | None:
        """The number of a fetch on its way whose prefix a request with these tokens would wait for: opened when that
        fetch is over it finds the prefix in the cache. `None`: there is none.
        """
    def fetch(self, seq: Sequence) -> TierFetch | None:
        """What the host tier has for an open sequence beyond what it started from. The sequence stands at
        `TierFetch.end` at once: it may reserve and be filled, and commit after `fetched`. `None`: there is nothing
        more, or no room for it. Raises `SequenceStateError` for a sequence that has reserved slots, waits for a fetch,
        is parked or has ended.
        """
    def fetched(self, id: SupportsIndex, ok: bool) -> bool:
        """A fetch is over. `ok`: its bytes are there and its rebuilds were run; else nothing of it is written any more,
        and its sequence stands where it stood before. True when the sequence goes on from it; false also when it has
        ended. Raises `StepOrderError` for a number that is no fetch on its way.
        """
    def save(
        self,
        tokens: _Tokens,
        key: Key | None = None,
        spans: _Spans | None = None,
        tenant: SupportsIndex = 0,
        start: SupportsIndex = 0,
        again: bool = False,
    ) -> TierSave | None:
        """What of a prefix goes down first, if anything does; `saved` tells what comes after it. To be asked when a
        prompt is computed and when its sequence ends, after the steps that wrote it are retired; `tenant` owns it
        below. `start`: the tokens it was opened with; boundaries before are not offered again. `again`: this request
        was told before; else it counts as a use of what the host tier has of its prompt.
        """
    def saved(self, id: SupportsIndex, ok: bool) -> TierSave | None:
        """A save is over; `ok`: its bytes are there, else nothing of it is written any more. What goes down next of the
        same prompt, if anything does. Raises `StepOrderError` for a number that is no save on its way.
        """
    def write_back(self) -> tuple[TierSave, npt.NDArray[np.uint32], Key, list[tuple[int, int, bytes]]] | None:
        """With `write` "back": what goes down because newer ones push it out of the cache, if anything has to, and of
        which prompt it is: (save, tokens, key, spans). To be asked after every step.
        """
    def used(self, tokens: _Tokens, key: Key | None = None, spans: _Spans | None = None) -> None:
        """A request that `save` is not told of was served: what the host tier has of its prompt counts as used."""
    def moving(self) -> tuple[list[int], list[int], list[int]]:
        """Numbers of the fetches, saves and receives on their way, ascending."""
    def names(self, tokens: _Tokens, key: Key | None = None, spans: _Spans | None = None) -> list[bytes]:
        """Names of the whole pages of a prompt in a tier that processes share, 32 bytes each, in the namespace of
        now.
        """
    def reachable(
        self,
        tokens: _Tokens,
        start: SupportsIndex,
        masks: AbstractSequence[int],
        key: Key | None = None,
        spans: _Spans | None = None,
    ) -> int | None:
        """The largest boundary, in tokens and above `usable`, that cache, host tier and a tier below make resumable
        together; `None` where there is none. `masks`: what the tier below has of the logical pages from `start` on,
        bit 0 the full page, bit 32 the SWA page.
        """
    def receive(
        self,
        tokens: _Tokens,
        boundary: SupportsIndex,
        name: bytes,
        key: Key | None = None,
        spans: _Spans | None = None,
        tenant: SupportsIndex = 0,
    ) -> TierReceive | None:
        """Begins to bring the host tier up to `boundary` (tokens) with pages of another process. `name`: that of the
        page which ends there, from when its bytes were asked for. `None`: the namespace is another one by now, the
        host tier has it, it is on its way, or there is no room.
        """
    def received(self, id: SupportsIndex, records: AbstractSequence[AbstractSequence[int]] | None) -> None:
        """A receive is over. `records`: of each of `TierReceive.swa`, and all bytes are there; `None`: they did not
        come, and nothing of it is written any more. Raises `StepOrderError` for a number that is no receive on its
        way, and `InvalidArgument` for records that do not fit; it goes on then.
        """
    def lend_down(
        self, tokens: _Tokens, boundary: SupportsIndex, key: Key | None = None, spans: _Spans | None = None
    ) -> TierLoan | None:
        """Leases what the host tier has of a boundary (tokens), to be read until `returned`. `None`: it is not there,
        or open sequences were promised the room.
        """
    def returned(self, id: SupportsIndex) -> None:
        """Nothing reads the pages of a loan any more. Raises `StepOrderError` for a number that is no loan."""
    def kept(
        self, tokens: _Tokens, hits: SupportsIndex, key: Key | None = None, spans: _Spans | None = None
    ) -> list[int]:
        """The deepest 64 boundaries of a prompt (tokens) that the host tier keeps, of them those that were matched
        `hits` times.
        """
    def set_cost(self, token: float = 0.0, full_page: float = 0.0, swa_page: float = 0.0, load: float = 0.0) -> None:
        """What computing a token and bringing up pages cost, in nanoseconds: a fetch that costs more than the tokens it
        saves is not begun. All 0, as at the start: whatever can be fetched is.
        """
    def stats(self) -> TierStats:
        """Counters of the moves."""
    def host_stats(self) -> Stats:
        """The host tier's own counters."""
    def check_integrity(self) -> None:
        """Raises `IntegrityError` when the structures of the host tier contradict each other. For tests: it walks
        everything.
        """
    @property
    def full_pages(self) -> int:
        """Full pages of host memory."""
    @property
    def swa_pages(self) -> int:
        """SWA pages of host memory."""
    @property
    def weights(self) -> bytes:
        """The version of the weights that the cache was told, part of the names of pages; empty at first."""

@final
class TierFetch:
    """Pages that come up for a sequence."""

    @property
    def id(self) -> int:
        """Its number."""
    @property
    def full(self) -> npt.NDArray[np.uint32]:
        """Full pages to copy, uint32 [n, 2]: (device page, host page)."""
    @property
    def swa(self) -> npt.NDArray[np.uint32]:
        """SWA pages to copy, uint32 [n, 2]: (device page, host page)."""
    @property
    def rebuilds(self) -> list[tuple[int, int, int, int]]:
        """(sequence id, SWA page, first position, end position): MTP rows to rebuild when the bytes are there, as
        `Plan.rebuilds`.
        """
    @property
    def start(self) -> int:
        """Tokens that the sequence had without it."""
    @property
    def end(self) -> int:
        """Tokens that it has with it."""

@final
class TierSave:
    """Pages that go down."""

    @property
    def id(self) -> int:
        """Its number."""
    @property
    def full(self) -> npt.NDArray[np.uint32]:
        """Full pages to copy, uint32 [n, 2]: (device page, host page)."""
    @property
    def swa(self) -> npt.NDArray[np.uint32]:
        """SWA pages to copy, uint32 [n, 2]: (device page, host page)."""
    @property
    def boundary(self) -> int:
        """The boundary that it makes resumable in the host tier, in tokens."""

@final
class TierReceive:
    """Pages that come to the host tier from another process."""

    @property
    def id(self) -> int:
        """Its number."""
    @property
    def full_pairs(self) -> npt.NDArray[np.uint32]:
        """Full pages to copy down from the cache, uint32 [n, 2]: (device page, host page)."""
    @property
    def swa_pairs(self) -> npt.NDArray[np.uint32]:
        """SWA pages to copy down from the cache, uint32 [n, 2]: (device page, host page)."""
    @property
    def full(self) -> list[tuple[int, int]]:
        """Full pages to write from elsewhere: (logical page, host page)."""
    @property
    def swa(self) -> list[tuple[int, int]]:
        """SWA pages to write from elsewhere: (logical page, host page)."""
    @property
    def boundary(self) -> int:
        """The boundary that they make resumable in the host tier, in tokens."""

@final
class TierLoan:
    """Pages of the host tier under a lease."""

    @property
    def id(self) -> int:
        """Its number."""
    @property
    def names(self) -> list[bytes]:
        """Names of all pages before the boundary, in order, 32 bytes each."""
    @property
    def full(self) -> list[tuple[int, int]]:
        """Full pages: (logical page, host page)."""
    @property
    def swa(self) -> list[tuple[int, int]]:
        """SWA pages of the window: (logical page, host page)."""
    @property
    def records(self) -> list[list[int]]:
        """Of each SWA page the tokens after it with which its MTP rows were made."""

@final
class TierStats:
    """What came of a planner's moves."""

    def as_dict(self) -> dict[str, Any]:
        """All numbers by name, nested ones as dicts."""
    @property
    def fetches(self) -> int:
        """Fetches that were begun."""
    @property
    def fetches_failed(self) -> int:
        """Of them, those that brought nothing."""
    @property
    def fetched_tokens(self) -> int:
        """Tokens that sequences went on from instead of computing them."""
    @property
    def fetched_full(self) -> int:
        """Full pages that came up."""
    @property
    def fetched_swa(self) -> int:
        """SWA pages that came up."""
    @property
    def declined(self) -> int:
        """Fetches that would have cost more than computing."""
    @property
    def no_room_above(self) -> int:
        """Fetches for which a pool had no room."""
    @property
    def saves(self) -> int:
        """Boundaries that went down."""
    @property
    def saves_failed(self) -> int:
        """Of them, those that failed."""
    @property
    def saved_full(self) -> int:
        """Full pages that went down."""
    @property
    def saved_swa(self) -> int:
        """SWA pages that went down."""
    @property
    def no_room_below(self) -> int:
        """Boundaries that did not go down for want of room, or because too many pages were on their way."""
    @property
    def receives(self) -> int:
        """Boundaries that came from another process."""
    @property
    def receives_failed(self) -> int:
        """Of them, those that failed."""
    @property
    def received_full(self) -> int:
        """Full pages that came from another process."""
    @property
    def received_swa(self) -> int:
        """SWA pages that came from another process."""
    @property
    def lent(self) -> int:
        """Boundaries that were lent for writing to the tier below."""
    @property
    def lending(self) -> int:
        """Of them, those that are lent now."""
    @property
    def saving_pages(self) -> int:
        """Pages on their way down now."""
    @property
    def fetching(self) -> int:
        """Fetches on their way now."""
    @property
    def dirty_pages(self) -> int:
        """Pages that wait to be written back."""
    @property
    def gone(self) -> int:
        """Boundaries that the cache had dropped when their turn to go down came."""

@final
class CopyJob:
    """One job of a copier. Dropping it does not cancel the job."""

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the job is over. False: not within `timeout` seconds. Raises `CopyCancelled` or `CopyFailed`;
        nothing of the job is written any more then.
        """
    def wait_layer(self, layer: SupportsIndex, timeout: float | None = None) -> bool:
        """Waits until all parts of the layers up to `layer` are copied. False: not within `timeout` seconds. Raises as
        `wait`, and `InvalidArgument` for a save.
        """
    def layer(self, layer: SupportsIndex, timeout: float | None = None) -> tuple[Any, ...]:
        """Waits as `wait_layer` and returns what the layout was given for the layer, full before SWA. Raises
        `TimeoutError` after `timeout` seconds, and `InvalidArgument` for a layer that the layout does not have.
        """
    def done(self) -> bool:
        """Whether the job is over, however it ended."""
    def cancel(self) -> None:
        """Asks the job to end after the pages under way; `wait` tells when it has, and whether it was done before."""
    @property
    def outcome(self) -> Literal["pending", "done", "cancelled", "failed"]:
        """How the job stands."""
    @property
    def direction(self) -> Literal["load", "save"]:
        """Where its bytes go: "load" to device memory, "save" to host memory."""
    @property
    def layers(self) -> list[int]:
        """Layers of a load, ascending; empty for a save."""
    @property
    def copied_bytes(self) -> int:
        """Bytes copied so far."""
    @property
    def bytes(self) -> int:
        """Bytes of the job."""
    @property
    def ready_layers(self) -> int:
        """Layers that are ready, counted from the first; of a save 0 or 1."""
    def times(self) -> list[tuple[int, int, int | None, int]]:
        """For each layer of a load (layer, ns spent on copying it over all threads, ns from submission until it was
        ready or None, ns spent in waits for it over all callers).
        """

DEFAULT_POLICY: str
DEFAULT_RETENTION: str
POLICIES: tuple[str, ...]

def replay(
    trace: str | os.PathLike[str],
    *,
    model: str,
    capacity: str,
    swa_share: float | None = None,
    split: Literal["fixed", "adaptive"] = "fixed",
    split_chunks: SupportsIndex = 64,
    retention: str = "prompt_end+branch+sup2+stride8192+dense2048:4096",
    policy: str = "hit_density",
    page_size: SupportsIndex = 64,
    chunk: SupportsIndex = 8192,
    seed: SupportsIndex = 0,
    skip_bad: bool = False,
    samples: SupportsIndex = 0,
    prefill_rate: float | None = None,
    decode_rate: float = 50.0,
    host: float | None = None,
    host_write: str = "through",
    gcache: float | None = None,
    gcache_write: str = "through",
    without: str = "",
    progress: Callable[[int, int, int, int], object] | None = None,
) -> dict[str, Any]:
    """Replays a trace and returns what it found as numbers; `misses` is a dict of tokens by cause.

    `progress(done, total, prompt_tokens, hit_tokens)` is called about ten times a second; what it raises ends the
    replay. `swa_share=None`: 0 for a model without an SWA group, else 0.1. With `split="adaptive"` it is only the
    start, the memory is cut into about `split_chunks` chunks (2 to 2,048; small pools have fewer), and the key `split`
    says where they went. `skip_bad`: lines that cannot be used are counted and passed over. `samples`: points in time
    of the result's `samples`. With `prefill_rate` (tokens a second) requests overlap, and each stays open until its
    output has come at `decode_rate`. `host`, `gcache`: pages of a host tier below, and of GCache below that, as
    multiples of the cache's; prefixes go down to them by `host_write` and `gcache_write`, moves take no time, and the
    keys `host` and `gcache` say what moved. `without`: rules between tiers that are off, of mixed, difference, heal and
    touch. `docs/cli.md` names every key.
    """

def crc32c(data: _Buffer, value: SupportsIndex = 0) -> int:
    """CRC32C (Castagnoli, as in iSCSI) of a buffer of bytes, continued from `value`."""

def optimum(
    trace: str | os.PathLike[str],
    *,
    capacities: list[int] | tuple[int, ...],
    page_size: SupportsIndex = 64,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """What no cache of one pool can beat, and what leaf-first LRU gets, at each of `capacities` (pages of `page_size`
    tokens): lists of hit tokens `belady` and `lru`; `endless`, the hit tokens of an infinite cache; `prompt_tokens`;
    and `reuse_tokens` and `reuse_ms`, tokens by powers of two of the distance between their uses. Holds the whole
    trace."""

def explain(
    trace: str | os.PathLike[str],
    *,
    request: SupportsIndex | None = None,
    session: SupportsIndex | None = None,
    model: str,
    capacity: str,
    swa_share: float | None = None,
    retention: str = "prompt_end+branch+sup2+stride8192+dense2048:4096",
    policy: str = "hit_density",
    page_size: SupportsIndex = 64,
    chunk: SupportsIndex = 8192,
    seed: SupportsIndex = 0,
    skip_bad: bool = False,
    prefill_rate: float | None = None,
    decode_rate: float = 50.0,
    progress: Callable[[int, int, int, int], object] | None = None,
) -> list[dict[str, Any]]:
    """The stories of one request (`request`, from 1) or of a session's requests (`session`) as a list of dicts; the
    trace is replayed up to them. The other arguments are those of `replay`."""

@final
class BlockIds:
    """Turns block hashes, or tokens, into the ids of a trace: an id stands for a block and all blocks before it.

    At most `most` ids are given; about 24 bytes each.
    """

    def __new__(cls, most: SupportsIndex = 67108864) -> BlockIds: ...
    def of_hashes(self, hashes: Iterable[int]) -> list[list[int]]:
        """The runs [[first id, count], ...] of a prompt whose blocks have these hashes (of at most 64 bits each)."""
    def of_tokens(self, tokens: bytes, block_size: int, salt: int = 0) -> list[list[int]]:
        """The runs of a prompt's full blocks of `block_size` tokens (4 bytes a token). `salt` separates prompts that
        must share nothing."""
    def __len__(self) -> int:
        """Distinct ids so far."""
