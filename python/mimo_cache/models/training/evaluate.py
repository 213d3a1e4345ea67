"""What a finished checkpoint can do: held-out bits per byte, how far contexts may grow, accept length of its drafts.

The figures stand in `figures.json` beside the checkpoint, together with the held-out text, so that anyone can measure
them again whatever the version of Python.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .data import join
from .net import Net
from .settings import EOS

FIGURES = "figures.json"
HELD_OUT = "held_out.json"
CONTEXT = 2048
LONG = (8192, 16384)
"""Contexts beyond the usual one that are compared, shortest first. The first was trained on."""

TOLERATED = 1.02
"""Bits per byte in the second half of a longer context, relative to those in a shorter one, up to which the config may
promise it."""


def bits_per_byte(net: Net, ids: Tensor, context: int, first: int = 0) -> float:
    """Mean bits per token of ids[first + 1:], each predicted from at least context / 2 tokens before it where there are
    so many: stretches of `context` tokens overlap by half.

    ids: [N], int64. Text's tokens are bytes and ends of documents."""
    total, half = 0.0, context // 2
    counted = first
    for start in range(0, len(ids) - 1, half):
        piece = ids[start : start + context + 1]
        end = start + len(piece) - 1
        skip = max(counted - start, 0)
        if end > counted:
            with torch.no_grad():
                logits = net(piece[None, :-1])[0, skip:]
            total += F.cross_entropy(logits, piece[skip + 1 :], reduction="sum").item()
            counted = end
    return total / (len(ids) - 1 - first) / math.log(2)


def greedy(net: Net, prompts: Tensor, count: int) -> Tensor:
    """[B, P + count]: prompts [B, P] and what the trunk continues them with. Goes on after the end of a document."""
    ids = prompts
    for _ in range(count):
        with torch.no_grad():
            ids = torch.cat((ids, net.lm_head(net.hidden(ids)[:, -1:]).argmax(-1)), dim=1)
    return ids


def accept_lengths(net: Net, ids: Tensor, prompt: int) -> list[int]:
    """Accept length (accepted drafts + 1) of each decode round over one greedy text.

    ids: [N], greedy from position `prompt` on. Rounds follow each other as in decode: the token at p is known and its
    hidden state is not, so head k drafts the token at p + 1 + k from row p - 1, whose token is the one at p + k; a
    draft counts while all before it were right. Until the first wrong draft, drafts and text are the same tokens, so
    one pass over the text gives every head's draft."""
    n, heads = len(ids), net.shape.mtp_heads
    drafts = []
    with torch.no_grad():
        hidden = net.hidden(ids[None, : n - 1])
        for k in range(heads):
            tokens = torch.cat((ids[k + 1 :], ids.new_full((k,), EOS)))
            drafts.append(net.draft(k, tokens[None], hidden)[0].argmax(-1))
    lengths, p = [], prompt
    while p + heads < n:
        right = 0
        while right < heads and drafts[right][p - 1] == ids[p + 1 + right]:
            right += 1
        lengths.append(right + 1)
        p += right + 1
    return lengths


def accept_length(net: Net, documents: Sequence[bytes], prompt: int = 128, count: int = 256) -> float:
    """Mean accept length over greedy continuations of the first `prompt` bytes of each document that has so many."""
    starts = [join([d])[: prompt + 1] for d in documents if len(d) >= prompt]
    lengths: list[int] = []
    for text in greedy(net, torch.stack(starts), count):
        lengths += accept_lengths(net, text, prompt + 1)
    return sum(lengths) / len(lengths)


def max_positions(net: Net, ids: Tensor) -> tuple[int, dict[str, float]]:
    """The longest context of `LONG` that is not worse than the one before, and the bits per byte in each.

    All are measured on the same tokens: those that the longest context predicts from its second half."""
    first = LONG[-1] // 2
    figures = {str(context): bits_per_byte(net, ids, context, first) for context in (CONTEXT, *LONG)}
    promised = LONG[0]
    for shorter, longer in pairwise(LONG):
        if figures[str(longer)] > figures[str(shorter)] * TOLERATED:
            break
        promised = longer
    return promised, figures


def measure(net: Net, held_out: Sequence[bytes]) -> dict[str, Any]:
    """Every figure of the checkpoint; takes a minute or two."""
    net.eval()
    ids = join(held_out)
    promised, by_context = max_positions(net, ids)
    return {
        "bits_per_byte": round(bits_per_byte(net, ids, CONTEXT), 4),
        "bits_per_byte_by_context": {context: round(value, 4) for context, value in by_context.items()},
        "max_positions": promised,
        "accept_length": round(accept_length(net, held_out[:8]), 3),
    }


def write_held_out(path: Path, documents: Sequence[bytes]) -> None:
    """Writes documents, UTF-8, as a JSON list of texts."""
    texts = [document.decode() for document in documents]
    path.write_text(json.dumps(texts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_held_out(path: Path) -> list[bytes]:
    """The documents that `write_held_out` wrote."""
    return [text.encode() for text in json.loads(path.read_text(encoding="utf-8"))]
