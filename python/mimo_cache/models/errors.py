"""Errors of reading models, and sentences about values that are wrong."""

from __future__ import annotations

import importlib
import json
from types import ModuleType

from mimo_cache import ConfigError, MimoCacheError

SHOWN = 80
"""Longest text of a value in a message."""


class CheckpointError(MimoCacheError, ValueError):
    """Files of weights that are broken, or that do not hold what the configuration says."""


class MissingExtraError(MimoCacheError, ImportError):
    """A library that only an extra of this package installs is missing."""


def shown(value: object) -> str:
    """A value as it stands in a JSON file, cut to a length that fits a message."""
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def bad(field: str, value: str, allowed: str) -> ConfigError:
    """The error "field is value, allowed is …", worded like those of `mimo_cache.Geometry`."""
    return ConfigError(f"config: {field} is {value}, allowed is {allowed}")


def need(library: str) -> ModuleType:
    """Imports `library`, or says in one sentence which extra brings it."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        name = library.partition(".")[0]
        raise MissingExtraError(
            f"running a model needs {name}, which cannot be imported here ({error}): "
            "install it with pip install 'mimo-cache[runner]'"
        ) from error
