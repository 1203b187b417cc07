"""The metrics of several worker processes at one port, as sums over the processes.

Each worker writes its metrics into files (prometheus_client's multiprocess mode), and the first
process serves what is in the files. A worker that has ended leaves its counters: they are moved
into the files of process 0, so that sums never fall, and files do not pile up.
"""

import logging
import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, mmap_dict, multiprocess

from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)

_files: Any = mmap_dict  # these modules have no types
_multiprocess: Any = multiprocess
_ENDED = 0
_SUMMED = ("counter", "histogram", "summary")
_UNREADABLE = (OSError, RuntimeError, struct.error, ValueError)
"""What reading a file of metrics raises if its process died while it wrote, or the disk is full."""


class WorkerMetrics:
    """The folder with the metrics of the workers, and the registry that serves them.

    Invariant: while files are moved, no scrape reads.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="reliable-mq-metrics-"))
        self._lock = threading.Lock()
        self._collector = _multiprocess.MultiProcessCollector(None, str(self._folder))
        self.registry = CollectorRegistry()
        self.registry.register(self)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a worker."""
        return {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(self._folder)}

    def collect(self) -> Iterable[Any]:
        """Return the sums over all workers; called by the registry."""
        with self._lock:
            return list(self._collector.collect())

    def worker_ended(self, number: int) -> None:
        """Keep the counters of the process with this number, and drop its gauges.

        A file that cannot be read is dropped, and the log says so: no later scrape could read it.
        """
        with self._lock:
            _multiprocess.mark_process_dead(number, str(self._folder))
            for kind in _SUMMED:
                own = self._folder / f"{kind}_{number}.db"
                if not own.exists():
                    continue
                try:
                    self._add(own, self._folder / f"{kind}_{_ENDED}.db")
                except _UNREADABLE as error:
                    application_events.WORKER_METRICS_LOST.log(log, pid=number, error=error)
                own.unlink(missing_ok=True)

    def _add(self, own: Path, total: Path) -> None:
        added = list(_files.MmapedDict.read_all_values_from_file(str(own)))
        target = _files.MmapedDict(str(total))
        try:
            for key, value, time, _ in added:
                target.write_value(key, target.read_value(key)[0] + value, time)
        finally:
            target.close()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
