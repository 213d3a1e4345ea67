"""The sessions: agents that read the interpreter's documentation and library, ask, and carry the answers along.

All sessions start with one system prompt. A turn reads a stretch of a text and asks about it, or asks on; some turns
are retried (the same prompt again, with other draws), some have their question edited. When a session's prompt
has grown to its limit, it is compacted: system prompt and last answer stay. A few sessions work at a time, in shifts:
a session that pauses is followed by one that comes back or by a new one. What the model answers is part of the next
prompt, so prompts are made turn by turn.

At some turns the sessions lose who served them, and ask their last question again before they go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..text import MODULES, QUESTIONS, manual, source_of

SYSTEM = """You are a careful engineer who reads Python's documentation and library and explains what they promise.
Tools: read(name, start) returns a stretch of a topic or module. grep(pattern) returns the lines that match.
Rules: quote the text before you judge it. Name the exception that a call raises, and when. Say so when the text does \
not tell. Keep answers short, and never change a file that you were only asked to read.
"""
TOPICS = 40
"""Topics of the manual on the shelf, of those with at least LEAST characters."""
LEAST = 3000
ROLES = "\nUser: ", "\nTool: ", "\nAssistant: "
LIVE = 3
"""Sessions at work at the same time."""
SHARES = (0.6, 0.4, 0.5, 0.3, 0.45)
"""Lengths at which sessions are compacted, as shares of the longest prompt, in turn: the last message comes on top."""
FOLLOW_UPS = (
    "And where is that written?",
    "Say it in one sentence.",
    "Which of the two is called first?",
    "What happens when the argument is empty?",
    "Is this the same in a subclass?",
)
CORRECTIONS = (
    "I meant the part before it: what does it promise?",
    "Sorry, the second function. When does it raise?",
    "Not a test, please: only the edge case.",
)

Encode = Callable[[str], list[int]]


@dataclass(slots=True)
class Turn:
    """One request. kind: "read", "ask", "retry", "edit" or "compact". seed: of its draws."""

    session: Session
    kind: str
    prompt: list[int]
    seed: int


@dataclass(slots=True)
class Text:
    """Something to read, and how far it was read."""

    name: str
    content: str
    at: int = 0

    def stretch(self, length: int) -> str:
        """The next `length` characters; from the start again at the end."""
        if self.at >= len(self.content):
            self.at = 0
        begin, self.at = self.at, self.at + length
        return self.content[begin : begin + length]


class Session:
    """One agent. parts: token ids of system prompt, message, answer, message, answer, and so on."""

    def __init__(
        self, number: int, limit: int, shelf: list[tuple[str, str]], encode: Encode, rng: np.random.Generator
    ) -> None:
        self.number, self.limit, self.shelf, self.encode, self.rng = number, limit, shelf, encode, rng
        self.parts = [encode(SYSTEM)]
        self.reading = self._pick()
        self.seen, self.last = "", ""
        self.turns = self.compactions = self.used = 0

    def next(self) -> Turn:
        """The next turn, which `answer` must follow."""
        self.turns += 1
        kind = self._kind()
        if kind == "compact":
            self.compactions += 1
            self.parts = [self.parts[0], self.encode("\nSummary of the work so far: ") + self.parts[-1]]
            self._message(self._read() + self._question(QUESTIONS))
        elif kind == "retry":
            self.parts.pop()
        elif kind == "edit":
            del self.parts[-2:]
            self._message(self.seen + self._question(CORRECTIONS))
        elif kind == "ask":
            self.seen = ""
            self._message(self._question(FOLLOW_UPS))
        else:
            self._message(self._read() + self._question(QUESTIONS))
        return self._turn(kind)

    def again(self) -> Turn:
        """The last turn once more, of a session that has an answer. `answer` must follow."""
        self.turns += 1
        self.parts.pop()
        return self._turn("retry")

    def _turn(self, kind: str) -> Turn:
        self.last = kind
        return Turn(self, kind, [token for part in self.parts for token in part], 1000 * self.number + self.turns)

    def answer(self, tokens: list[int]) -> None:
        """What the model said, which is now part of the session."""
        self.parts.append(tokens)

    def _kind(self) -> str:
        if len(self.parts) < 3:
            return "read"
        if sum(map(len, self.parts)) > self.limit:
            return "compact"
        kind = str(self.rng.choice(["read", "ask", "retry", "edit"], p=[0.46, 0.3, 0.13, 0.11]))
        return "read" if kind == self.last != "ask" else kind

    def _message(self, text: str) -> None:
        self.parts.append(self.encode(text + ROLES[2]))

    def _question(self, questions: tuple[str, ...]) -> str:
        return ROLES[0] + questions[int(self.rng.integers(len(questions)))]

    def _read(self) -> str:
        if self.rng.random() < 0.3:
            self.reading = self._pick()
        start = self.reading.at
        stretch = self.reading.stretch(int(self.limit * self.rng.uniform(0.045, 0.12)) + 100)
        self.seen = f"{ROLES[1]}{self.reading.name} from {start}:\n{stretch}"
        return self.seen

    def _pick(self) -> Text:
        return Text(*self.shelf[int(self.rng.integers(len(self.shelf)))])


class Scenario:
    """`turns` turns in waves: turns of one wave arrive together, most waves are one turn."""

    def __init__(self, seed: int, turns: int, longest: int, encode: Encode) -> None:
        self.turns, self.longest, self.encode = turns, longest, encode
        self.rng = np.random.default_rng(seed)
        self.shelf = shelf()
        self.sessions: list[Session] = []

    def waves(self, stops: Sequence[int] = ()) -> Iterator[list[Turn]]:
        """One wave after another; its turns must be answered before the next is asked for. stops: numbers of turns
        after which sessions ask their last question again; no wave reaches over one of them."""
        live = [(self._new(), self._shift()) for _ in range(LIVE)]
        paused: deque[Session] = deque()
        ends = deque([*stops, self.turns])
        done = 0
        while done < self.turns:
            if done == ends[0]:
                ends.popleft()
                for session in self._again(ends[0] - done):
                    done += 1
                    session.used = done
                    yield [session.again()]
                continue
            size = min(ends[0] - done, int(self.rng.choice([1, 2, 3], p=[0.8, 0.15, 0.05])))
            picked = sorted(self.rng.choice(LIVE, size, replace=False).tolist())
            done += size
            for i in picked:
                live[i][0].used = done
            yield [live[i][0].next() for i in picked]
            for i in picked:
                session, shift = live[i]
                if shift > 1:
                    live[i] = session, shift - 1
                    continue
                paused.append(session)
                back = len(paused) > 2 and self.rng.random() < 0.5
                live[i] = paused.popleft() if back else self._new(), self._shift()

    def _again(self, room: int) -> list[Session]:
        """Who asks again: at most half of the next `room` turns, those used last, and the last one of all twice."""
        some = sorted((s for s in self.sessions if s.used), key=lambda s: s.used)[-max(1, room // 2) :]
        return some + some[-1:] if room > len(some) else some

    def _new(self) -> Session:
        limit = max(1000, int(self.longest * SHARES[len(self.sessions) % len(SHARES)]))
        session = Session(len(self.sessions) + 1, limit, self.shelf, self.encode, self.rng)
        self.sessions.append(session)
        return session

    def _shift(self) -> int:
        return int(self.rng.integers(9, 17))


def shelf() -> list[tuple[str, str]]:
    """Names and contents of what can be read."""
    topics = [(name, text) for name, text in sorted(manual().items()) if len(text) >= LEAST]
    step = max(1, len(topics) // TOPICS)
    modules = [(f"{name}.py", source_of(name)) for name in MODULES]
    return topics[::step] + [(name, text) for name, text in modules if len(text) >= LEAST]
