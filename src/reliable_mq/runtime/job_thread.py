"""A thread that runs a store's jobs one after another.

It receives jobs and returns nothing: a job reports its own result. After a job that raised, no
further job runs.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from reliable_mq.runtime.broken import OnBroken

_Job = Callable[[], object]


class Jobs(Protocol):
    """Runs jobs one after another in the background."""

    def put(self, job: _Job) -> None:
        """Queue a job behind the earlier ones."""
        ...

    def close(self) -> None:
        """Return when all queued jobs are done."""
        ...


class JobThread:
    """A thread that runs jobs in order.

    Args:
        on_broken: called in the thread with the exception of a job. No job runs after it.
    """

    def __init__(self, on_broken: OnBroken) -> None:
        self._on_broken = on_broken
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="reliable-mq-writer", daemon=True)
        self._thread.start()

    def put(self, job: _Job) -> None:
        """Queue a job behind the earlier ones."""
        self._jobs.put(job)

    def close(self) -> None:
        """Run all queued jobs, end the thread, and return."""
        self._jobs.put(None)
        self._thread.join()

    def _serve(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
        except Exception as error:  # noqa: BLE001 - on_broken handles it
            self._on_broken(error)
