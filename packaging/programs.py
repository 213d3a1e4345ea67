"""Builds `gcache-node` and `gcachectl` and lays them where maturin takes the wheel's scripts from (`pyproject.toml`).

`python packaging/programs.py` does it by hand; `backend.py` for pip; the Makefile before `maturin develop`.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "target" / "programs" / "scripts"
PROGRAMS = ("gcache-node", "gcachectl")


def build() -> None:
    """Without the feature `python`: programs that link no interpreter run without one."""
    command = [os.environ.get("CARGO", "cargo"), "build", "--release", "--message-format=json-render-diagnostics"]
    command += [word for program in PROGRAMS for word in ("--bin", program)]
    built = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    made = {}
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("executable") and message["target"]["name"] in PROGRAMS:
            made[message["target"]["name"]] = Path(message["executable"])
    SCRIPTS.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        # A new file: one that runs cannot be written to.
        fresh = SCRIPTS / f".{name}"
        shutil.copy2(made[name], fresh)
        fresh.replace(SCRIPTS / name)


if __name__ == "__main__":
    build()
