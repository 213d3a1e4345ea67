"""`gcache-node` processes for the bench, with files of their own in shared memory."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

PATIENCE = 60.0
SHARED = Path("/dev/shm")


def program(name: str) -> str:
    """A program of the package: beside the interpreter, in the source tree, or on the PATH."""
    tree = Path(__file__).resolve().parents[3] / "target" / "release" / name
    places = [Path(sysconfig.get_path("scripts")) / name, tree]
    found = next((str(p) for p in places if p.exists()), None) or shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed; `pip install mimo-cache` or `make build` installs it")
    return found


def shared_memory_bytes() -> int:
    """What `/dev/shm` could still take, and memory could still give."""
    free = shutil.disk_usage(SHARED).free
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            free = min(free, int(line.split()[1]) * 1024)
    return free


class Node:
    """One process. Its memory file outlives it until the folder goes."""

    def __init__(self, folder: Path, name: str, size: int) -> None:
        self._folder, self._name = folder, name
        self._port = 0
        (folder / f"{name}.toml").write_text(
            f'name = "{name}"\nlisten = ["127.0.0.1:0", "unix:{folder}/{name}.sock"]\n'
            f'fast_path = "{folder}/{name}.fast"\n'
            f'[memory]\npath = "{folder}/{name}.memory"\nsize = "{size}B"\n[log]\njson = true\n'
        )
        self.start()

    def start(self) -> None:
        """Starts the process, with the port it had before, and waits until it serves."""
        command = [program("gcache-node"), "--config", str(self._folder / f"{self._name}.toml")]
        command += [f"--port={self._port}"] if self._port else []
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GCACHE_")}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        words = []
        for line in self.process.stderr:
            words.append(line.strip())
            fields = json.loads(line)["fields"] if line.startswith("{") else {}
            if fields.get("message") == "serving":
                address = json.loads(fields["addresses"])[0]
                self._port = int(address.rsplit(":", 1)[1])
                self.tcp = f"{self._name}={address}"
                self.unix = f"{self._name}=unix:{self._folder}/{self._name}.sock"
                return
        raise RuntimeError(f"the node does not start: {' '.join(words[-3:])}")

    def kill(self) -> None:
        """As `kill -9` does."""
        self.process.kill()
        self.process.wait(PATIENCE)
        if self.process.stderr is not None:
            self.process.stderr.close()

    def cpu_seconds(self) -> float:
        """Processor time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def shared_view(self, size: int) -> npt.NDArray[np.uint8]:
        """The last `size` bytes of the node's memory file, warm: what a copy of as many bytes starts from."""
        with (self._folder / f"{self._name}.memory").open("rb") as file:
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
