"""Files that commands write."""

from __future__ import annotations

from pathlib import Path


def check_writable(path: Path) -> None:
    """Raises the `OSError` that writing `path` would raise, before the work whose result goes there is done."""
    new = not path.exists()
    if new or path.is_file() or path.is_dir():
        with path.open("a", encoding="utf-8"):
            pass
    if new:
        path.unlink()
