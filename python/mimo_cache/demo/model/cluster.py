"""The demo's GCache: three nodes on this machine, each with a little memory and a directory on disk.

Memory files lie in shared memory and values on disk in a temporary folder; nodes are ended and both folders removed
when the cluster is left, whatever the reason.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from mimo_cache import GCacheClient, Geometry, MimoCacheError
from mimo_cache.gcache.local import SHARED, LocalNode, program, stop_all
from mimo_cache.gcache.types import NodeStats

NAMES = ("node-1", "node-2", "node-3")
KIB, MIB = 1 << 10, 1 << 20
SLABS = 32
"""Of a node's memory: so few that a part of what the default run stores goes to disk."""
ON_DISK = 32
"""Bytes of disk for each byte of memory."""
DEADLINE = 5.0
"""Seconds that a node may take to tell what it has."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes: memory and disk of each node, the slabs of its memory, and the segments of its disk."""

    memory: int
    disk: int
    slab: int
    segment: int

    @classmethod
    def of(cls, geometry: Geometry) -> Sizes:
        """For the pages of a model: a slab holds the longest, a segment eight slabs; 2 MiB of memory for the tiny
        model."""
        value = max(geometry.stored_full_page_bytes, geometry.stored_swa_page_bytes)
        slab = min(16 * MIB, max(64 * KIB, 1 << value.bit_length()))
        return cls(SLABS * slab, ON_DISK * SLABS * slab, slab, 8 * slab)


@dataclass(frozen=True, slots=True)
class Holding:
    """Objects that a node has in memory and on disk, and how many went down and came up again since it started."""

    memory: int
    disk: int
    demoted: int
    promoted: int

    @classmethod
    def of(cls, stats: NodeStats) -> Holding:
        """Of a node with both tiers."""
        memory, disk = stats.tiers[:2]
        return cls(memory.objects, disk.objects, disk.demoted, disk.promoted)


class Cluster:
    """Running nodes; made by `running`. killed: the one that is dead now."""

    def __init__(self, nodes: list[LocalNode], geometry: Geometry, client: GCacheClient) -> None:
        self.nodes, self.geometry, self.client = nodes, geometry, client
        self.sizes = Sizes.of(geometry)
        self.killed: LocalNode | None = None

    @property
    def addresses(self) -> list[str]:
        """For clients on this machine."""
        return [node.unix for node in self.nodes]

    def holdings(self) -> dict[str, Holding]:
        """For each node that runs, what it has. Raises `MimoCacheError` where one does not say."""
        until = time.monotonic() + DEADLINE
        alive = {node.name for node in self.nodes if node is not self.killed}
        while True:
            found = {name: stats for name, stats in self.client.stats().items() if stats is not None and name in alive}
            if len(found) == len(alive):
                return {name: Holding.of(stats) for name, stats in found.items()}
            if time.monotonic() > until:
                raise MimoCacheError(f"{', '.join(sorted(alive - set(found)))} did not say what it has")
            time.sleep(0.05)  # a node that was started again is asked after a pause

    def kill(self, name: str) -> int:
        """`kill -9` for a node. Returns the number of its process."""
        node = self.killed = next(node for node in self.nodes if node.name == name)
        number = node.process.pid
        node.kill()
        return number

    def restart(self) -> LocalNode:
        """Starts the killed node again, which finds its memory file and its directory."""
        node, self.killed = self.killed, None
        assert node is not None
        node.start()
        return node


@contextmanager
def running(geometry: Geometry) -> Iterator[Cluster]:
    """Nodes for pages of this geometry, which serve until the context is left.

    Raises `MimoCacheError` where `gcache-node` is not installed or does not start, with the way to do without it.
    """
    sizes = Sizes.of(geometry)
    with ExitStack() as stack:
        try:
            program("gcache-node")
            shared = SHARED if SHARED.is_dir() else None
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mimo-demo-", dir=shared)))
            disks = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mimo-demo-disk-")))
            nodes: list[LocalNode] = []
            stack.callback(stop_all, nodes)
            for name in NAMES:
                more = f'[[disk]]\npath = "{disks}/{name}"\nsize = "{sizes.disk}B"\nsegment = "{sizes.segment}B"\n'
                nodes.append(LocalNode(folder, name, sizes.memory, more=more, slab=sizes.slab))
            client = stack.enter_context(
                GCacheClient([node.unix for node in nodes], deadline=DEADLINE, fast_path=False)
            )
        except (MimoCacheError, OSError) as error:
            raise MimoCacheError(
                f"the demo's GCache nodes do not run: {error}; --no-cluster runs the demo on the device's pools alone"
            ) from error
        yield Cluster(nodes, geometry, client)
