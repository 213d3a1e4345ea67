"""`gcache-node` processes on this machine: started, killed, started again; their memory files stay."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sysconfig
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mimo_cache.gcache.errors import GCacheError

PATIENCE = 60.0
"""Seconds that a node may take to start, and to end."""
SHARED = Path("/dev/shm")
"""Where memory files are, and all that is beside them."""


def program(name: str) -> str:
    """A program of the package: beside the interpreter, in the source tree, or on the PATH."""
    tree = Path(__file__).resolve().parents[3] / "target" / "release" / name
    places = [Path(sysconfig.get_path("scripts")) / name, tree]
    found = next((str(p) for p in places if p.exists()), None) or shutil.which(name)
    if found is None:
        raise GCacheError(f"{name} is not installed; `pip install mimo-cache` or `make build` installs it")
    return found


class LocalNode:
    """One process and its files in `folder`: NAME.toml, NAME.memory, NAME.log and two sockets.

    `port` 0 takes a free one and keeps it; `slab` is the unit in which memory is given to sizes of values; `more` is
    TOML that its configuration ends with. Raises `GCacheError` with the node's own words when it does not start.
    """

    def __init__(
        self, folder: Path, name: str, size: int, port: int = 0, more: str = "", *, slab: int = 1 << 20
    ) -> None:
        self.folder, self.name, self._port = folder, name, port
        (folder / f"{name}.toml").write_text(
            f'name = "{name}"\nlisten = ["127.0.0.1:{port}", "unix:{folder}/{name}.sock"]\n'
            f'fast_path = "{folder}/{name}.fast"\n'
            f'[memory]\npath = "{folder}/{name}.memory"\nsize = "{size}B"\nslab = "{slab}B"\n[log]\njson = true\n{more}'
        )
        self.start()

    def start(self) -> None:
        """Starts the process, with the port it had before, and waits until it serves."""
        command = [program("gcache-node"), "--config", str(self.folder / f"{self.name}.toml")]
        command += [f"--port={self._port}"] if self._port else []
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GCACHE_")}
        path = self.folder / f"{self.name}.log"
        until = time.monotonic() + PATIENCE
        made = False
        try:
            with path.open("ab") as log, _signals_held_back():
                begin = log.tell()
                # A group of its own: the terminal's ^C is for who started the nodes, and that ends them in order.
                self.process = subprocess.Popen(command, stderr=log, env=environment, start_new_session=True)
                made = True
            while (serving := _serving(path, begin)) is None:
                if self.process.poll() is not None or time.monotonic() > until:
                    words = path.read_bytes()[begin:].decode(errors="replace").strip().splitlines()[-1:]
                    raise GCacheError(f"node {self.name} does not start: {' '.join(words) or 'it says nothing'}")
                time.sleep(0.005)
        except BaseException:
            # A signal too: whoever makes this object does not have it yet.
            if made:
                self.kill()
            raise
        address, self.objects = serving
        self._port = int(address.rsplit(":", 1)[1])
        self.tcp = f"{self.name}={address}"
        self.unix = f"{self.name}=unix:{self.folder}/{self.name}.sock"

    def kill(self) -> None:
        """As `kill -9` does."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        """In order; values stay in the memory file."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """What signals raise is raised afterwards: a process that is being made is one that nobody can end yet."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    held = {n: was for n, was in before.items() if was not in (None, signal.SIG_IGN)}
    for number in held:
        signal.signal(number, lambda n, _frame: came.append(n))
    try:
        yield
    finally:
        for number, was in held.items():
            signal.signal(number, was)
        for first in came[:1]:
            signal.raise_signal(first)


def _serving(log: Path, begin: int) -> tuple[str, int] | None:
    """The first address, and how many objects were found, once the log says after `begin` that the node serves."""
    with log.open("rb") as file:
        file.seek(begin)
        for line in file:
            if line.startswith(b"{") and line.endswith(b"\n"):
                fields = json.loads(line)["fields"]
                if fields.get("message") == "serving":
                    return json.loads(fields["addresses"])[0], int(fields["objects"])
    return None


@contextmanager
def local_nodes(folder: Path, names: Sequence[str], size: int, port: int = 0) -> Iterator[list[LocalNode]]:
    """Nodes of `size` bytes of memory each, on ports from `port` on; stopped at the end. The folder stays."""
    running: list[LocalNode] = []
    try:
        for n, name in enumerate(names):
            running.append(LocalNode(folder, name, size, port + n if port else 0))
        yield running
    finally:
        stop_all(running)


def stop_all(nodes: Sequence[LocalNode]) -> None:
    """All of them, in order; where that is interrupted, as `kill -9` does."""
    try:
        for node in nodes:
            node.stop()
    except BaseException:
        for node in nodes:
            node.kill()
        raise
