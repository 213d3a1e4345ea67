"""The same-host path spoken byte by byte: docs/protocol.md has the tables."""

from __future__ import annotations

import socket
import struct

from gcache_nodes import RunningNode


def fast(node: RunningNode) -> socket.socket:
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(20)
    one.connect(f"{node.folder}/a.fast")
    return one


def head(kind: int, count: int = 0, tenant: int = 0, sequence: int = 0, magic: bytes = b"gcf1") -> bytes:
    return magic + struct.pack("<BBHQQ", kind, 0, count, tenant, sequence)


def exactly(one: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = one.recv(count - len(data))
        assert more, f"the node closed after {len(data)} of {count} bytes"
        data += more
    return data


def greeted(node: RunningNode) -> tuple[socket.socket, int]:
    one = fast(node)
    one.sendall(head(1))
    message, descriptors, _, _ = socket.recv_fds(one, 56, 4)
    assert len(message) == 56
    assert len(descriptors) == 1
    assert struct.unpack("<QQIIQ", message[24:])[2] == 1
    return one, descriptors[0]
