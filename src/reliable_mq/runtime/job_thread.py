"""A thread that does a store's jobs, one after another.

Receives jobs; hands back nothing, a job tells its result itself; refuses to go on behind a job that
raised.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from reliable_mq.runtime.broken import OnBroken

_Job = Callable[[], object]


class JobThread:
    """A thread that does jobs.

    Args:
        on_broken: takes what a job raised, in the thread; no job is done after it.
    """

    def __init__(self, on_broken: OnBroken) -> None:
        self._on_broken = on_broken
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="reliable-mq-writer", daemon=True)
        self._thread.start()

    def put(self, job: _Job) -> None:
        """Do a job when those before it are done."""
        self._jobs.put(job)

    def close(self) -> None:
        """Return when all that was put is done; the thread ends."""
        self._jobs.put(None)
        self._thread.join()

    def _serve(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
        except Exception as error:  # noqa: BLE001 - told there
            self._on_broken(error)
