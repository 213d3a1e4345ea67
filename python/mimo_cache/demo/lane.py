"""A request in service: the script it follows and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .canary import Truth, truth_of
from .workload import VOCABULARY, Session, Tokens, Turn


@dataclass(slots=True, eq=False)
class Lane:
    """uid: who writes, for messages. mtp_done: per head, rows below it are final. abort_at: committed tokens at which
    the client hangs up. child: a fork, whose end does not bring the session's next turn. forked: its samples were
    drawn. since: step of its last start."""

    uid: int
    session: Session
    turn: Turn
    tokens: Tokens
    truth: Truth
    n_mtp: int
    seq: Any = None
    committed: int = 0
    known: int = 0
    reserved: int = 0
    write_full_from: int = 0
    mtp_done: list[int] = field(default_factory=list)
    abort_at: int | None = None
    child: bool = False
    forked: bool = False
    since: int = 0

    @classmethod
    def of(cls, uid: int, session: Session, turn: Turn, n_mtp: int) -> Lane:
        """A lane for one turn, with the canaries of its whole script."""
        tokens = np.concatenate([turn.prompt, turn.output])
        return cls(uid, session, turn, tokens, truth_of(turn, tokens, n_mtp), n_mtp)

    def enter(self, seq: Any) -> None:
        """Takes over where `open`, `resume` or `fork` has put the sequence."""
        self.seq = seq
        self.committed, self.known, self.reserved = int(seq.committed), int(seq.known), 0
        self.write_full_from = int(seq.full_write_from)
        self.mtp_done = [self.final(k) for k in range(self.n_mtp)]

    def final(self, head: int) -> int:
        """Rows below this are final in an MTP head: they are committed, and the tokens they need are known."""
        return max(0, min(self.committed, self.known - head - 1))

    @property
    def decoding(self) -> bool:
        """Only the newest known token has no KV yet; the next step samples what follows it."""
        return self.committed == self.known - 1

    @property
    def left(self) -> int:
        """Output tokens to come."""
        return len(self.tokens) - self.known

    def variant(self, uid: int, rng: np.random.Generator) -> Lane:
        """Another sample from here on: the tokens known now, then others."""
        others = rng.integers(0, VOCABULARY, self.left, dtype=np.uint32)
        turn = replace(self.turn, prompt=self.tokens[: self.known], output=others, forks=0)
        lane = Lane.of(uid, self.session, turn, self.n_mtp)
        lane.child = True
        return lane
