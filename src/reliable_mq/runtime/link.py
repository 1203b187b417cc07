"""A connection to one broker or name server, shared by everything that talks to it.

Requests of both sides cross on it. A reply finds its waiter by `opaque`, the sender's counter; see
`waiters`.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

from reliable_mq.errors import (
    ConnectionLost,
    FrameError,
    InvariantBroken,
    RequestTimeout,
    Unavailable,
)
from reliable_mq.runtime.host_names import addresses_of
from reliable_mq.runtime.waiters import Waiters
from reliable_mq.wire.command import Command, decode_command, encode_command
from reliable_mq.wire.frame import FrameReader

log = logging.getLogger(__name__)

_OPAQUE_MASK = 0x7FFFFFFF

OnRequest = Callable[[str, Command], Command | None]
"""Gets the peer's address and its request, returns the reply when one is wanted."""


Sign = Callable[[Command], None]


class Link(asyncio.Protocol):
    """One open connection.

    Args:
        address: the peer, "host:port".
        on_request: called for each request of the peer.
        on_lost: called once, when the connection has ended for whatever reason.
        sign: changes each request before it leaves.
    """

    def __init__(
        self,
        address: str,
        on_request: OnRequest,
        on_lost: Callable[["Link"], None],
        sign: Sign | None = None,
    ) -> None:
        self.address = address
        self._sign = sign
        self._on_request = on_request
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._waiters = Waiters(address, self._loop)
        self._opaque = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._why_lost = "the connection is not open"

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._transport is not None

    async def call(self, command: Command, timeout: float) -> Command:
        """Send a request and return its reply.

        Raises:
            RequestTimeout: when no reply comes within `timeout` seconds; the time counts in which
                the peer reads nothing.
            ConnectionLost: when the connection ends first.
        """
        if not self._writable.is_set():
            timeout = await self._room(command, timeout)
        transport = self._open_transport()
        opaque = self._next_opaque()
        command.opaque = opaque
        if self._sign is not None:
            self._sign(command)
        frame = encode_command(command)
        future = self._waiters.add(opaque, command.code, timeout)
        try:
            transport.write(frame)
            return await future
        finally:
            self._waiters.remove(opaque)

    async def post(self, command: Command, timeout: float) -> None:
        """Send a request that wants no reply.

        Raises:
            RequestTimeout: when the peer reads nothing for `timeout` seconds; nothing was sent.
            ConnectionLost: when the connection has ended.
        """
        if not self._writable.is_set():
            await self._room(command, timeout)
        command.opaque = self._next_opaque()
        if self._sign is not None:
            self._sign(command)
        self._open_transport().write(encode_command(command))

    def answer(self, command: Command) -> None:
        """Send a reply to what the peer asked; when the connection has ended, nobody waits for it.

        The few replies of a client wait for no peer that reads too slowly.
        """
        if self._transport is not None:
            self._transport.write(encode_command(command))

    async def _room(self, command: Command, timeout: float) -> float:
        """Wait until the peer reads again, and return what is left of `timeout`.

        Raises:
            RequestTimeout: when nothing is.
        """
        deadline = self._loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._writable.wait()
        except TimeoutError as error:
            raise RequestTimeout(
                f"{self.address} read nothing for {timeout:.3g} s: request {command.code} was"
                " not sent"
            ) from error
        return deadline - self._loop.time()

    def close(self) -> None:
        """End the connection once what was written has left; calls that wait are ended at once."""
        self._lose("this client closed it")

    def abort(self) -> None:
        """End the connection now: what was written to a peer that does not read never leaves."""
        transport = self._transport
        self._lose("this client closed it")
        if transport is not None:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the open connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses

    def data_received(self, data: bytes) -> None:
        """Hand replies to their waiters and requests to the client."""
        try:
            for frame in self._reader.feed(data):
                self._take(decode_command(frame))
        except FrameError as error:
            log.warning("%s sent what is no command, the connection is closed: %s", self, error)
            self._lose(f"{self.address} sent what is no command")

    def connection_lost(self, exc: Exception | None) -> None:
        """End every call that waits."""
        self._lose(f"{self.address} closed the connection" + (f": {exc}" if exc else ""))

    def pause_writing(self) -> None:
        """Let further requests wait: the peer reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let requests go on."""
        self._writable.set()

    def invariants(self) -> None:
        """Hold C1: nobody waits on a connection that is gone."""
        self._waiters.invariants()
        if not self.is_open and self._waiters.waiting:
            raise InvariantBroken(f"C1: a call waits on the lost connection to {self.address}")

    def _take(self, command: Command) -> None:
        if command.is_reply:
            self._waiters.answer(command)
            return
        answer = self._on_request(self.address, command)
        if answer is not None and not command.is_oneway:
            self.answer(answer)

    def _lose(self, why: str) -> None:
        transport, self._transport = self._transport, None
        if transport is None:
            return
        self._why_lost = why
        transport.close()
        self._writable.set()
        self._waiters.fail(lambda: ConnectionLost(why))
        self._on_lost(self)

    def _open_transport(self) -> asyncio.Transport:
        if self._transport is None:
            raise ConnectionLost(self._why_lost)
        return self._transport

    def _next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        return self._opaque

    def __repr__(self) -> str:
        return f"Link({self.address})"


Greet = Callable[[str, Link], Awaitable[None]]
"""Introduces this client on a link that has just opened, before anybody else uses it."""


