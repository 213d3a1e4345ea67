"""The corpus: Python's own documentation, as bytes, from the interpreter that runs the training.

Two sources, both under the PSF licence and on every machine that has Python: `pydoc_data.topics` (the language
reference that `help()` shows) and the docstrings of the standard library. A document is its UTF-8 bytes; ids 0 to 255
are bytes and `EOS` stands between documents.

The topics of `HELD_OUT` are never trained on, and neither is any document that has 16 words in a row in common with
them: pydoc repeats whole sections under several names, and a split that ignores this measures memory.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .settings import EOS

# fmt: off
HELD_OUT = (
    "assert", "atom-identifiers", "attribute-references", "binary", "bitwise", "bltin-code-objects", "booleans",
    "conversions", "del", "dict", "exprlists", "global", "power", "slicings", "specialattrs", "typesmethods",
    "typesmodules", "yield",
)
# fmt: on
"""Topics held out, about 5 % of all topics' bytes. Chosen among those that share no 16 words with another topic, in the
order of their names' SHA-256."""

SKIPPED = {"__pycache__", "dist-packages", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "site-packages"}
SKIPPED |= {"encodings", "test", "tests", "turtledemo"}
RUN = 16
SHORTEST_DOCSTRING = 120
TOPIC_REPEATS = 2


@dataclass(frozen=True, slots=True)
class Corpus:
    """train: documents and how often each occurs in one pass. held_out: documents to judge by."""

    train: tuple[tuple[bytes, int], ...]
    held_out: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Bytes to train on, each document once."""
        return sum(len(document) for document, _ in self.train)

    @property
    def digest(self) -> str:
        """Names the corpus, which differs between versions of Python."""
        h = hashlib.sha256()
        for document, _ in self.train:
            h.update(hashlib.sha256(document).digest())
        return h.hexdigest()[:16]


def read_topics() -> dict[str, str]:
    """Topic -> text, in the order of names."""
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    return {name: topics[name].strip() + "\n" for name in sorted(topics)}


def read_docstrings(root: Path) -> Iterator[str]:
    """Docstrings of the modules below `root`, long ones only, in the order of paths; files that do not parse are left
    out."""
    for path in sorted(root.rglob("*.py")):
        if SKIPPED.intersection(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text and len(text) >= SHORTEST_DOCSTRING:
                    yield text + "\n"


def runs(text: str) -> set[tuple[str, ...]]:
    """Every run of 16 words."""
    words = text.split()
    return {tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)}


def load() -> Corpus:
    """The corpus of this interpreter. Deterministic for one version of Python."""
    topics = read_topics()
    held_out = [topics.pop(name) for name in HELD_OUT if name in topics]
    taken: set[tuple[str, ...]] = set().union(*map(runs, held_out))
    documents = [(text, TOPIC_REPEATS) for text in topics.values()]
    docstrings = dict.fromkeys(read_docstrings(Path(sysconfig.get_paths()["stdlib"])))
    documents += [(text, 1) for text in docstrings]
    train = tuple((text.encode(), n) for text, n in documents if taken.isdisjoint(runs(text)))
    return Corpus(train, tuple(text.encode() for text in held_out))


def join(documents: Iterable[bytes]) -> Tensor:
    """Ids of the documents, int64, with `EOS` before each and after the last."""
    ids = [EOS]
    for document in documents:
        ids += document
        ids.append(EOS)
    return torch.tensor(ids, dtype=torch.int64)


class Sampler:
    """Batches as a function of (seed, step) alone, so that a resumed run needs no state of a generator.

    Every 64 steps the documents are joined in another order, so that long contexts meet new neighbours."""

    EPOCH = 64

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self.documents = [document for document, repeats in corpus.train for _ in range(repeats)]
        self.seed = seed
        self.epoch = -1
        self.stream = torch.empty(0, dtype=torch.int64)

    def batch(self, step: int, rows: int, length: int) -> Tensor:
        """Ids [rows, length], int64, cut from the stream at random places."""
        if step // self.EPOCH != self.epoch:
            self.epoch = step // self.EPOCH
            order = torch.randperm(len(self.documents), generator=self._generator(0, self.epoch))
            self.stream = join(self.documents[i] for i in order.tolist())
        starts = torch.randint(len(self.stream) - length + 1, (rows, 1), generator=self._generator(1, step))
        return self.stream[starts + torch.arange(length)]

    def _generator(self, kind: int, number: int) -> torch.Generator:
        return torch.Generator().manual_seed((self.seed * 2 + kind) * 1_000_003 + number)
