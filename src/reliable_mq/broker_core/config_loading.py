"""Reading the configuration files at a start, those that a crash left empty or broken included.

Receives who takes which file's text; hands on nothing; refuses to guess: a file that says what it
cannot say stops the start, unless the copy beside it can be read.
Source: Apache RocketMQ `ConfigManager`, `MixAll.string2File`: what a file said before its last
change stands in `X.bak`, and is taken when X is missing, empty or broken. Apache's broker then goes
on without a table where no copy is; here a broken file without a copy is refused.
"""

from collections.abc import Callable, Mapping

import msgspec

from reliable_mq.broker_core.store.commit_log import FOLDER as LOG_FOLDER
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.errors import StoreCorrupt
from reliable_mq.line_limit import limited_log

log = limited_log(__name__)

Load = Callable[[str], None]


def load_tables(disk: Disk, loaders: Mapping[str, Load]) -> None:
    """Let each loader take the text of its file, if there is one.

    Raises:
        StoreCorrupt: when a file is broken and has no copy that can be read. Nothing was changed.
    """
    for path, load in loaders.items():
        _load(disk, path, load)


def warn_of_missing(disk: Disk, path: str) -> None:
    """Say that a file which every broker writes is missing beside a log: something lost it."""
    if disk.names(LOG_FOLDER) and disk.size_of(path) < 0 and disk.size_of(f"{path}.bak") < 0:
        log.warning(
            "%s is missing beside a log: topics, and whatever else config/ held (settings of "
            "groups, how far they have come), begin anew; restore the folder from a copy",
            path,
        )


def _load(disk: Disk, path: str, load: Load) -> None:
    copy = f"{path}.bak"
    try:
        text = disk.read_text(path)
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
                log.warning("%s is empty and has no copy that can be read: it says nothing", path)
            return
    log.warning("%s is %s, what it said before was taken from %s", path, fault, copy)


def _load_copy(disk: Disk, copy: str, load: Load) -> bool:
    """Load a copy; return whether there is one that can be read."""
    try:
        text = disk.read_text(copy)
        if text:
            load(text)
    except (ValueError, msgspec.ValidationError):
        return False
    return bool(text)
