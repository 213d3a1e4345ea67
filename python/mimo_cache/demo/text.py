"""Sessions over real text: an agent that reads CPython's own documentation and sources.

Every session starts with one of two shared system prompts, then alternates reads (a manual topic, a stretch of a
module), questions and answers. Some turns are asked again (the same prompt, another answer), some go back two turns
and branch, some correct a word, some carry a picture as a multimodal span, some use an adapter, and some draw
several samples.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .workload import IMAGE_TOKEN, VOCABULARY, Session, Tokens, Turn

TENANT = 2
PIECE = re.compile(r"[^\W\d_]{1,8}|\d{1,3}|_+|[ \t]+|\n+|[^\w\s]|\S")
MODULES = (
    "argparse",
    "asyncio.base_events",
    "asyncio.queues",
    "collections",
    "concurrent.futures.thread",
    "contextlib",
    "csv",
    "dataclasses",
    "difflib",
    "email.message",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "http.client",
    "inspect",
    "json.decoder",
    "json.encoder",
    "logging",
    "pathlib",
    "pickle",
    "queue",
    "random",
    "selectors",
    "shutil",
    "socketserver",
    "statistics",
    "string",
    "subprocess",
    "tarfile",
    "tempfile",
    "textwrap",
    "threading",
    "tokenize",
    "traceback",
    "types",
    "unittest.case",
    "unittest.mock",
    "urllib.parse",
    "uuid",
    "weakref",
    "zipfile",
)
QUESTIONS = (
    "Read this and tell me what it promises to its callers.",
    "Which of these functions may raise, and when?",
    "Write a test for the edge case you found.",
    "Explain the design of this part to a new colleague.",
    "Is there a race between these two methods? Show the interleaving.",
    "Propose a smaller interface that keeps every caller working.",
)
SYSTEM_TOPICS = ("execmodel", "specialnames")
"""Topics whose text stands for house rules and tool descriptions at the head of every prompt."""


def tokenize(text: str) -> Tokens:
    """Splits text at words, numbers, blanks and signs; a piece's id is a checksum, so no vocabulary is shipped."""
    return np.fromiter((zlib.crc32(p.encode()) % IMAGE_TOKEN for p in PIECE.findall(text)), np.uint32)


def manual() -> dict[str, str]:
    """The topics of the interpreter's manual; sources of a few modules where a distribution left the topics out."""
    try:
        return dict(import_module("pydoc_data.topics").topics)
    except ImportError:
        return {name: source_of(name) for name in MODULES[:8]}


def source_of(name: str) -> str:
    """The first 60,000 characters of a module of the standard library, empty where its source is not installed."""
    try:
        spec = find_spec(name)
    except ImportError:
        return ""
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    return Path(spec.origin).read_text(encoding="utf-8", errors="replace")[:60_000]


def sources() -> dict[str, Tokens]:
    """Tokens of those modules of the standard library whose source is installed."""
    texts = {name: source_of(name) for name in MODULES}
    return {name: tokenize(text) for name, text in texts.items() if text}


def sessions(count: int, rng: np.random.Generator, max_output: int) -> list[Session]:
    """`count` sessions of 4 to 10 turns."""
    topics = manual()
    reader = Reader(topics, sources(), rng, max_output)
    return [reader.session(i / count) for i in range(count)]


class Reader:
    """Writes one session after another from the same shelf of texts."""

    def __init__(
        self, topics: dict[str, str], files: dict[str, Tokens], rng: np.random.Generator, max_output: int
    ) -> None:
        self.rng = rng
        self.max_output = max_output
        heads = [t for t in SYSTEM_TOPICS if t in topics] or list(topics)[:2]
        self.systems = [tokenize("You are a careful engineer.\n" + topics[t])[:4000] for t in heads]
        self.pages = [tokenize(topics[t])[:1500] for t in sorted(topics) if len(topics[t]) > 1500]
        self.files = list(files.values())
        self.questions = [tokenize(f"\n\nUser: {q}\n") for q in QUESTIONS]

    def session(self, start: float) -> Session:
        """One client: reads, asks, asks again, goes back."""
        rng = self.rng
        adapter = b"reviewer" if rng.random() < 0.2 else b""
        history = [self.systems[int(rng.integers(len(self.systems)))]]
        spans: list[tuple[int, int, bytes]] = []
        turns: list[Turn] = []
        if rng.random() < 0.4:
            self.look(history, spans)
        for n in range(int(rng.integers(4, 11))):
            if n >= 3 and rng.random() < 0.15:  # the client goes back and takes another way
                history = history[:-4]
                spans = [s for s in spans if s[0] + s[1] <= sum(map(len, history))]
            if rng.random() < 0.12:
                self.look(history, spans)
            history.append(np.concatenate([self.read(), self.questions[int(rng.integers(len(self.questions)))]]))
            turns.append(self.turn(np.concatenate(history), list(spans), adapter))
            if rng.random() < 0.12:  # asked again: the same prompt, another answer
                turns.append(self.turn(turns[-1].prompt, list(spans), adapter))
            if rng.random() < 0.2:  # a word is corrected
                history[-1] = self.correct(history[-1], sum(map(len, history[:-1])))
                turns.append(self.turn(np.concatenate(history), list(spans), adapter))
            history.append(turns[-1].output)
        return Session("cpython", start, turns)

    def look(self, history: list[Tokens], spans: list[tuple[int, int, bytes]]) -> None:
        """Shows one of three pictures, which are the same placeholders and differ in their content alone."""
        spans.append((sum(map(len, history)), 256, hashlib.sha256(b"picture %d" % self.rng.integers(3)).digest()))
        history.append(np.full(256, IMAGE_TOKEN, np.uint32))

    def correct(self, message: Tokens, start: int) -> Tokens:
        """The message with one token changed: half of the time the last of 64, where comparisons of pages go wrong."""
        out = message.copy()
        at = int(self.rng.integers(len(out)))
        if self.rng.random() < 0.5:
            at = max(0, at - (start + at + 1) % 64)
        out[at] = (out[at] + 1) % IMAGE_TOKEN
        return out

    def read(self) -> Tokens:
        """What a tool returned: a topic of the manual or a stretch of a module, whose start is read most often."""
        rng = self.rng
        if not self.files or (self.pages and rng.random() < 0.4):
            return self.pages[int(rng.integers(len(self.pages)))]
        source = self.files[int(rng.integers(len(self.files)))]
        first = 0 if rng.random() < 0.6 else int(rng.integers(max(1, len(source) - 1000)))
        return source[first : first + int(rng.integers(300, 1600))]

    def turn(self, prompt: Tokens, spans: list[tuple[int, int, bytes]], adapter: bytes) -> Turn:
        """An answer is a stretch of some text with a few words changed, so that no two answers are the same."""
        rng = self.rng
        shelf = self.files or self.pages
        source = shelf[int(rng.integers(len(shelf)))]
        length = int(rng.integers(20, self.max_output + 1))
        at = int(rng.integers(max(1, len(source) - length)))
        output = source[at : at + length].copy()
        changed = rng.integers(len(output), size=3)
        output[changed] = rng.integers(VOCABULARY, size=3, dtype=np.uint32)
        return Turn(
            prompt=prompt,
            output=output,
            salt=b"cpython",
            adapter=adapter,
            spans=spans,
            tenant=TENANT,
            store=bool(rng.random() > 0.02),
            delay=int(rng.integers(2, 60)),
            forks=int(rng.integers(1, 4)) if rng.random() < 0.2 else 0,
        )
