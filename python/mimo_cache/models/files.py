"""Opens files that somebody else wrote."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mimo_cache import FileError, MimoCacheError


@contextmanager
def opened(file: Path) -> Iterator[tuple[BinaryIO, int]]:
    """`file` for reading, and its size in bytes. Raises `FileError`, also for what is no regular file."""
    try:
        # Without waiting: a pipe without a writer would wait for ever.
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as source:
            info = os.fstat(source.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise FileError(f"{file}: not a regular file")
            yield source, info.st_size
    except MimoCacheError:
        raise
    except OSError as error:
        raise FileError(f"{file}: {error.strerror or error}") from error
    except ValueError as error:  # a null character in the path
        raise FileError(f"{str(file)!r}: {error}") from error


def read_limited(file: Path, limit: int) -> bytes | None:
    """The bytes of `file`, or None when they are more than `limit`. Raises `FileError`."""
    with opened(file) as (source, size):
        if size > limit:
            return None
        data = source.read(limit + 1)
    return data if len(data) <= limit else None
