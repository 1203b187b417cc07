"""The folders of runs on local disks; see `run_folder`.

Receives the output folder. A process that writes a run's folder locks the file `owner` in it as
long as it lives. The system releases the lock when the process ends in any way. So a folder without
a living owner is found reliably. Folders are created and swept under the lock `.sweep`, by one
process at a time. One rename of the link `latest` makes a run the newest. The files for people and
scripts, such as `report.html`, are links through it.
"""

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from reliable_mq.reconcile.runs.run_folder import (
    LATEST,
    OWNER,
    REPORT,
    SUMMARY,
    VERDICTS,
    Known,
    folder_of,
    run_in,
    too_many,
)

_LATEST_FOLDER = "latest"
_LINKS = {name: f"{_LATEST_FOLDER}/{name}" for name in (VERDICTS, REPORT, SUMMARY)} | {
    LATEST: f"{_LATEST_FOLDER}/{SUMMARY}"
}


class LocalRunFolder:
    """The folder of one run. Invariant V3: `owner` is locked until the run has ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir()
        self._owner: BinaryIO = (path / OWNER).open("wb")
        fcntl.flock(self._owner, fcntl.LOCK_EX)
        self._owner.write(f"{os.uname().nodename} process {os.getpid()}\n".encode())
        self._owner.flush()

    @property
    def uri(self) -> str:
        # Hadoop needs the scheme of local files, and no escapes.
        return f"file://{self._path.resolve()}"

    @property
    def place(self) -> str:
        return str(self._path.resolve())

    def write(self, name: str, text: str) -> None:
        hidden = self._path / f".{name}"
        with hidden.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(self._path / name)

    def publish(self) -> None:
        out = self._path.parent
        _link(out / _LATEST_FOLDER, self._path.name)
        for name, target in _LINKS.items():
            if not _points_to(out / name, target):
                _link(out / name, target)
        (self._path / OWNER).unlink(missing_ok=True)
        self._owner.close()

    def remove(self) -> None:
        _remove(self._path)
        self._owner.close()


def _remove(path: Path) -> None:
    """Remove a run's folder. The summary goes first, because it marks the folder as complete."""
    (path / SUMMARY).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _points_to(path: Path, target: str) -> bool:
    return path.is_symlink() and str(path.readlink()) == target


def _link(path: Path, target: str) -> None:
    """Make `path` a link. If it is a link or a file already, it is replaced in one step."""
    if path.is_dir() and not path.is_symlink():  # as releases before 0.2 left it
        shutil.rmtree(path)
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    hidden.unlink(missing_ok=True)
    hidden.symlink_to(target)
    hidden.replace(path)


class LocalRunFolders:
    """The folders of all runs in one local folder."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def begin(self, run_id: str) -> LocalRunFolder:
        """Create the folder of a run.

        Raises:
            OSError: when it cannot be created.
        """
        with self._alone():
            return LocalRunFolder(self._out / folder_of(run_id))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._out.mkdir(parents=True, exist_ok=True)
        with (self._out / ".sweep").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def sweep(self, known: Known) -> list[str]:
        with self._alone():
            dead = {run_id: path for run_id, path in self._folders() if _is_dead(path)}
            kept = known(dead) if dead else ()
            for run_id, path in dead.items():
                if run_id in kept:
                    (path / OWNER).unlink(missing_ok=True)
                else:
                    _remove(path)
        return [run_id for run_id in dead if run_id not in kept]

    def remove_except_newest(self, number: int, needed: Collection[str]) -> list[str]:
        ended = {
            run_id: path
            for run_id, path in self._folders()
            if (path / SUMMARY).exists() and not (path / OWNER).exists()
        }
        removed = too_many(ended, number, needed)
        for run_id in removed:
            _remove(ended[run_id])
        return removed

    def _folders(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self._out.iterdir()) if self._out.is_dir() else ():
            run_id = run_in(path.name)
            if run_id is not None and path.is_dir() and not path.is_symlink():
                yield run_id, path


def _is_dead(path: Path) -> bool:
    """Return whether the process of a run died before the run ended."""
    try:
        with (path / OWNER).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return not (path / SUMMARY).exists()
    return True
