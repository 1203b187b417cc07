"""The slave of chaos: it copies the broker's log, is killed and stopped like everything else.

The master waits for its slave (`SYNC_MASTER`) while there is one.
"""

from pathlib import Path

from tests.chaos.brokers import OurBroker

NAME = "chaos"
MASTER = {"brokerName": NAME, "brokerRole": "SYNC_MASTER"}
_SLAVE = {"brokerName": NAME, "brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}


class Slave(OurBroker):
    """A slave of our broker, on a store and a port that it keeps over restarts.

    Args:
        directory: holds its store and logs.
        name_servers: where it finds its master.
    """

    def __init__(self, directory: Path, name_servers: str) -> None:
        super().__init__(directory, _SLAVE, name_servers)

    def end(self) -> None:
        """End it, if it was ever started."""
        if self._server.starts:
            self._server.kill()
