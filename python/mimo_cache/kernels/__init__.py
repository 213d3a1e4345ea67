"""Kernels of the runner: one documented contract per operation, several backends.

`get(name)` returns a backend's class; `contract.Kernels` is what each of them promises. `reference` is plain torch and
computes the same bits however a row is reached; `torch` is faster and may differ in the last bits. Needs torch, the
extra `runner`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mimo_cache import MimoCacheError

from .contract import Kernels

__all__ = ["BACKENDS", "Kernels", "UnknownBackend", "get", "register"]

BACKENDS: dict[str, str] = {
    "reference": "mimo_cache.kernels.reference:ReferenceKernels",
    "torch": "mimo_cache.kernels.torch_backend:TorchKernels",
}
"""Backends by name, as "module:class"; a module is imported when its backend is asked for."""


class UnknownBackend(MimoCacheError, ValueError):
    """A backend that is not in the registry."""


def get(name: str) -> type[Kernels]:
    """The class of a backend. Raises `UnknownBackend` for a name or a class that is not there."""
    if not isinstance(name, str) or name not in BACKENDS:
        raise UnknownBackend(f"backend is {name!r}, allowed is one of {', '.join(sorted(BACKENDS))}")
    module, _, cls = BACKENDS[name].partition(":")
    try:
        found: Any = getattr(import_module(module), cls)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownBackend(f"backend {name!r} is {BACKENDS[name]}, which cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Kernels)):
        raise UnknownBackend(f"backend {name!r} is {BACKENDS[name]}, which is no class of Kernels")
    return found


def register(name: str, target: str) -> None:
    """Adds or replaces a backend; `target` is "module:class"."""
    if ":" not in target:
        raise UnknownBackend(f"target is {target!r}, allowed is module:class")
    BACKENDS[name] = target
