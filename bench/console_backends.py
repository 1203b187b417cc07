"""What PostgreSQL does for one process: the processor time of the servers of its connections.

Linux only. PostgreSQL has a process for each connection.
"""

from pathlib import Path

import psycopg

from bench.quiet import used_seconds


def _ports_of(pid: int) -> set[int]:
    """Return the local ports of the TCP connections of a process."""
    inodes = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = str(each.readlink())
        except OSError:  # it was closed meanwhile
            continue
        if name.startswith("socket:["):
            inodes.add(name[8:-1])
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    fields = (line.split() for line in lines)
    return {int(each[1].rpartition(":")[2], 16) for each in fields if each[9] in inodes}


class Backends:
    """The processor time that PostgreSQL has used for a process, also in connections that ended.

    What a connection does after the last look before its end is not seen.

    Args:
        pid: the process.
        connection: any connection to the server.
    """

    def __init__(self, pid: int, connection: psycopg.Connection) -> None:
        self._pid = pid
        self._connection = connection
        self._seen: dict[int, float] = {}

    def seconds(self) -> float:
        """Look, and return the processor seconds so far."""
        asked = "SELECT pid, client_port FROM pg_stat_activity WHERE client_port IS NOT NULL"
        ports = _ports_of(self._pid)
        for pid, port in self._connection.execute(asked).fetchall():
            if port in ports and Path(f"/proc/{pid}").exists():
                self._seen[pid] = used_seconds([pid])
        return sum(self._seen.values())
