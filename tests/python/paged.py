"""Sequences on a model's pools without a cache: tables with shuffled page ids, and NaN wherever nothing may be read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mimo_cache.kernels.rows import MtpWork, Work
from mimo_cache.runner import Model
from oracle import Oracle
from small_models import distance


@dataclass
class Seq:
    """A sequence. done: rows computed; ready[k]: MTP rows of head k below it are final. Rows are collected as they are
    made: logits and hidden one entry a position, kv[layer] and mtp[head] pairs (K, V), drafts[head] logits."""

    tokens: list[int]
    ready: list[int]
    done: int = 0
    full: list[int] = field(default_factory=list)
    swa: dict[int, int] = field(default_factory=dict)
    logits: list[Any] = field(default_factory=list)
    hidden: list[Any] = field(default_factory=list)
    kv: dict[int, list[Any]] = field(default_factory=dict)
    mtp: dict[int, list[Any]] = field(default_factory=dict)
    drafts: dict[int, list[Any]] = field(default_factory=dict)


class Paged:
    """Runs sequences on one model."""

    def __init__(self, model: Model, seed: int = 0) -> None:
        self.model, self.pools = model, model.pools
        self.page, self.window = model.pools.page_size, model.config.window_keys - 1
        self.heads = model.config.mtp_heads
        source = np.random.default_rng(seed)
        pages = model.pools.full_k.shape[1], model.pools.swa_k.shape[1]
        self.free_full, self.free_swa = ([int(p) for p in source.permutation(np.arange(1, n))] for n in pages)
        places: dict[str, int] = {"full": 0, "swa": 0}
        self.layers: list[tuple[str, int]] = []
        for kind in model.config.layer_kinds:
            self.layers.append((kind, places[kind]))
            places[kind] += 1

    def start(self, tokens: Sequence[int]) -> Seq:
        """A sequence whose tokens are all known."""
        return Seq(list(tokens), [0] * self.heads)

    def step(self, chunks: Sequence[tuple[Seq, int]], *, draft: bool = False) -> None:
        """Computes the next rows of each sequence in one step, and its MTP rows; with `draft` their logits as well."""
        works = [self._work(seq, n) for seq, n in chunks]
        for (seq, n), work, logits in zip(chunks, works, self.model.forward(works), strict=True):
            assert logits.shape == (n, self.model.config.vocab_size)
            seq.logits += list(logits)
            self._collect(seq, work)
        self._mtp([seq for seq, _ in chunks], works, draft)
        for seq, _ in chunks:
            self._forget(seq)

    def run(self, tokens: Sequence[int], chunks: Sequence[int], *, draft: bool = False) -> Seq:
        """One sequence alone, in the given chunks."""
        seq = self.start(tokens)
        for n in chunks:
            self.step([(seq, n)], draft=draft)
        return seq

    def _work(self, seq: Seq, n: int) -> Work:
        lo, end, page = seq.done, seq.done + n, self.page
        last = -(-end // page)
        while self.free_full and len(seq.full) < last:
            seq.full.append(self.free_full.pop())
        low = max(0, lo - self.window) // page
        if self.free_swa:
            for logical in range(lo // page, last):
                if logical not in seq.swa:
                    seq.swa[logical] = self.free_swa.pop()
        swa = [seq.swa[logical] for logical in range(low, last)] if seq.swa else []
        seq.done = end
        ids = np.array(seq.tokens[lo:end], np.int64)
        return Work(lo, ids, np.array(seq.full, np.int64), low, np.array(swa, np.int64), lo, lo, logits=n)

    def _collect(self, seq: Seq, work: Work) -> None:
        where = np.arange(work.first, work.end)
        for layer, (kind, row) in enumerate(self.layers):
            seq.kv.setdefault(layer, []).extend(self.rows(seq, kind, row, where))
        if seq.swa:
            pages = np.array([seq.swa[int(p)] for p in where // self.page])
            seq.hidden += list(self.pools.hidden[pages, where % self.page].clone())

    def rows(self, seq: Seq, kind: str, row: int, where: Any) -> list[Any]:
        """(K, V) of positions, copied."""
        table = dict(enumerate(seq.full)) if kind == "full" else seq.swa
        k, v = (self.pools.full_k, self.pools.full_v) if kind == "full" else (self.pools.swa_k, self.pools.swa_v)
        pages, at = np.array([table[int(p)] for p in where // self.page], np.int64), where % self.page
        return list(zip(k[row][pages, at].clone(), v[row][pages, at].clone(), strict=True))

    def _mtp(self, seqs: Sequence[Seq], works: Sequence[Work], draft: bool) -> None:
        if not self.heads:
            return
        writes, ends = [], []
        for seq in seqs:
            ends.append([max(0, min(seq.done, len(seq.tokens) - k - 1)) for k in range(self.heads)])
            base = min(seq.swa)
            pages = np.array([seq.swa[p] for p in range(base, max(seq.swa) + 1)], np.int64)
            writes.append(MtpWork(seq.ready, ends[-1], 0, np.array(seq.tokens, np.int64), base, pages))
        self.model.write_mtp(writes)
        for seq, work, write, end in zip(seqs, works, writes, ends, strict=True):
            for k in range(self.heads):
                fresh = np.arange(seq.ready[k], end[k])
                seq.mtp.setdefault(k, []).extend(self.rows(seq, "swa", self.pools.swa_layers + k, fresh))
            work.swa_base, work.swa_pages = write.swa_base, write.swa_pages
        for k in range(self.heads if draft else 0):
            asked = []
            for seq, work, end in zip(seqs, works, ends, strict=True):
                first, last = seq.ready[k], end[k]
                ids = np.array(seq.tokens[first : last + k + 1], np.int64)
                none = np.zeros(0, np.int64)
                asked.append(Work(first, ids, none, work.swa_base, work.swa_pages, logits=last - first))
            for seq, logits in zip(seqs, self.model.draft(k, asked), strict=True):
                seq.drafts.setdefault(k, []).extend(logits)
        for seq, end in zip(seqs, ends, strict=True):
            seq.ready = end

    def _forget(self, seq: Seq) -> None:
        """Everything that no later row may see becomes NaN, and pages without any other row are free."""
        pools, page = self.pools, self.page
        for logical, number in list(seq.swa.items()):
            rows = slice(0, max(0, min(page, seq.done - self.window - logical * page)))
            trunk = slice(0, pools.swa_layers)
            pools.swa_k[trunk, number, rows] = pools.swa_v[trunk, number, rows] = float("nan")
            # MTP rows of the last positions are made, and their queries asked, when later tokens are known.
            rows = slice(0, max(0, min(page, seq.done - self.window - self.heads - logical * page)))
            pools.swa_k[:, number, rows] = pools.swa_v[:, number, rows] = float("nan")
            pools.hidden[number, rows] = float("nan")
            if rows.stop == page:
                self.free_swa.insert(0, seq.swa.pop(logical))
        for tensor in (pools.full_k, pools.full_v, pools.swa_k, pools.swa_v):
            tensor[:, 0] = float("nan")
        pools.hidden[0] = float("nan")

    def differences(self, seq: Seq, oracle: Oracle) -> dict[str, float]:
        """Largest difference from the oracle of everything a sequence collected."""
        want = oracle.trunk(seq.tokens[: seq.done])
        out = {"logits": distance(_stack(seq.logits), want.logits)}
        if seq.hidden:
            out["hidden"] = distance(_stack(seq.hidden), want.hidden)
        for layer in seq.kv:
            for i, stored in enumerate((want.keys[layer], want.values[layer])):
                out[f"{'KV'[i]} of layer {layer}"] = distance(_stack([pair[i] for pair in seq.kv[layer]]), stored)
        for head, pairs in seq.mtp.items():
            drafted = oracle.draft(head, seq.tokens, want.hidden)
            assert len(pairs) == len(drafted.keys)
            for i, stored in enumerate((drafted.keys, drafted.values)):
                out[f"{'KV'[i]} of MTP head {head}"] = distance(_stack([pair[i] for pair in pairs]), stored)
            if seq.drafts:
                out[f"draft logits of head {head}"] = distance(_stack(seq.drafts[head]), drafted.logits)
        return out


def _stack(rows: Sequence[Any]) -> Any:
    return np.stack([np.asarray(row.float()) for row in rows]) if rows else np.zeros(0)
