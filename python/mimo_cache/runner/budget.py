"""How many pages of each pool a number of bytes buys."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from mimo_cache import Geometry

from .errors import RequestError

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
HOST_ALIGN = 4096
"""Host pages begin at multiples of it (`mimo_cache.tiers.HostRegion`)."""
SWA_SHARE = 0.15
"""Share of what is left after windows and scratch that goes to checkpoints (docs/design.md, the trade of section 3)."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Usable pages; `scratch_pages` is part of `swa_pages`."""

    full_pages: int
    swa_pages: int
    scratch_pages: int


def parse_bytes(text: str | int, what: str = "memory") -> int:
    """Bytes of "512M", "8G" or a number; units are powers of 1,024. Raises `RequestError`."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGT]?)(?:i?B)?", str(text).strip(), re.IGNORECASE)
    if found is None:
        raise RequestError(f"{what} is {str(text)[:40]!r}, allowed is a number of bytes such as 512M or 8G")
    return int(float(found[1]) * UNITS[found[2].upper()])


def plan(geometry: Geometry, memory: int, *, max_running: int, max_step_tokens: int) -> Budget:
    """Splits `memory` bytes between the pools.

    Windows of `max_running` sequences and scratch for one step of `max_step_tokens` come first; of the rest `SWA_SHARE`
    goes to checkpoints and the remainder to full pages. Raises `RequestError` when that leaves no full page.
    """
    page = geometry.page_size
    scratch = windows = checkpoints = swa_bytes = 0
    if geometry.swa is not None:
        scratch = -(-max_step_tokens // page) + 2 * max_running
        windows = max_running * (math.ceil((geometry.window + 2 * geometry.mtp_heads + 1) / page) + 2)
        swa_bytes = geometry.stored_swa_page_bytes
    rest = memory - (scratch + windows) * swa_bytes
    if geometry.full is None:
        pages = memory // swa_bytes
        if rest < swa_bytes:
            raise RequestError(f"memory is {memory} bytes, at least {(scratch + windows + 1) * swa_bytes} are needed")
        return Budget(0, pages, scratch)
    full_bytes = geometry.stored_full_page_bytes
    if swa_bytes and rest > 0:
        checkpoints = max(1, int(rest * SWA_SHARE) // swa_bytes)
    full = (rest - checkpoints * swa_bytes) // full_bytes
    if full < 1:
        least = (scratch + windows + 1) * swa_bytes + full_bytes
        raise RequestError(
            f"memory is {memory} bytes, at least {least} are needed for one full page beside the windows"
        )
    return Budget(full, scratch + windows + checkpoints, scratch)


def below(geometry: Geometry, memory: int) -> Budget:
    """Splits `memory` bytes of a host tier: `SWA_SHARE` for checkpoints, at least three windows, and the remainder for
    full pages. Raises `RequestError` when that leaves no page of a group."""
    full_bytes = _rounded(geometry.stored_full_page_bytes) if geometry.full is not None else 0
    swa_bytes = _rounded(geometry.stored_swa_page_bytes) if geometry.swa is not None else 0
    swa = least = 0
    if swa_bytes:
        window = math.ceil((geometry.window + 2 * geometry.mtp_heads + 1) / geometry.page_size) + 2
        least = 3 * window
        swa = max(least, int(memory * (SWA_SHARE if full_bytes else 1.0)) // swa_bytes)
    full = (memory - swa * swa_bytes) // full_bytes if full_bytes else 0
    if swa * swa_bytes > memory or (full_bytes and full < 1):
        raise RequestError(
            f"host memory is {memory} bytes, at least {least * swa_bytes + full_bytes} are needed for windows and one "
            "full page"
        )
    return Budget(full, swa, 0)


def _rounded(page_bytes: int) -> int:
    """Bytes of a page in host memory."""
    return -(-page_bytes // HOST_ALIGN) * HOST_ALIGN
