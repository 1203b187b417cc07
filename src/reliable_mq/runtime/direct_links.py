"""The direct links of one client: for brokers to which one thread often sends alone.

The loop opens and closes them, in addition to its own connection. Threads take them for a request.
A thread that sends rarely, or at the same time as others, uses the loop's connection.
"""

import asyncio
import socket
from typing import Any

from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.busy_wait import BusyWait
from reliable_mq.runtime.direct_link import DirectLink
from reliable_mq.runtime.link import Link
from reliable_mq.telemetry import client_events

log = limited_log(__name__)

ALONE_TIMES = 64
"""After this many sends of a single thread on a link, a direct link is opened."""
IDLE_SECONDS = 10.0
"""A direct link that no thread has used for 10 to 20 seconds is closed."""

_IPV4_PARTS = 2  # of a socket's name: address and port


class DirectLinks:
    """One direct link for each address.

    Args:
        connect_timeout: seconds to wait for a connection.
        busy_wait_seconds: how long a thread polls for a reply before it sleeps; 0: not at all.
    """

    def __init__(self, connect_timeout: float, busy_wait_seconds: float = 0.0) -> None:
        self._connect_timeout = connect_timeout
        self._busy_wait_seconds = busy_wait_seconds
        self._open: dict[str, DirectLink] = {}
        self._alone: dict[str, int] = {}  # number of sends of a single thread, by address
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._looks: dict[str, asyncio.TimerHandle] = {}

    @property
    def are_any(self) -> bool:
        """Whether there is a direct link. Safe to call from any thread."""
        return bool(self._open)

    def acquire(self, link: Link) -> DirectLink | None:
        """Take the direct link for an address, if it is free and keeps the order of requests.

        Any thread may call it. The thread must return the link with `DirectLink.release`.
        """
        direct = self._open.get(link.address)
        if direct is None or not link.is_settled or not direct.acquire():
            return None
        return direct

    def note_single_thread(self, link: Link) -> None:
        """Note that one thread sends alone on a link. After `ALONE_TIMES`, open a direct link."""
        address = link.address
        count = self._alone[address] = self._alone.get(address, 0) + 1
        if count < ALONE_TIMES or address in self._opening:
            return
        self._alone[address] = 0
        direct, peer_name = self._open.get(address), link.peer_name
        if peer_name is not None and (direct is None or direct.is_closed):
            task = asyncio.create_task(self._connect(address, peer_name))
            self._opening[address] = task
            task.add_done_callback(lambda _: self._opening.pop(address, None))

    def drop(self, address: str) -> None:
        """Close the direct link to an address, or stop opening it."""
        opening = self._opening.get(address)
        if opening is not None:
            opening.cancel()
        self._alone.pop(address, None)
        self._end(address)

    def _end(self, address: str) -> None:
        look = self._looks.pop(address, None)
        if look is not None:
            look.cancel()
        direct = self._open.pop(address, None)
        if direct is not None:
            direct.close()

    async def _connect(self, address: str, peer_name: tuple[Any, ...]) -> None:
        family = socket.AF_INET if len(peer_name) == _IPV4_PARTS else socket.AF_INET6
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            async with asyncio.timeout(self._connect_timeout):
                await asyncio.get_running_loop().sock_connect(connection, peer_name)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, TimeoutError) as error:
            connection.close()
            client_events.SECOND_CONNECTION_FAILED.log(log, peer=address, error=error)
            return
        except BaseException:  # the loop's link is lost meanwhile
            connection.close()
            raise
        self._end(address)
        self._open[address] = DirectLink(address, connection, BusyWait(self._busy_wait_seconds))
        self._look_later(address)

    def _look_later(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        self._looks[address] = loop.call_later(IDLE_SECONDS, self._close_if_unused, address)

    def _close_if_unused(self, address: str) -> None:
        """Close the direct link to an address if no thread has used it for a while."""
        direct = self._open[address]
        if direct.was_used and not direct.is_closed:
            direct.was_used = False
            self._look_later(address)
        else:
            self._end(address)