class Links:
    """One link for each address, opened when it is needed and again after it was lost.

    An address that cannot be reached is left alone for a while that doubles with each failure;
    meanwhile calls to it fail at once, so that the flows can turn to another.

    Args:
        connect_timeout: seconds to wait for a connection, and for the greeting.
        on_request: called for each request of a peer.
        greet: called with each new link.
        on_lost: called with the address of each link that was lost.
        sign: changes each request before it leaves.
        tls: encrypts connections; None: they are plain.
        tls_hostname: the name that certificates must bear; "" for the host of each address.
    """

    BACKOFF_SECONDS = 0.05
    BACKOFF_SECONDS_MAX = 1.0

    def __init__(
        self,
        *,
        connect_timeout: float,
        on_request: OnRequest,
        greet: Greet,
        on_lost: Callable[[str], None],
        sign: Sign | None = None,
        tls: ssl.SSLContext | None = None,
        tls_hostname: str = "",
    ) -> None:
        self._sign = sign
        self._tls = tls
        self._tls_hostname = tls_hostname
        self._connect_timeout = connect_timeout
        self._on_request = on_request
        self._greet = greet
        self._on_lost = on_lost
        self._links: dict[str, Link] = {}
        self._opening: dict[str, asyncio.Task[Link]] = {}
        self._failures: dict[str, tuple[int, float, str]] = {}
        self._closed = False

    async def call(self, address: str, command: Command, timeout: float) -> Command:
        """Send a request to `address` and return its reply.

        Raises:
            RequestTimeout: when no reply comes within `timeout` seconds.
            ConnectionLost: when the address cannot be reached within these seconds, or the
                connection ends first.
        """
        link = self._links.get(address)
        if link is None:
            link, timeout = await self._opened_within(address, timeout)
        return await link.call(command, timeout)

    async def post(self, address: str, command: Command, timeout: float) -> None:
        """Send a request that wants no reply.

        Raises:
            RequestTimeout: when the peer reads nothing for `timeout` seconds.
            ConnectionLost: when the address cannot be reached within `timeout` seconds.
        """
        link = self._links.get(address)
        if link is None:
            link, timeout = await self._opened_within(address, timeout)
        await link.post(command, timeout)

    def answer(self, address: str, command: Command) -> None:
        """Send a reply to what the peer at `address` asked, if it is still connected."""
        link = self._links.get(address)
        if link is not None:
            link.answer(command)

    def drop(self, address: str) -> None:
        """End the link to `address`, which does not answer: the next call opens a new one.

        A peer that vanished without a goodbye would otherwise be waited for until the operating
        system gives up, which takes it a quarter of an hour.
        """
        link = self._links.get(address)
        if link is not None:
            link.abort()

    def open_links(self) -> list[Link]:
        """Return the links that are open now."""
        return list(self._links.values())

    async def close(self) -> None:
        """Close every link; later calls fail."""
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        for link in self.open_links():
            link.close()
        await asyncio.sleep(0)  # one turn of the loop, so that the transports can close

    async def _opened_within(self, address: str, timeout: float) -> tuple[Link, float]:
        """Return an open link, and what is left of `timeout`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                link = await self._opened(address)
        except TimeoutError as error:
            raise ConnectionLost(
                f"{address} cannot be reached: no connection in {timeout:.3g} s"
            ) from error
        return link, deadline - loop.time()

    async def _opened(self, address: str) -> Link:
        if self._closed:
            raise ConnectionLost("this client is closed")
        task = self._opening.get(address)
        if task is None:
            failure = self._failures.get(address)
            if failure is not None and asyncio.get_running_loop().time() < failure[1]:
                raise ConnectionLost(failure[2])
            task = asyncio.create_task(self._open(address))
            self._opening[address] = task
            task.add_done_callback(lambda done: self._opening_ended(address, done))
        return await asyncio.shield(task)

    async def _open(self, address: str) -> Link:
        try:
            async with asyncio.timeout(self._connect_timeout):
                link = await self._connect(address)
        except (OSError, TimeoutError, ValueError) as error:
            raise self._failed(address, str(error) or "no answer") from error
        try:
            await self._greet(address, link)
        except Unavailable as error:
            link.abort()
            raise self._failed(address, str(error)) from error
        except BaseException:  # the client is closed meanwhile, or a bug
            link.abort()
            raise
        if not link.is_open:
            raise self._failed(address, "it closed the connection at once")
        self._failures.pop(address, None)
        self._links[address] = link
        return link

    async def _connect(self, address: str) -> Link:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        loop = asyncio.get_running_loop()
        failure = OSError("the name has no address")
        for ip in await addresses_of(host, int(port)):
            try:
                _, link = await loop.create_connection(
                    lambda: Link(address, self._on_request, self._lost, self._sign),
                    ip,
                    int(port),
                    ssl=self._tls,
                    server_hostname=(self._tls_hostname or host) if self._tls else None,
                )
            except OSError as error:
                failure = error
            else:
                return link
        raise failure

    def _opening_ended(self, address: str, task: asyncio.Task[Link]) -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()  # looked at, so that a failure nobody waited for is not reported

    def _failed(self, address: str, why: str) -> ConnectionLost:
        count = self._failures.get(address, (0, 0.0, ""))[0] + 1
        pause = min(self.BACKOFF_SECONDS * 2 ** (count - 1), self.BACKOFF_SECONDS_MAX)
        # Clients that lost one broker together do not all come back at once.
        pause *= random.uniform(0.5, 1.0)  # noqa: S311 - it hides nothing
        text = f"{address} cannot be reached: {why}"
        self._failures[address] = (count, asyncio.get_running_loop().time() + pause, text)
        return ConnectionLost(text)

    def _lost(self, link: Link) -> None:
        if self._links.get(link.address) is link:
            del self._links[link.address]
            if not self._closed:
                self._on_lost(link.address)
