"""Replaces a file at once: who reads it sees the old text or the new one, never a part.

Receives a path and a text. A process that is killed while it writes leaves a file with a hidden
name beside it, which collectors of text files pass over.
"""

import os
from pathlib import Path

from reliable_mq.errors import ConfigurationError

_READABLE_BY_ALL = 0o644


def check_replaceable(option: str, path: Path) -> None:
    """Make sure that a file can be written, before hours have gone by.

    Raises:
        ConfigurationError: names what is in the way.
    """
    folder = path.parent
    if path.is_dir():
        raise ConfigurationError(f"{option}: {path} is a folder, not a file")
    if not folder.is_dir():
        raise ConfigurationError(f"{option}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(f"{option}: nothing can be written into {folder}")


def replace_file(path: Path, text: str) -> None:
    """Write `text` beside `path` and move it there.

    Raises:
        OSError: it could not be written; the old file stays.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.chmod(_READABLE_BY_ALL)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
