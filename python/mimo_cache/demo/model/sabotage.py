"""Damages one row of cached KV, so that it can be seen that the comparison sees it.

"kv" flips the signs of K and V of the last reused position in the full layers: logits must differ. "mtp" does so to a
reused row of the first MTP head, which no logit of the trunk depends on: MTP rows must differ.
"""

from __future__ import annotations

from mimo_cache.runner import LLM

KINDS = ("kv", "mtp")


def damage(llm: LLM, prompt: list[int], kind: str) -> bool:
    """Damages a cached row that `prompt` is going to reuse; False when it would reuse none."""
    cache, pools = llm.cache, llm.engine.model.pools
    page = cache.page_size
    with cache.request(prompt, store=False).open() as seq:
        usable = seq.usable
        if usable < page:
            return False
        if kind == "kv":
            at = usable - 1
            ids, first = seq.full_table(), 0
            layers = pools.full_k[:], pools.full_v[:]
        else:
            # Rows that depend on tokens behind the boundary are made again by every reader; this one is not.
            at = usable - 1 - cache.n_mtp
            first, ids = seq.swa_table()
            layers = pools.swa_k[pools.swa_layers :], pools.swa_v[pools.swa_layers :]
        number = int(ids[at // page - first])
        # A reader may have a page of its own, whose copy has not been made yet: what counts is the page it is made of.
        while (pending := cache.take_copies()) is not None:
            move, plan = pending
            number = next((src for group, src, dst in plan.copies if dst == number and group == "swa"), number)
            pools.copy(llm.engine.model.kernels, plan.copies)
            cache.move_done(move)
        for pool in layers:
            pool[:, number, at % page].neg_()
    return True
