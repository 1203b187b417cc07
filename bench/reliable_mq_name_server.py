"""Our name server as users start it: `reliable-mq namesrv` in a process of its own."""

from pathlib import Path
from typing import Self

from bench.child_process import LoggedProcess
from bench.reliable_mq_broker import COMMAND, START_SECONDS

READY_LINE = r"^ready namesrv=(\S+)$"


class ReliableMQNameServer:
    """A name server on a free port. A context manager.

    Args:
        directory: holds its log.
    """

    def __init__(self, directory: Path) -> None:
        self._log = directory / "namesrv.log"
        self.address = ""

    def start(self) -> None:
        """Start the process; returns when its ready line has come."""
        self.process = LoggedProcess((*COMMAND, "namesrv", "--port", "0"), self._log)
        try:
            self.address = self.process.wait_for(READY_LINE, START_SECONDS)[1]
        except BaseException:
            self.process.kill()
            raise

    def stop(self) -> None:
        self.process.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
