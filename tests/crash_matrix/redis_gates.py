"""Gates before Redis: a run's own address, behind which the server can be changed.

Receives the ports of a primary and of a replica that lags behind; hands on addresses that lead to
the primary until it has answered a first script, and to the replica from then on. That is what a
client sees when the primary dies before its replica has heard of the last writes.
"""

import asyncio
import contextlib

from reliable_mq.runtime.loop_thread import LoopThread

CHUNK = 65_536
SCRIPT = b"EVALSHA"


class RedisGates:
    """Addresses that fail over, each by itself. A context manager.

    Invariant: once a gate has failed over, nothing passes to the primary any more.
    """

    def __init__(self, primary: int, replica: int) -> None:
        self._ports = (primary, replica)
        self._thread = LoopThread("redis-gates")
        self._servers: dict[int, asyncio.Server] = {}

    def __enter__(self) -> "RedisGates":
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.close()

    def open(self) -> int:
        """Return the port of a new gate."""
        return self._thread.run(self._open())

    async def _open(self) -> int:
        gate = _Gate(*self._ports)
        server = await asyncio.start_server(gate.serve, "127.0.0.1", 0)
        port: int = server.sockets[0].getsockname()[1]
        self._servers[port] = server
        return port

    def close(self, port: int) -> None:
        """Close a gate that nobody uses any more."""
        self._thread.run(self._close(port))

    async def _close(self, port: int) -> None:
        self._servers.pop(port).close()


class _Gate:
    def __init__(self, primary: int, replica: int) -> None:
        self._primary = primary
        self._replica = replica
        self._has_failed_over = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        on_primary = not self._has_failed_over
        port = self._primary if on_primary else self._replica
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port)
            back = asyncio.create_task(_pump(server_reader, writer))
            while data := await reader.read(CHUNK):
                if on_primary and self._has_failed_over:
                    break
                server_writer.write(data)
                if on_primary and SCRIPT in data:
                    # The primary answers this one, and is never heard of again.
                    self._has_failed_over = True
        except OSError:
            pass
        finally:
            with contextlib.suppress(Exception):
                server_writer.close()
                await back
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
