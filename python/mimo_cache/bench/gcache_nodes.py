"""Nodes for the bench, with files of their own in shared memory, and what is measured of them from outside."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mimo_cache.gcache.local import SHARED, LocalNode


def shared_memory_bytes() -> int:
    """What `/dev/shm` could still take, and memory could still give."""
    free = shutil.disk_usage(SHARED).free
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = min(free, int(line.split()[1]) * 1024)
    return free


class Node(LocalNode):
    """A node that is looked at from outside."""

    def cpu_seconds(self) -> float:
        """Processor time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def cpu_nanoseconds(self) -> int:
        """The same, of its threads that live, to the nanosecond."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)

    def io_bytes(self) -> tuple[int, int]:
        """Bytes that the process has moved to and from devices, and by calls (those of sockets and bells included)."""
        lines = Path(f"/proc/{self.process.pid}/io").read_text().splitlines()
        counts = {name: int(value) for name, value in (line.split(": ") for line in lines)}
        return counts["read_bytes"] + counts["write_bytes"], counts["rchar"] + counts["wchar"]

    def shared_view(self, size: int) -> npt.NDArray[np.uint8]:
        """The last `size` bytes of the node's memory file, warm: what a copy of as many bytes starts from."""
        with (self.folder / f"{self.name}.memory").open("rb") as file:
            whole = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        view = np.frombuffer(whole, np.uint8)[-size:]
        int(view[::4096].sum())
        return view


@contextmanager
def nodes(*names: str, size: int) -> Iterator[list[Node]]:
    """Nodes with these names, of `size` bytes of memory each."""
    with tempfile.TemporaryDirectory(prefix="mimo-bench-", dir=SHARED if SHARED.is_dir() else None) as folder:
        running: list[Node] = []
        try:
            for name in names:
                running.append(Node(Path(folder), name, size))
            yield running
        finally:
            for node in running:
                if node.process.poll() is None:
                    node.kill()
