"""The slave of chaos: it copies the broker's log, is killed and stopped like everything else.

The master waits for its slave (`SYNC_MASTER`) while there is one.
"""

from pathlib import Path

from bench.reliable_mq_broker import ReliableMQBroker

NAME = "chaos"
MASTER = {"brokerName": NAME, "brokerRole": "SYNC_MASTER"}
_SLAVE = {"brokerName": NAME, "brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}


class Slave:
    """A slave of our broker, on a store and a port that it keeps over restarts.

    Args:
        directory: holds its store and logs.
        name_servers: where it finds its master.
    """

    def __init__(self, directory: Path, name_servers: str) -> None:
        self._server = ReliableMQBroker(directory, settings=_SLAVE, name_servers=name_servers)
        self.store = self._server.store

    @property
    def pid(self) -> int:
        """The process id, while it runs."""
        return self._server.process.child.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._server.process.alive

    @property
    def address(self) -> str:
        """Where it answers."""
        return self._server.address

    def start(self) -> None:
        """Start it, the first time or again."""
        self._server.start()

    def kill(self) -> None:
        """SIGKILL."""
        self._server.kill()

    def end(self) -> None:
        """End it, if it was ever started."""
        if self._server.starts:
            self._server.kill()
