"""Loading of the configuration files at a start, including files that a crash left broken.

Receives a loader for each path. Never guesses: an invalid file stops the start, unless the backup
copy beside it is readable.
Source: Apache RocketMQ `ConfigManager`, `MixAll.string2File`. The copy `X.bak` has the content
before the last change. It is loaded when X is missing, empty or broken. Without a copy Apache's
broker starts with an empty table; this broker refuses a broken file without a copy.
"""

from collections.abc import Callable, Mapping

import msgspec

from reliable_mq.broker_core.store.commit_log import FOLDER as LOG_FOLDER
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.errors import StoreCorrupt
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

Load = Callable[[str], None]


def load_tables(disk: Disk, loaders: Mapping[str, Load]) -> None:
    """Pass the content of each file that exists to its loader.

    Raises:
        StoreCorrupt: when a file is broken and has no readable copy. No file was changed.
    """
    for path, load in loaders.items():
        _load(disk, path, load)


def warn_of_missing(disk: Disk, path: str) -> None:
    """Warn if a file that every broker writes is missing beside a log: it was lost."""
    if disk.names(LOG_FOLDER) and disk.size_of(path) < 0 and disk.size_of(f"{path}.bak") < 0:
        broker_events.CONFIG_MISSING.log(log, path=path)


def _load(disk: Disk, path: str, load: Load) -> None:
    copy = f"{path}.bak"
    try:
        text = _read(disk, path)
        if text:
            load(text)
            return
        fault = "empty" if disk.size_of(path) == 0 else "missing"
    except (ValueError, msgspec.ValidationError) as error:
        if not _load_copy(disk, copy, load):
            raise StoreCorrupt(f"{path}: {error}; restore it from a copy") from error
        fault = "broken"
    else:
        if not _load_copy(disk, copy, load):
            if fault == "empty":
                broker_events.CONFIG_EMPTY.log(log, path=path)
            return
    broker_events.CONFIG_RESTORED.log(log, path=path, fault=fault, copy=copy)


def _load_copy(disk: Disk, copy: str, load: Load) -> bool:
    """Load a copy; return whether a readable copy exists."""
    try:
        text = _read(disk, copy)
        if text:
            load(text)
    except (ValueError, msgspec.ValidationError):
        return False
    return bool(text)


def _read(disk: Disk, path: str) -> str:
    """Return the text of a file.

    Raises:
        ValueError: when it has zero bytes, as after a write that the medium has only in part. A
            lenient reader takes them within a text.
    """
    text = disk.read_text(path)
    if "\0" in text:
        raise ValueError("the file has zero bytes")
    return text
