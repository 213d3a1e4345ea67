"""The encodings of docs/keys.md with nothing but hashlib, and the cases of tests/vectors/keys.json.

`python tests/python/key_vectors.py` prints the file anew. It knows nothing of the package.
"""

import hashlib
import json
import struct
from typing import Any

MAX_TOKEN = 2**32 - 1


def field(value: bytes) -> bytes:
    """A length-delimited field: u32 length, little endian, then the bytes."""
    return struct.pack("<I", len(value)) + value


def root_key(fingerprint: bytes, weights: bytes, adapter: bytes, salt: bytes, generation: int) -> bytes:
    """Key of a namespace."""
    fields = [fingerprint, weights, adapter, salt, struct.pack("<Q", generation)]
    return hashlib.sha256(b"mimo-cache root 1" + b"".join(map(field, fields))).digest()


def span_records(spans: list[tuple[int, int, bytes]], first: int, page_size: int) -> bytes:
    """The records of every span (start, len, hash) that reaches into the page whose first token is `first`."""
    out = b""
    for start, length, content in spans:
        begin, end = max(start, first), min(start + length, first + page_size)
        if begin < end:
            out += b"S" + struct.pack("<IQI", begin - first, begin - start, end - begin) + content
    return out


def chain(root: bytes, tokens: list[int], spans: list[tuple[int, int, bytes]], page_size: int) -> list[bytes]:
    """Keys of all whole pages of a prompt."""
    keys, parent = [], root
    for first in range(0, len(tokens) - page_size + 1, page_size):
        page = tokens[first : first + page_size]
        body = struct.pack(f"<I{page_size}I", page_size, *page) + span_records(spans, first, page_size)
        parent = hashlib.sha256(b"P" + parent + body).digest()
        keys.append(parent)
    return keys


def fingerprint(g: dict[str, Any]) -> bytes:
    """Fingerprint of a geometry, from the entries of one item of `geometries` in the vectors."""

    def number(value: int) -> bytes:
        return struct.pack("<I", value)

    fields = [
        g["name"].encode(),
        bytes(map(int, g["layers"])),
        number(g["first_layer"]),
        number(g["end_layer"]),
        b"".join(map(number, g["full"])),
        b"".join(map(number, g["swa"])),
        number(g["window"]),
        number(g["mtp_heads"]),
        number(g["hidden_size"]),
        g["dtype"].encode(),
        number(g["page_size"]),
        number(g["layout"]),
        number(g["extent_pages"]),
    ]
    return hashlib.sha256(b"mimo-cache geometry 1" + b"".join(map(field, fields))).digest()


def spans_of(case: dict[str, Any]) -> list[tuple[int, int, bytes]]:
    """The spans of a case as `chain` wants them."""
    return [(s["start"], s["len"], bytes.fromhex(s["hash"])) for s in case["spans"]]


def geometries() -> list[dict[str, Any]]:
    """Two presets, one of them as a pipeline stage with other choices, and the one without SWA layers."""
    pro = "".join("0" if i in (0, 7, 15, 23, 31, 39, 47, 55, 62, 69) else "1" for i in range(70))
    base = {
        "name": "mimo-v2.5-pro",
        "layers": pro,
        "first_layer": 0,
        "end_layer": 70,
        "full": [8, 192, 128],
        "swa": [8, 192, 128],
        "window": 128,
        "mtp_heads": 3,
        "hidden_size": 6144,
        "dtype": "bf16",
        "page_size": 64,
        "layout": 1,
        "extent_pages": 16,
    }
    stage = {"first_layer": 35, "dtype": "fp8_e4m3:token", "page_size": 16, "layout": 2, "extent_pages": 4}
    uniform = {
        "name": "uniform",
        "layers": "0" * 32,
        "end_layer": 32,
        "full": [8, 128, 128],
        "swa": [],
        "window": 0,
        "mtp_heads": 0,
        "hidden_size": 4096,
    }
    items = [base, base | stage, base | uniform]
    return [g | {"fingerprint": fingerprint(g).hex()} for g in items]


def roots() -> list[dict[str, Any]]:
    """Every field of a root by itself, and all at once."""
    zero = "00" * 32
    seen = hashlib.sha256(b"a model").hexdigest()
    base: dict[str, Any] = {"fingerprint": zero, "weights": "", "adapter": "", "salt": "", "generation": 0}
    changes: dict[str, dict[str, Any]] = {
        "nothing": {},
        "fingerprint": {"fingerprint": seen},
        "weights": {"weights": b"step-1000".hex()},
        "adapter": {"adapter": "lora: größer".encode().hex()},
        "salt": {"salt": "00ff"},
        "the salt as an adapter": {"adapter": "00ff"},
        "a salt of 4096 bytes": {"salt": "a5" * 4096},
        "generation": {"generation": 1},
        "largest generation": {"generation": 2**64 - 1},
        "everything": {"fingerprint": seen, "weights": "77", "adapter": "61", "salt": "73", "generation": 7},
    }
    out = []
    for name, change in changes.items():
        case = base | change
        parts = [bytes.fromhex(case[k]) for k in ("fingerprint", "weights", "adapter", "salt")]
        key = root_key(parts[0], parts[1], parts[2], parts[3], case["generation"])
        out.append({"name": name} | case | {"key": key.hex()})
    return out


def chains(all_roots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pages of several sizes, with and without spans."""
    image, audio = hashlib.sha256(b"an image").hexdigest(), hashlib.sha256(b"a sound").hexdigest()
    many = [(i * 7919 + 13) % 152576 for i in range(200)]

    def span(start: int, length: int, content: str) -> dict[str, Any]:
        return {"start": start, "len": length, "hash": content}

    cases: list[tuple[str, str, int, list[int], list[dict[str, Any]]]] = [
        ("the example of the document", "nothing", 4, [1, 2, 3, 4, 5, 6, 7, 8, 9], [span(6, 3, image)]),
        ("one token", "nothing", 1, [0], []),
        ("the largest token", "nothing", 1, [MAX_TOKEN, 0, MAX_TOKEN], []),
        ("less than a page", "nothing", 16, [1, 2, 3], []),
        ("pages of 1 with a span", "salt", 1, [5, 5, 5, 5], [span(1, 2, image)]),
        ("pages of 16", "everything", 16, many[:50], []),
        ("pages of 64", "everything", 64, many, []),
        ("pages of 64 under another root", "generation", 64, many, []),
        ("a span over three pages", "everything", 16, many[:64], [span(10, 40, image)]),
        ("spans that touch inside a page", "everything", 16, many[:32], [span(3, 4, image), span(7, 20, audio)]),
        ("the same content twice", "everything", 16, many[:16], [span(0, 8, image), span(8, 8, image)]),
        ("a span in the partial page only", "everything", 64, many[:70], [span(64, 6, audio)]),
    ]
    keys = {r["name"]: bytes.fromhex(r["key"]) for r in all_roots}
    out = []
    for name, root, page_size, tokens, spans in cases:
        case = {"name": name, "root": root, "page_size": page_size, "tokens": tokens, "spans": spans}
        case["pages"] = [k.hex() for k in chain(keys[root], tokens, spans_of(case), page_size)]
        out.append(case)
    return out


def main() -> None:
    """Prints the file, one case a line."""
    all_roots = roots()
    parts = {"geometries": geometries(), "roots": all_roots, "chains": chains(all_roots)}
    blocks = [f'"{k}": [\n' + ",\n".join(json.dumps(c) for c in v) + "\n]" for k, v in parts.items()]
    print("{\n" + ",\n".join(blocks) + "\n}")


if __name__ == "__main__":
    main()
