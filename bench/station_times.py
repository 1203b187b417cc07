"""Where the processor time of a process goes, by station of the walk.

A sampling thread looks at every other thread fifty times a second, and books the processor time
that the thread used since the last look on the innermost frame that belongs to a station. What a
station calls (SQLAlchemy, msgspec, the kernel) counts as its own. Waiting costs nothing here.

    python -m bench.station_times times.json -- broker --store DIR      the command, watched
"""

import gc
import json
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType

import reliable_mq

PACKAGE = str(Path(reliable_mq.__file__).parent) + "/"
EXAMPLES = str(Path(__file__).parent.parent / "examples") + "/"
SHARED_FOLDER = "broker_core"  # its folders are the stations
SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_BETWEEN_LINES = 0.5


def station_of(frame: FrameType | None) -> str:
    """Return the station of the innermost frame that has one, else "other"."""
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(EXAMPLES):
            return "examples"
        if file.startswith(PACKAGE):
            folder, *rest = file.removeprefix(PACKAGE).removesuffix(".py").split("/")
            return f"{folder}/{rest[0]}" if folder == SHARED_FOLDER else folder
        frame = frame.f_back
    return "other"


def frames_of_threads() -> dict[int, FrameType]:
    """Return what every thread is doing.

    A garbage collection within `sys._current_frames` can stop the process for ever: up to Python
    3.11.7 it happens under a lock that finalizers need (CPython gh-106883).
    """
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        gc.enable()


class StationTimes(threading.Thread):
    """The sampling thread: appends `{"at": epoch seconds, "seconds": {station: so far}}` to a file.

    Linux only: other systems do not tell the processor time of a thread.
    """

    def __init__(self, output: Path) -> None:
        super().__init__(name="station-times", daemon=True)
        self._output = output
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._used: dict[int, float] = {}

    def run(self) -> None:
        next_line = 0.0
        with self._output.open("w") as lines:
            while True:
                time.sleep(SECONDS_BETWEEN_LOOKS)
                self.look()
                if time.time() >= next_line:
                    next_line = time.time() + SECONDS_BETWEEN_LINES
                    lines.write(json.dumps({"at": time.time(), "seconds": self._seconds}) + "\n")
                    lines.flush()

    def look(self) -> None:
        """Book what every other thread used since the last look."""
        for thread, frame in frames_of_threads().items():
            if thread == self.ident:
                continue
            try:
                used = time.clock_gettime(time.pthread_getcpuclockid(thread))
            except OSError:  # the thread has ended in the meantime
                continue
            before = self._used.get(thread, 0.0)
            if used > before:
                self._seconds[station_of(frame)] += used - before
                self._used[thread] = used


def seconds_between(output: Path, begin: float, end: float) -> dict[str, float]:
    """Return the processor seconds by station that the file tells of between two times."""
    before: dict[str, float] = {}
    after: dict[str, float] = {}
    for line in output.read_text().splitlines():
        look = json.loads(line)
        if look["at"] <= begin:
            before = look["seconds"]
        if look["at"] <= end:
            after = look["seconds"]
    return {station: seconds - before.get(station, 0.0) for station, seconds in after.items()}


def main() -> None:
    """Run `reliable-mq` with the words after `--` in this process, watched."""
    output, _dashes, *words = sys.argv[1:]
    from reliable_mq.cli.main import run  # noqa: PLC0415 - its import is not the command's time

    StationTimes(Path(output)).start()
    run(words)


if __name__ == "__main__":
    main()
