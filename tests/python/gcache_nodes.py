"""Real nodes for tests: on free ports, with files of their own, ended whatever the test does."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mimo_cache.gcache import ObjectId

PATIENCE = 30.0


def program(name: str) -> str:
    """Beside the interpreter, where the package installs it, or on the PATH."""
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not installed; `make build` installs it")
    return found


class RunningNode:
    """One `gcache-node` process; its memory file outlives it until the folder goes."""

    def __init__(
        self,
        folder: Path,
        name: str,
        settings: dict[str, str],
        config: str = "",
        within: Sequence[str] = (),
        port: int = 0,
    ) -> None:
        """`within`: a command that runs the node, in a namespace for instance. `port` 0: a free one."""
        self.folder, self.name, self.settings, self.within = folder, name, settings, list(within)
        self.port = port
        self.log: list[dict[str, Any]] = []
        (folder / f"{name}.toml").write_text(
            f'name = "{name}"\nlisten = ["127.0.0.1:0", "unix:{folder}/{{name}}.sock"]\nmetrics = "localhost:0"\n'
            f'fast_path = "{folder}/{{name}}.fast"\n{config}\n'
            f'[memory]\npath = "{folder}/{{name}}.memory"\nsize = "64MiB"\n[log]\njson = true\n'
        )
        self.start()

    def start(self) -> None:
        """Starts the process, with the port it had before; RuntimeError with its words where it does not serve."""
        self.__dict__.pop("serving", None)
        command = [*self.within, program("gcache-node"), "--config", str(self.folder / f"{self.name}.toml")]
        command += [f"--set={key}={value}" for key, value in self.settings.items()]
        if self.port:
            command += [f"--port={self.port}"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GCACHE_")}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        lines = self.process.stderr
        serving = threading.Event()
        self.words: list[str] = []

        def read() -> None:
            for line in lines:
                try:
                    entry = json.loads(line)
                except ValueError:
                    self.words.append(line.strip())
                    continue
                self.log.append(entry["fields"])
                if entry["fields"].get("message") == "serving":
                    self.serving = entry["fields"]
                    serving.set()
            serving.set()

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        serving.wait(PATIENCE)
        if not hasattr(self, "serving"):
            self.kill()
            raise RuntimeError(" ".join(self.words) or f"the node ended with {self.process.poll()}")
        self.tcp = json.loads(self.serving["addresses"])[0]
        self.port = int(self.tcp.rsplit(":", 1)[1])

    @property
    def address(self) -> str:
        """For `connect`, over TCP."""
        return f"{self.name}={self.tcp}"

    @property
    def unix(self) -> str:
        """For `connect`, over the Unix socket."""
        return f"{self.name}=unix:{self.folder}/{self.name}.sock"

    def kill(self) -> None:
        """As `kill -9` does."""
        self.process.kill()
        self.ended()

    def pause(self) -> None:
        """As SIGSTOP does, and waits until it has: until a thread takes the signal, the others go on answering."""
        self.process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + PATIENCE
        while not all(_state(task) == "T" for task in Path(f"/proc/{self.process.pid}/task").iterdir()):
            assert time.monotonic() < until, "the node does not stop"
            time.sleep(0.001)

    def resume(self) -> None:
        """Goes on after `pause`."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """In order; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Waits for the end of the process and of its log; returns the exit status."""
        status = self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return status


def _state(task: Path) -> str:
    """What a thread does: proc(5)."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def nodes(*names: str, config: str = "", within: Sequence[str] = (), **settings: str) -> Iterator[list[RunningNode]]:
    """Nodes with these names; settings with `__` for the dot."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        running: list[RunningNode] = []
        try:
            for name in names:
                keys = {key.replace("__", "."): value for key, value in settings.items()}
                running.append(RunningNode(Path(folder), name, keys, config, within))
            yield running
        finally:
            for node in running:
                if node.process.poll() is None:
                    node.kill()


def key_of(*words: object) -> bytes:
    """A chain key that stands for these words."""
    return hashlib.sha256(repr(words).encode()).digest()


def object_of(*words: object, part: int = 0) -> ObjectId:
    """An object in an extent of its own."""
    key = key_of(*words)
    return ObjectId(key, part, key)


def value_of(size: int, *words: object) -> bytes:
    """Bytes that belong to these words."""
    block = hashlib.sha512(repr(words).encode()).digest()
    return (block * (size // len(block) + 1))[:size]
