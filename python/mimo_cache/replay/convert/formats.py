"""The formats by the name that `--from` takes."""

from __future__ import annotations

from .base import Format
from .events import SglangEvents, VllmEvents
from .hashed import Bailian, Mooncake
from .plain import Plain
from .tester import KvCacheTester

_ALL: tuple[type[Format], ...] = (Mooncake, Bailian, KvCacheTester, VllmEvents, SglangEvents, Plain)

FORMATS: dict[str, type[Format]] = {f.name: f for f in _ALL}
