"""The log of `reliable-mq dev`: lines of several processes, each with the name of its process."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from reliable_mq.cli.saying import coloured, say_raw
from reliable_mq.plain_text import printable

COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green")
NAME_WIDTH = 9


class DevLog:
    """Writes whole lines to standard output, from any thread.

    Invariant: a name keeps its colour.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._colours: dict[str, str] = {}
        self._has_reader = True

    @property
    def has_reader(self) -> bool:
        """Whether standard output can still be written to."""
        return self._has_reader

    def write_line(self, name: str, line: str) -> None:
        """Write one line of a process; unprintable characters become escapes.

        Nothing is raised when the terminal was closed, or when the reader of a pipe has ended:
        the processes must be read and stopped all the same.
        """
        with self._lock:
            if not self._has_reader:
                return
            colour = self._colours.setdefault(name, COLOURS[len(self._colours) % len(COLOURS)])
            try:
                say_raw(f"{coloured(f'{name:<{NAME_WIDTH}} |', colour)} {printable(line)}")
            except OSError:
                self._has_reader = False
                with contextlib.suppress(OSError):  # what is buffered must not fail at the exit
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def copy_stream(
        self, name: str, stream: IO[str], is_shown: Callable[[str], bool]
    ) -> threading.Thread:
        """Copy the lines of a stream in a thread, until its end; return the thread.

        Args:
            name: the name of the process.
            stream: its output.
            is_shown: called with each line; says whether the log gets it.
        """

        def copy() -> None:
            with stream:
                for line in stream:
                    text = line.rstrip("\n")
                    if is_shown(text):
                        self.write_line(name, text)

        thread = threading.Thread(target=copy, name=f"log of {name}", daemon=True)
        thread.start()
        return thread


class FollowedFile:
    """A log file whose new lines are copied when `copy_new_lines` is called."""

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._path = path
        self._place = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def pass_over(self) -> None:
        """Copy none of the lines that are there by now."""
        self._place = self._path.stat().st_size if self._path.exists() else 0
        self._rest = b""

    def copy_new_lines(self, log: DevLog) -> None:
        """Copy the whole lines that were added since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._place)
            added = file.read()
        self._place += len(added)
        *lines, self._rest = (self._rest + added).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").strip()
            if text:
                log.write_line(self._name, text)
