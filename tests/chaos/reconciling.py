"""Reconciliations of a system in chaos, one after another, each a process of its own.

Receives where the ledgers are; hands on what was found though it was older than the grace time. A
run that says that a server is away is no answer, and no failure: somebody had just killed it.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

CLEAN, FAILED, FINDINGS = 0, 1, 2
SECONDS_MAX = 600.0
AWAY = ("database:", "the database", "was closed", "Connection refused", "is not whole")
"""What the one line of a run says that could not read a ledger because its server was away."""


class Report(NamedTuple):
    """What the reconciliations came to; `unanswered`: the line of each that failed."""

    runs: int
    unanswered: list[str]
    findings: list[dict[str, Any]]
    last_was_clean: bool

    @property
    def failures(self) -> list[str]:
        """The lines of runs that failed though no server was said to be away."""
        return [line for line in self.unanswered if not any(word in line for word in AWAY)]


class Reconciling:
    """Reconciles again and again, at most one run at a time.

    Args:
        urls: SQLAlchemy URLs of the databases.
        store: the broker's store directory.
        directory: for the output.
        every_seconds: from the beginning of one run to that of the next, at least.
        grace_seconds: what is younger may be in any state.
    """

    def __init__(
        self,
        urls: Sequence[str],
        store: Path,
        directory: Path,
        every_seconds: float,
        grace_seconds: float,
    ) -> None:
        self._urls, self._store, self._directory = urls, store, directory
        self._every, self._grace = every_seconds, grace_seconds
        self._process: subprocess.Popen[str] | None = None
        self._due = time.monotonic() + every_seconds
        self._number = 0
        self.unanswered: list[str] = []
        self.findings: list[dict[str, Any]] = []

    def tick(self) -> None:
        """Begin what is due and take up what has ended."""
        if self._process is not None and self._process.poll() is not None:
            self._collect()
        if self._process is None and time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            self._begin(f"{self._grace:g}s")

    def finish(self) -> Report:
        """Let the run that is under way end, then judge everything without any grace.

        Whoever calls it has let the system come to rest.
        """
        if self._process is not None:
            self._process.wait(SECONDS_MAX)
            self._collect()
        before = len(self.unanswered), len(self.findings)
        self._begin("0s")
        assert self._process is not None
        self._process.wait(SECONDS_MAX)
        self._collect()
        is_clean = before == (len(self.unanswered), len(self.findings))
        return Report(self._number, self.unanswered, self.findings, is_clean)

    def stop(self) -> None:
        """End the run that is under way."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def _out(self) -> Path:
        return self._directory / f"reconciliation-{self._number}"

    def _begin(self, grace: str) -> None:
        self._number += 1
        databases = (word for url in self._urls for word in ("--db", url))
        words = (*databases, "--store", str(self._store), "--out", str(self._out))
        command = (sys.executable, "-m", "reliable_mq.cli.main", "reconcile", *words)
        with self._out.with_suffix(".log").open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--grace", grace],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                text=True,
            )

    def _collect(self) -> None:
        assert self._process is not None
        code, self._process = self._process.returncode, None
        if code == FINDINGS:
            summary = json.loads((self._out / "summary.json").read_text())
            self.findings += summary["findings"] or [{"verdict": "damage in the log"}]
        elif code != CLEAN:
            said = self._out.with_suffix(".log").read_text().strip().splitlines()
            self.unanswered.append(said[-1] if said else f"exit code {code}")
        if code == CLEAN:
            shutil.rmtree(self._out, ignore_errors=True)
