"""tests/vectors/keys.json against docs/keys.md: every vector is computed again with hashlib alone."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

import key_vectors as kv

ROOT = Path(__file__).resolve().parents[2]
VECTORS: dict[str, list[dict[str, Any]]] = json.loads((ROOT / "tests/vectors/keys.json").read_text())
ROOTS = {r["name"]: r for r in VECTORS["roots"]}


@pytest.mark.parametrize("case", VECTORS["geometries"], ids=lambda c: f"{c['name']}-{c['first_layer']}")
def test_fingerprint(case: dict[str, Any]) -> None:
    assert kv.fingerprint(case).hex() == case["fingerprint"]


@pytest.mark.parametrize("case", VECTORS["roots"], ids=lambda c: c["name"])
def test_root(case: dict[str, Any]) -> None:
    fields = [bytes.fromhex(case[k]) for k in ("fingerprint", "weights", "adapter", "salt")]
    key = kv.root_key(fields[0], fields[1], fields[2], fields[3], case["generation"])
    assert key.hex() == case["key"]


@pytest.mark.parametrize("case", VECTORS["chains"], ids=lambda c: c["name"])
def test_chain(case: dict[str, Any]) -> None:
    root = bytes.fromhex(ROOTS[case["root"]]["key"])
    pages = kv.chain(root, case["tokens"], kv.spans_of(case), case["page_size"])
    assert [p.hex() for p in pages] == case["pages"]
    assert len(pages) == len(case["tokens"]) // case["page_size"]


def test_no_two_vectors_share_a_key() -> None:
    keys = [r["key"] for r in VECTORS["roots"]] + [g["fingerprint"] for g in VECTORS["geometries"]]
    keys += [page for c in VECTORS["chains"] for page in c["pages"]]
    # A span that lies in the partial page alone changes no key of a whole page; that page is in "pages of 64" too.
    shared = next(c for c in VECTORS["chains"] if c["name"] == "a span in the partial page only")["pages"]
    assert len(shared) == 1
    assert len(keys) - len(set(keys)) == len(shared)


def test_worked_example_of_the_document() -> None:
    """The bytes printed in docs/keys.md hash to the keys printed there, and those are the vectors'."""
    text = (ROOT / "docs/keys.md").read_text()
    blocks = re.findall(r"```hex\n(.*?)```\n+SHA-256: `([0-9a-f]{64})`", text, re.DOTALL)
    example = next(c for c in VECTORS["chains"] if c["name"] == "the example of the document")
    want = [ROOTS["nothing"]["key"], *example["pages"]]
    assert [key for _, key in blocks] == want
    for dump, key in blocks:
        data = bytes.fromhex("".join(line.split("#")[0] for line in dump.splitlines()))
        assert hashlib.sha256(data).hexdigest() == key
