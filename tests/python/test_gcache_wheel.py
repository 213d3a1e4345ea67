"""`pip install` puts the node and its tool on the PATH, and they run without an interpreter."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_fresh_environment_has_the_programs(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    made = [*pip, "wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={tmp_path}", str(ROOT)]
    subprocess.run(made, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "fresh", with_pip=False)
    scripts = tmp_path / "fresh" / "bin"
    subprocess.run([*pip, f"--python={scripts / 'python'}", "install", "--no-deps", str(wheel)], check=True)
    for program, word in (("gcache-node", "check-config"), ("gcachectl", "locate")):
        shown = subprocess.run([scripts / program, "--help"], check=True, capture_output=True, text=True, env={})
        assert word in shown.stdout
        linked = subprocess.run(["ldd", scripts / program], check=True, capture_output=True, text=True).stdout
        assert "python" not in linked
