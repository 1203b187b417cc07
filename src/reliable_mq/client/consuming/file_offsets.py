"""The offset file of a member of a broadcasting group.

    <folder>/<host>@<instance>/<group>/offsets.json       its offsets
                                       offsets.json.bak   its offsets before the last save
                                       offsets.lock       locked while a process uses them

It receives and returns offsets; `local_offsets` makes the text of the file.
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
"""The instance of clients without a name, as in Apache's broadcasting clients."""
_FOLDER = ".rocketmq_offsets"


class FileOffsets:
    """The offsets of one group in a file. Any thread may save. One process uses the file at a time.

    Args:
        path: the file; its folder is created if it does not exist.

    Raises:
        StoreInUse: when another process, or another client of this one, uses the file.
        StoreCorrupt: when neither the file nor its backup can be decoded.
        StoreError: when the file cannot be read.
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
        """Open the offsets of a group on this machine.

        Raises:
            ConfigurationError: when another client uses them: two with one name would overwrite
                each other's offsets.
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

    def remember_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Remember `offsets`; those of other queues stay."""
        self._known = {**self._known, **offsets}

    def save(self) -> None:
        """Replace the file atomically and durably. The old file becomes the backup.

        Raises:
            StoreError: when that fails; then the file or its backup is unchanged.
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
        """Release the file for another process."""
        self._lock.close()


def _sync_folder(path: Path) -> None:
    """Sync a folder, so that its names survive a power failure."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.bak")


def _read(path: Path) -> dict[MessageQueue, int]:
    """Return the offsets in the file, or in its backup if it is missing or corrupt; or none."""
    failure: ValueError | None = None
    for each in (path, _copy_of(path)):
        try:
            return decode_offsets(each.read_bytes())
        except FileNotFoundError:
            continue
        except ValueError as error:  # includes bytes that are not UTF-8
            failure = failure or error
        except OSError as error:
            raise StoreError(f"{each} cannot be read: {error}") from error
    if failure is not None:
        raise StoreCorrupt(
            f"{path} and its backup cannot be decoded: {failure}; remove both, and the"
            " group begins where its subscription says"
        )
    return {}
