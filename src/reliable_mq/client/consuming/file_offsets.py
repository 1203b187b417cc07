"""The file in which a member of a group that broadcasts keeps its offsets.

    <folder>/<host>@<instance>/<group>/offsets.json       what it has come to
                                       offsets.json.bak   what it had come to the time before
                                       offsets.lock       held while a process uses them

Receives and hands on offsets; their text is made by `local_offsets`.
Source: Apache RocketMQ `LocalFileOffsetStore`, `MixAll.string2File`.
"""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from reliable_mq.client.consuming.local_offsets import (
    OFFSET_NOT_KNOWN,
    decode_offsets,
    encode_offsets,
)
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError, StoreCorrupt, StoreError, StoreInUse
from reliable_mq.message import MessageQueue
from reliable_mq.runtime.folder_lock import FolderLock

UNNAMED_INSTANCE = "DEFAULT"
"""The instance of clients that were given no name, as Apache's broadcasting clients call it."""
_FOLDER = ".rocketmq_offsets"


class FileOffsets:
    """The offsets of one group in a file. Any thread may save; one process has it at a time.

    Args:
        path: of the file; its folder is made when it is not there.

    Raises:
        StoreInUse: when another process, or another client of this one, has it.
        StoreCorrupt: when neither the file nor its copy reads.
        StoreError: when it cannot be read at all.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saving = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(path.with_name("offsets.lock"))
        except OSError as error:
            raise StoreError(f"offsets cannot be kept in {path}: {error}") from error
        try:
            self._known = _read(path)
        except BaseException:
            self._lock.close()
            raise

    @classmethod
    def of_group(cls, group: str, host: str, settings: ClientSettings) -> Self:
        """Open the offsets of a group at this machine.

        Raises:
            ConfigurationError: when another client has them: two of one name would write over each
                other's.
            StoreError: when they cannot be read.
        """
        folder = Path(settings.offset_folder) if settings.offset_folder else Path.home() / _FOLDER
        instance = settings.instance_name or UNNAMED_INSTANCE
        try:
            return cls(folder / f"{host}@{instance}" / group / "offsets.json")
        except StoreInUse as error:
            raise ConfigurationError(
                f"another client of this machine broadcasts to group {group} as {instance}:"
                " give each an instance_name of its own"
            ) from error

    def find(self, queue: MessageQueue) -> int:
        """Return the next offset to be read in `queue`, or `OFFSET_NOT_KNOWN`."""
        return self._known.get(queue, OFFSET_NOT_KNOWN)

    def note(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Remember `offsets`; other queues stay known."""
        self._known = {**self._known, **offsets}

    def save(self) -> None:
        """Replace the file, whole and durably; what it held becomes its copy.

        Raises:
            StoreError: when that does not succeed; the file or its copy is as it was.
        """
        with self._saving:
            new = self._path.with_name(f"{self._path.name}.tmp")
            try:
                with new.open("wb") as file:
                    file.write(encode_offsets(self._known))
                    file.flush()
                    os.fsync(file.fileno())
                if self._path.exists():
                    self._path.replace(_copy_of(self._path))
                new.replace(self._path)
                _sync_folder(self._path.parent)
            except OSError as error:
                raise StoreError(f"{self._path} cannot be written: {error}") from error

    def close(self) -> None:
        """Let another process keep them."""
        self._lock.close()


def _sync_folder(path: Path) -> None:
    """Keep the names in a folder, too, across a loss of power."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")


def _read(path: Path) -> dict[MessageQueue, int]:
    """Return what the file says, or its copy when it is missing or broken; nothing without both."""
    failure: ValueError | None = None
    for each in (path, _copy_of(path)):
        try:
            return decode_offsets(each.read_bytes())
        except FileNotFoundError:
            continue
        except ValueError as error:  # a bad character is one, too
            failure = failure or error
        except OSError as error:
            raise StoreError(f"{each} cannot be read: {error}") from error
    if failure is not None:
        raise StoreCorrupt(
            f"{path} does not read, nor does a copy beside it: {failure}; remove both, and the"
            " group begins where its subscription says"
        )
    return {}
