"""The checks of messages against the published vectors, and that a flip anywhere in a message is seen.

`python tests/python/test_gcache_seal.py` writes the vectors anew; `tests/wire_checks.rs` reads them too.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("grpc")

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from mimo_cache._core import crc32c
from mimo_cache.gcache.errors import Broken
from mimo_cache.gcache.seal import FIRST, LATER, check_of, opened, sealed
from mimo_cache.gcache.v1 import gcache_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.message import Message

VECTORS = Path(__file__).parents[1] / "vectors" / "wire_checks.json"
NAMES = sorted(name for name, found in pb.DESCRIPTOR.message_types_by_name.items() if "check" in found.fields_by_name)


def filled(message: Message, rng: random.Random, depth: int = 0) -> Message:
    """Every field set to something that is not its default, lists to one to three elements."""
    for field in message.DESCRIPTOR.fields:
        if field.name == "check":
            continue
        values = getattr(message, field.name)
        many = hasattr(values, "extend")
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for one in [values.add() for _ in range(rng.randint(1, 3))] if many else [values]:
                filled(one, rng, depth + 1)
        elif many:
            values.extend(rng.getrandbits(64) for _ in range(rng.randint(1, 60)))
        elif field.type == FieldDescriptor.TYPE_BYTES:
            setattr(message, field.name, rng.randbytes(rng.choice([1, 33, 300])))
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, "".join(rng.choices("abcxyz-/é", k=rng.randint(1, 20))))
        elif field.type == FieldDescriptor.TYPE_BOOL:
            setattr(message, field.name, True)
        elif field.type == FieldDescriptor.TYPE_ENUM:
            setattr(message, field.name, rng.randint(1, 2))
        else:
            bits = 64 if field.cpp_type == FieldDescriptor.CPPTYPE_UINT64 else 32
            setattr(message, field.name, rng.getrandbits(bits) or 1)
    return message


def vectors() -> list[dict[str, Any]]:
    """Of every message: empty, and filled with two seeds."""
    rng = random.Random(20)
    made = []
    for name in NAMES:
        kind = getattr(pb, name)
        cases: list[tuple[Any, int]] = [(kind(), FIRST), (filled(kind(), rng), FIRST)]
        cases.append((filled(kind(), rng), rng.getrandbits(32)))
        for message, seed in cases:
            text = sealed(message, seed).SerializeToString().hex()
            made.append({"message": name, "seed": seed, "check": message.check, "hex": text})
    return made


def test_vectors() -> None:
    cases = json.loads(VECTORS.read_text())
    assert {case["message"] for case in cases} == set(NAMES)
    for case in cases:
        message = getattr(pb, case["message"]).FromString(bytes.fromhex(case["hex"]))
        assert check_of(message, case["seed"]) == message.check == case["check"], case


def test_the_rule_by_hand() -> None:
    def words(*values: int) -> bytes:
        return b"".join(value.to_bytes(8, "little") for value in values)

    key = bytes(range(32))
    request = pb.ExistsRequest(version=1, tenant=7, lease_ms=5, runs=[pb.KeyRun(bucket=3, keys=key)])
    said = b"gcache.v1.ExistsRequest" + bytes(4) + words(1, 7, 5, 1, 3, 32) + key
    assert check_of(request) == crc32c(said)
    reply = pb.GetReply(piece=pb.Piece(index=2, length=9, layout=1, crc32c=4, data=b"123456789"))
    said = b"gcache.v1.GetReply" + (77).to_bytes(4, "little") + words(1, 2, 9, 1, 0, 1, 4, 9, 0)
    assert check_of(reply, 77) == crc32c(said)
    # A number that version 2 has added counts where it is sent: the rest is what version 1 says.
    reply.piece.source = pb.SOURCE_REMOTE
    said = b"gcache.v1.GetReply" + (77).to_bytes(4, "little") + words(1, 2, 9, 1, 0, 1, 4, 2, 9, 0)
    assert check_of(reply, 77) == crc32c(said)


def test_numbers_that_came_later_are_known() -> None:
    """A number or enumeration that is added must be sent from a version of its own on."""
    for full in LATER:
        message, name = full.removeprefix("gcache.v1.").split(".")
        field = pb.DESCRIPTOR.message_types_by_name[message].fields_by_name[name]
        assert field.type not in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
        assert not field.has_presence


@pytest.mark.parametrize("name", NAMES)
def test_a_flip_is_seen(name: str) -> None:
    """A message with one bit of its encoding flipped cannot be read, says the same, or is refused."""
    rng = random.Random(name)
    request = sealed(pb.GetRequest(version=1))
    message: Any = sealed(filled(getattr(pb, name)(), rng), request.check)
    if name == "GetReply":
        # Its bytes are under a CRC of their own.
        message.piece.data = b"x" * 3
        sealed(message, request.check)
    good = message.SerializeToString()
    for _ in range(400):
        at = rng.randrange(len(good))
        data = bytearray(good)
        data[at] ^= 1 << rng.randrange(8)
        try:
            altered = type(message).FromString(bytes(data))
        except DecodeError:
            continue
        if name in ("GetReply", "PutRequest") and len(altered.piece.data) == len(message.piece.data):
            altered.piece.data = message.piece.data
        altered.DiscardUnknownFields()
        if altered != message:
            with pytest.raises(Broken, match="check"):
                opened(altered, request)


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(case) for case in vectors())
    VECTORS.write_text(f"[\n{lines}\n]\n")
