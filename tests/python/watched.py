"""Engines that tests look into: one that records every row of a request that runs alone, and one that compares each row
it reads with those, on pools where everything that may not be read is NaN."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from key_vectors import chain, root_key
from mimo_cache import Key
from mimo_cache.runner import Engine, Output, SamplingParams
from mimo_cache.runner.lane import Lane

T = TypeVar("T")
SALTS = (b"", b"other")
NEAR = 1e-4


@dataclass
class Record:
    """What a request makes when it runs alone in an empty cache. tokens and logits of its completion; rows by position:
    full and swa (K and V of all trunk layers of the group), hidden, and mtp[k] of each head."""

    tokens: list[int] = field(default_factory=list)
    logits: list[Any] = field(default_factory=list)
    full: Any = None
    swa: Any = None
    hidden: Any = None
    mtp: list[Any] = field(default_factory=list)


class Rows(Engine):
    """An engine whose rows can be looked at when a step has computed them and before they are committed."""

    def core(self, call: Callable[..., T], *args: Any, **named: Any) -> T:
        name = getattr(call, "__name__", "")
        if name == "commit_many":
            self.computed([self.lane_of(seq) for seq in args[0]])
        made = super().core(call, *args, **named)
        if name == "fill":
            self.filled([self.lane_of(seq) for seq in args[1]])
        return made

    def lane_of(self, seq: Any) -> Lane:
        return next(lane for lane in self.running if lane.seq is seq)

    def filled(self, lanes: Sequence[Lane]) -> None:
        """Tables are there; neither plan nor trunk has run."""

    def computed(self, lanes: Sequence[Lane]) -> None:
        """Rows are there; lanes are ahead of the cache, which does not know them."""

    def table(self, lane: Lane, group: str) -> tuple[int, Any]:
        """First logical page, and page ids from there."""
        if group == "full":
            return 0, lane.seq.full_table().astype(np.int64)
        base, ids = lane.seq.swa_table()
        return int(base), ids.astype(np.int64)

    def gather(self, lane: Lane, what: str, lo: int, hi: int) -> Any:
        """Stored rows [hi - lo, elements] of positions: of "full", "swa", "hidden", or of an MTP head by its number."""
        pools = self.model.pools
        base, ids = self.table(lane, "full" if what == "full" else "swa")
        where = np.arange(lo, hi)
        pages, at = torch.from_numpy(ids[where // self.page - base]), torch.from_numpy(where % self.page)
        if what == "hidden":
            return pools.hidden[pages, at].clone()
        if what == "full":
            tensors = (pools.full_k, pools.full_v)
        else:
            first = 0 if what == "swa" else pools.swa_layers + int(what)
            last = pools.swa_layers if what == "swa" else first + 1
            tensors = (pools.swa_k[first:last], pools.swa_v[first:last])
        return torch.cat([t[:, pages, at].transpose(0, 1).reshape(hi - lo, -1) for t in tensors], 1)

    @property
    def groups(self) -> list[str]:
        """Groups that the cache has."""
        return ["full"] * (self.cache.full_pages > 0) + ["swa"] * (self.cache.swa_pages > 0)


class Alone(Rows):
    """Records the rows of the only request it serves."""

    def record(self, tokens: Sequence[int], params: SamplingParams) -> Record:
        """Runs one request in a cache that is empty."""
        self.made = Record(mtp=[None] * self.heads)
        self.add(np.array(tokens), params)
        while self.busy:
            for output in self.step():
                self.made.tokens.append(output.token)
                self.made.logits.append(output.logits)
        return self.made

    def computed(self, lanes: Sequence[Lane]) -> None:
        made = self.made
        for lane in lanes:
            for what in self.groups:
                self._extend(lane, what, lane.committed)
            if "swa" in self.groups:
                self._extend(lane, "hidden", lane.committed)
            for k in range(self.heads):
                old = made.mtp[k]
                lo, hi = 0 if old is None else len(old), lane.final(k)
                if lo < hi:
                    rows = self.gather(lane, str(k), lo, hi)
                    made.mtp[k] = rows if old is None else torch.cat((old, rows))

    def _extend(self, lane: Lane, what: str, end: int) -> None:
        old = getattr(self.made, what)
        rows = self.gather(lane, what, 0 if old is None else len(old), end)
        setattr(self.made, what, rows if old is None else torch.cat((old, rows)))


@dataclass
class Told:
    """A request that runs, and what it makes alone. wrong: its tokens have left the record, at a tie that decides."""

    tokens: list[int]
    params: SamplingParams
    record: Record
    salt: int
    made: list[int] = field(default_factory=list)
    left: bool = False


class Watched(Rows):
    """Compares with the record whatever a step has read or written, and poisons what no step may read."""

    def watch(self) -> None:
        """Begins; the pools are full of NaN and the cache is empty."""
        self.told: dict[int, Told] = {}
        self.places: dict[bytes, set[int]] = {}
        self.seen: list[tuple[int, list[int], list[int]]] = []
        self.generation = 0
        self.detached: set[int] = set()
        self.holders: set[int] = set()
        self.compared = 0
        self.writable: dict[str, set[int]] = {}
        kernels = self.model.kernels
        self.write, kernels.write = kernels.write, self.written  # type: ignore[method-assign]

    # --- requests -------------------------------------------------------------------------------------------------

    def tell(self, told: Told, store: bool) -> int:
        """Queues a request."""
        uid = self.add(np.array(told.tokens), told.params, key=Key(salt=SALTS[told.salt]), store=store)
        self.told[uid] = told
        return uid

    def advance(self) -> list[Output]:
        """One step, with everything that must hold behind it."""
        outputs = self.step()
        exact = self.model.kernels.bit_exact
        for output in outputs:
            told = self.told[output.uid]
            if told.left:
                continue
            at = len(told.made)
            told.made.append(output.token)
            if exact:
                assert output.token == told.record.tokens[at], "another token than uncached"
                assert torch.equal(output.logits, told.record.logits[at]), "other bits of logits than uncached"
            elif output.token == told.record.tokens[at]:
                gap = (output.logits - told.record.logits[at]).abs().max()
                assert gap <= NEAR, f"logits differ by {gap}"
            else:
                first, second = told.record.logits[at].topk(2).values.tolist()
                assert first - second <= NEAR, f"another token than uncached, whose lead is {first - second}"
                told.left = True
        self.settle()
        return outputs

    def clear(self) -> None:
        """Empties every namespace."""
        self.settle()
        # Sequences that are open keep what they lease, and tables show that only as far as they have come.
        self.detached |= {page for pages in self.places.values() for page in pages}
        self.holders |= {lane.uid for lane in self.running}
        self.cache.clear()
        self.generation += 1
        self.places.clear()
        self.settle()

    # --- rows -----------------------------------------------------------------------------------------------------

    def computed(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            told, made = self.told[lane.uid], lane.ids[lane.prompt : lane.known].tolist()
            if not told.left and (self.model.kernels.bit_exact or made == told.record.tokens[: len(made)]):
                self._compare(lane, told.record)
        self._see()

    def _compare(self, lane: Lane, record: Record) -> None:
        """Every row that this step could read or wrote is the record's."""
        window = self.cache.window
        low = max(0, lane.committed - lane.rows - window)
        ranges = {"full": (0, lane.committed)} if "full" in self.groups else {}
        if "swa" in self.groups:
            ranges |= {"swa": (low, lane.committed), "hidden": (low, lane.committed)}
        for what, (lo, hi) in ranges.items():
            self._same(lane, what, lo, hi, getattr(record, what))
        for k in range(self.heads):
            # The last rows of a head need tokens that are not known yet.
            if low < lane.final(k):
                self._same(lane, str(k), low, lane.final(k), record.mtp[k])

    def _same(self, lane: Lane, what: str, lo: int, hi: int, want: Any) -> None:
        found, want = self.gather(lane, what, lo, hi), want[lo:hi]
        good = torch.equal(found, want) if self.model.kernels.bit_exact else bool(((found - want).abs() <= NEAR).all())
        if not good:
            rows = (~((found - want).abs() <= (0 if self.model.kernels.bit_exact else NEAR))).any(1).nonzero().flatten()
            name = f"MTP head {what}" if what.isdigit() else what
            raise AssertionError(f"rows {(rows + lo).tolist()} of {name} are not those of uncached; {lane.seq}")
        self.compared += hi - lo

    # --- poison ---------------------------------------------------------------------------------------------------

    def filled(self, lanes: Sequence[Lane]) -> None:
        """Rows that a step will write hold NaN until it does, and so does the null page."""
        pools = self.model.pools
        self.writable = {group: set(range(self.page)) for group in self.groups}
        for lane in lanes:
            end = lane.committed + lane.rows
            for group, tensors, first in (
                ("full", (pools.full_k, pools.full_v), max(lane.committed, lane.seq.full_write_from)),
                ("swa", (pools.swa_k, pools.swa_v, pools.hidden.unsqueeze(0)), lane.committed),
            ):
                if group not in self.groups or first >= end:
                    continue
                base, ids = self.table(lane, group)
                last = (-(-end // self.page)) * self.page
                where = np.arange(first, last)
                pages, at = torch.from_numpy(ids[where // self.page - base]), torch.from_numpy(where % self.page)
                for tensor in tensors:
                    tensor[:, pages, at] = float("nan")
                self.writable[group] |= set((pages * self.page + at)[: end - first].tolist())
        self._see()

    def written(self, pool: Any, slots: Any, values: Any) -> None:
        """Rows go to the null page, or to pages of the sequence's own: those of the tree are never written."""
        full = pool.untyped_storage().data_ptr() in (
            self.model.pools.full_k.untyped_storage().data_ptr(),
            self.model.pools.full_v.untyped_storage().data_ptr(),
        )
        wrong = set(slots.tolist()) - self.writable["full" if full else "swa"]
        assert not wrong, f"slots {sorted(wrong)} are not this step's to write"
        self.write(pool, slots, values)

    def settle(self) -> None:
        """Checks the cache, and overwrites every page that neither a sequence nor the tree holds."""
        self.cache.check_integrity()
        self._see()
        if any(lane.fetch is not None for lane in self.running):
            return  # the window that such a lane may go back to is in no table
        held: dict[str, set[int]] = {"full": set(), "swa": set()}
        for lane in self.running:
            for group in self.groups:
                held[group] |= {int(page) for page in self.table(lane, group)[1]}
        published = self._published()
        self.holders &= {lane.uid for lane in self.running}
        held["full"] |= set().union(self.detached if self.holders else set(), *published.values())
        stats, pools = self.cache.stats(), self.model.pools
        records = (self.cache.mtp_record(page) for page in range(1, self.cache.swa_pages + 1))
        held["swa"] |= {page for page, record in enumerate(records, 1) if record is not None}
        for group, pool in (("full", stats.full), ("swa", stats.swa)):
            if group in self.groups and not self.generation:  # pages of cleared namespaces are cached and not found
                assert len(held[group] - {0}) >= pool.private + pool.cached, f"a page of {group} is held and not known"
        self._poison((pools.full_k, pools.full_v), self.cache.full_pages, held["full"])
        self._poison((pools.swa_k, pools.swa_v, pools.hidden.unsqueeze(0)), self.cache.swa_pages, held["swa"])

    def _poison(self, tensors: Sequence[Any], pages: int, held: set[int]) -> None:
        dead = torch.tensor([page for page in range(pages + 1) if page == 0 or page not in held])
        for tensor in tensors:
            if tensor.shape[0]:
                tensor[:, dead] = float("nan")

    def _see(self) -> None:
        """Notes which page ids stand for which tokens."""
        for lane in self.running:
            if "full" in self.groups:
                told = self.told[lane.uid]
                self.seen.append((told.salt, lane.ids[: lane.known].tolist(), self.table(lane, "full")[1].tolist()))

    def _published(self) -> dict[bytes, set[int]]:
        """For each full page that lookups find, the page ids that it may have: the API tells keys and no ids."""
        found = {page.key for page in self.cache.snapshot().pages if page.full}
        geometry = self.cache.geometry
        assert geometry is not None
        for salt, tokens, table in self.seen:
            root = root_key(geometry.fingerprint, b"", b"", SALTS[salt], self.generation)
            for key, page in zip(chain(root, tokens, [], self.page), table, strict=False):
                if page:
                    self.places.setdefault(key, set()).add(page)
        self.seen.clear()
        self.places = {key: pages for key, pages in self.places.items() if key in found}
        assert self.places.keys() == found, "a page was published that no sequence had"
        return self.places
