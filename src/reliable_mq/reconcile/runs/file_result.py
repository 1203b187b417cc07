"""Read the findings of a run from local files, which its workers wrote."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyarrow import parquet

from reliable_mq.reconcile.judgement.merge import merged
from reliable_mq.reconcile.runs.run_folder import FINDINGS, FINDINGS_AT_ONCE, FINDINGS_ORDER


class FileResult:
    """The findings in the folder of a run: one file for each task, each sorted by message.

    Invariant: about `FINDINGS_AT_ONCE` rows are in memory at a time.
    """

    def __init__(self, folder: Path) -> None:
        self._files = sorted((folder / FINDINGS).glob("*.parquet"))

    def findings(self) -> Iterator[dict[str, Any]]:
        """Yield every finding, sorted by message id."""
        at_once = max(1, FINDINGS_AT_ONCE // max(1, len(self._files)))
        streams = [parquet.ParquetFile(file).iter_batches(at_once) for file in self._files]
        for table in merged(streams, FINDINGS_ORDER):
            yield from table.to_pylist()
