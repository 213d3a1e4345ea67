"""The published vectors of placement, made by a second implementation in plain Python integers.

`python tests/python/test_ring_vectors.py > tests/vectors/ring.json` writes them anew.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[1] / "vectors" / "ring.json"
WORD = (1 << 64) - 1
STEPS, FRACTION = 12, 52


def seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


def log2_step(i: int) -> int:
    """floor(log2(1 + i / 2^12) * 2^52), bit by bit: squaring doubles a logarithm."""
    x, log = ((1 << STEPS) + i) << (62 - STEPS), 0
    if i == 1 << STEPS:
        return 1 << FRACTION
    for _ in range(FRACTION):
        x = x * x >> 62
        log <<= 1
        if x >= 1 << 63:
            x >>= 1
            log |= 1
    return log


LOG = [log2_step(i) for i in range((1 << STEPS) + 1)]


def negative_log2(word: int) -> int:
    if word == WORD:
        return 0
    x = word + 1
    power = x.bit_length() - 1
    rest = (x << (64 - power)) & WORD
    step, part = rest >> (64 - STEPS), ((rest << STEPS) & WORD) >> 32
    log = LOG[step] + ((LOG[step + 1] - LOG[step]) * part >> 32)
    return ((64 - power) << FRACTION) - log


def draw(name: str, weight: int, bucket: int) -> int:
    word = mix(seed(name) ^ mix((bucket + 0x9E3779B97F4A7C15) & WORD))
    return (negative_log2(word) << 5) // weight


def make() -> dict[str, Any]:
    draws = [
        {"name": name, "weight": weight, "bucket": bucket, "cost": str(draw(name, weight, bucket))}
        for name in ("a", "gcache-7.rack2", "é")
        for weight in (1, 64, 1 << 20)
        for bucket in (0, 1, 4097, (1 << 20) - 1)
    ]
    tables = []
    for nodes in ([("a", 1)], [("a", 1), ("b", 1), ("c", 2)], [(f"node-{i}", 8 + i) for i in range(9)]):
        owners = [min((draw(n, w, b), n) for n, w in nodes)[1] for b in range(64)]
        tables.append({"nodes": nodes, "owners": owners})
    keys = [hashlib.sha256(bytes([i])).hexdigest() for i in range(4)]
    buckets = [
        {"first_key": key, "buckets": size, "bucket": int.from_bytes(bytes.fromhex(key)[:8], "little") % size}
        for key in keys
        for size in (1, 1 << 10, 1 << 20)
    ]
    return {"draws": draws, "tables": tables, "buckets": buckets}


def test_the_vectors_are_what_the_rule_says() -> None:
    assert json.loads(VECTORS.read_text()) == json.loads(json.dumps(make()))


def test_the_logarithm_is_one() -> None:
    assert negative_log2((1 << 63) - 1) == 1 << FRACTION
    assert negative_log2(0) == 64 << FRACTION


if __name__ == "__main__":
    json.dump(make(), sys.stdout, indent=1, ensure_ascii=True)
    print()
