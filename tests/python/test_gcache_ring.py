"""Placement of the Python client against the published vectors."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("grpc")

from mimo_cache.gcache import InvalidArgument, Node, Ring, extents_of
from mimo_cache.gcache.ring import draw, seed_of

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "ring.json").read_text())


def test_draws() -> None:
    for case in VECTORS["draws"]:
        assert draw(seed_of(case["name"]), case["weight"], case["bucket"]) == int(case["cost"]), case


def test_tables() -> None:
    for table in VECTORS["tables"]:
        ring = Ring([Node(name, "", weight) for name, weight in reversed(table["nodes"])], buckets=64)
        assert [ring.nodes[ring.owner(b)].name for b in range(64)] == table["owners"]


def test_buckets() -> None:
    for case in VECTORS["buckets"]:
        ring = Ring([Node("a")], buckets=case["buckets"])
        assert ring.bucket_of(bytes.fromhex(case["first_key"])) == case["bucket"], case


def test_extents_begin_where_they_should() -> None:
    keys = [bytes([i]) * 32 for i in range(5)]
    assert extents_of(keys, 2) == [keys[0], keys[0], keys[2], keys[2], keys[4]]
    assert extents_of(keys, 2, first_page=4) == extents_of(keys, 2)
    assert extents_of([], 4) == []
    wrong: list[tuple[Any, Any]] = [(0, 0), (2, 1), (2, -2), (1.5, 0), ("2", 0), (None, 0), (True, 0), (2, 0.0)]
    for pages, first in wrong:
        with pytest.raises(InvalidArgument, match="allowed is"):
            extents_of(keys, pages, first)
    for names in (None, 5, "x" * 32, b"x" * 32, [None], [bytearray(32)]):
        with pytest.raises(InvalidArgument, match="allowed is"):
            extents_of(cast(Any, names), 2)
    with pytest.raises(InvalidArgument, match="31 bytes"):
        extents_of([b"x" * 31], 2)


def test_nodes_are_read() -> None:
    assert Node.parse("a=host:1*3") == Node("a", "host:1", 3)
    assert Node.parse("host:1") == Node("host:1", "host:1", 1)
    assert Node.parse("b=unix:/run/b.sock") == Node("b", "unix:/run/b.sock", 1)
    for text in ("", "a=", "a=host:1*", "a=host:1*x", "a=host:1*-1", "*3", "a=host:1*" + "9" * 9999, None, 5, b"a=h:1"):
        with pytest.raises(InvalidArgument, match="node is"):
            Node.parse(cast(Any, text))


def test_bad_rings_are_refused() -> None:
    for nodes, buckets, words in (
        ([], 64, "0 entries"),
        ([Node("a")], 0, "buckets is 0"),
        ([Node("a")], 48, "buckets is 48"),
        ([Node("a")], 1 << 22, "buckets is"),
        ([Node("a"), Node("b"), Node("a")], 64, "given twice"),
        ([Node("")], 64, "node name"),
        ([Node("ä" * 128)], 64, "node name"),
        ([Node("a", weight=0)], 64, "weight of node"),
        ([Node("a", weight=cast(Any, 1.5))], 64, "weight of node"),
        ([Node("\udc80")], 64, "node name"),
        ([Node(cast(Any, 5))], 64, "node name"),
        ([Node("a")], cast(Any, 1.5), "buckets is 1.5"),
        ([Node("a", weight=(1 << 20) + 1)], 64, "weight of node"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            Ring(nodes, buckets)
