"""The connections of one client or broker to its peers, one per address.

A connection is opened on first use, and opened again after it was lost.
"""

import asyncio
import random
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection

from reliable_mq.errors import ConnectionLost, RequestTimeout, Unavailable
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.busy_wait import BusyWait, poll_seconds
from reliable_mq.runtime.direct_link import DirectLink
from reliable_mq.runtime.direct_links import DirectLinks
from reliable_mq.runtime.host_names import addresses_of
from reliable_mq.runtime.link import Link, OnRequest, Sign
from reliable_mq.runtime.tls_contexts import reason_of
from reliable_mq.runtime.tls_remedies import (
    CLIENT_WORDS,
    CLOSED_IN_HANDSHAKE,
    TlsWords,
    tls_remedy,
)
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.outages import Outages
from reliable_mq.wire.command import Command

log = limited_log(__name__)

Greet = Callable[[str, Link], Awaitable[None]]
"""Introduces this client on a new link, before any other request uses it."""

Dial = Callable[[], Awaitable[socket.socket]]
"""Returns a connected socket, which the caller owns."""


def _reason(error: OSError | TimeoutError | ValueError, *, has_tls: bool) -> str:
    """Return why a connection failed, without the address: the text around it has that."""
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if has_tls and isinstance(error, ConnectionResetError | ConnectionAbortedError | EOFError):
        return CLOSED_IN_HANDSHAKE
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return reason_of(error) or "no answer"


class Links:
    """One link per address, opened on first use and opened again after it was lost.

    After a failed connection, calls to the address fail at once for a backoff, so that callers can
    try another address. The backoff doubles with each failure.

    Args:
        connect_timeout: seconds to wait for a connection, and for the greeting.
        on_request: called for each request of a peer.
        greet: called with each new link.
        on_lost: called with the address of each lost link.
        sign: signs each request before it is sent.
        tls: gives the context that encrypts a new connection; None: plain.
        tls_hostname: the name in the peers' certificates; "" for the host of each address.
        busy_wait_seconds: how long a single caller that asks repeatedly polls for a reply before
            it sleeps; 0: not at all.
        tells_outages: whether to log when an address cannot be reached, and when it can again.
        dial: returns a connected socket, for a server in this process, which may refuse plain
            connections of others. None: connect to each address.
        dialled: the addresses that are dialled. Default: all.
        tls_words: names what the user of this side sets for TLS.
    """

    BACKOFF_SECONDS = 0.05
    BACKOFF_SECONDS_MAX = 1.0
    FAILURES_KEPT_SECONDS = 60.0
    """An address unused for this long starts again with the shortest backoff."""

    def __init__(
        self,
        *,
        connect_timeout: float,
        on_request: OnRequest,
        greet: Greet,
        on_lost: Callable[[str], None],
        sign: Sign | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        tls_hostname: str = "",
        busy_wait_seconds: float = 0.0,
        tells_outages: bool = True,
        dial: Dial | None = None,
        dialled: Collection[str] | None = None,
        tls_words: TlsWords = CLIENT_WORDS,
    ) -> None:
        self._dial, self._dialled = dial, dialled
        self._tls_words = tls_words
        self._sign = sign
        self._tls = tls
        self._tls_hostname = tls_hostname
        self._connect_timeout = connect_timeout
        self._on_request = on_request
        self._greet = greet
        self._on_lost = on_lost
        self.by_address: dict[str, Link] = {}  # the open ones; others only read it
        self._opening: dict[str, asyncio.Task[Link]] = {}
        self._failures: dict[str, tuple[int, float, str]] = {}
        self._closed = False
        self._tells_outages = tells_outages
        self._outages = Outages()
        self._reached = set[str]()
        self._busy_wait_seconds = poll_seconds(busy_wait_seconds)
        self._direct = DirectLinks(connect_timeout, self._busy_wait_seconds)

    async def call(self, address: str, command: Command, timeout: float) -> Command:
        """Send a request to `address` and return its reply.

        Raises:
            RequestTimeout: when no reply comes within `timeout` seconds.
            ConnectionLost: when the address cannot be reached within `timeout` seconds, or the
                connection ends first.
        """
        link = self.by_address.get(address)
        if link is None:
            link, timeout = await self._opened_within(address, timeout)
        try:
            return await link.call(command, timeout)
        except RequestTimeout:
            if link.is_foreign is None and self._tells_outages:
                self._tell_silent(address)
            raise

    def _tell_silent(self, address: str) -> None:
        """Tell once of a peer that takes connections and has never sent a command."""
        if self._outages.lose(address, asyncio.get_running_loop().time()):
            silent = "it does not answer: another program listens there, or its packets are dropped"
            client_events.PEER_NOT_REACHED.log(log, peer=address, error=silent)

    async def post(self, address: str, command: Command, timeout: float) -> None:
        """Send a one-way request.

        Raises:
            RequestTimeout: when the peer reads nothing for `timeout` seconds.
            ConnectionLost: when the address cannot be reached within `timeout` seconds.
        """
        link = self.by_address.get(address)
        if link is None:
            link, timeout = await self._opened_within(address, timeout)
        await link.post(command, timeout)

    def clear(self, address: str) -> Link | None:
        """Return the link to `address` if it is open and clear, see `Link.is_clear`."""
        link = self.by_address.get(address)
        return link if link is not None and link.is_clear else None

    @property
    def has_direct(self) -> bool:
        """Whether there is a direct link. Safe to call from any thread."""
        return self._direct.are_any

    def direct(self, address: str) -> DirectLink | None:
        """Take the direct link to `address` if it is free, and return it. Safe from any thread.

        Returns None also while the loop's link is not clear, or has one-way requests in flight.
        """
        link = self.clear(address)
        return self._direct.acquire(link) if link is not None else None

    def note_single_thread(self, link: Link) -> None:
        """Note that one thread sends alone on a link. After some sends, it gets a direct link."""
        if self._tls is None:
            self._direct.note_single_thread(link)

    def answer(self, address: str, command: Command) -> None:
        """Send a reply to a request of the peer at `address`, if it is still connected."""
        link = self.by_address.get(address)
        if link is not None:
            link.answer(command)

    def drop(self, address: str) -> None:
        """End the link to `address`, which does not answer. The next call opens a new link.

        Otherwise calls to a vanished peer would wait until the operating system gives up, after
        about 15 minutes.
        """
        link = self.by_address.get(address)
        if link is not None:
            link.abort()

    def open_links(self) -> list[Link]:
        """Return the links that are open now."""
        return list(self.by_address.values())

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
        """Return an open link, and the rest of `timeout`."""
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
            why = _reason(error, has_tls=self._tls is not None)
            raise self._failed(address, why) from error
        try:
            await self._greet(address, link)
        except Unavailable as error:
            link.abort()
            raise self._failed(address, str(error)) from error
        except BaseException:  # the client is closed meanwhile, or a bug
            link.abort()
            raise
        if not link.is_open:
            raise self._failed(address, link.why_lost.removeprefix(f"{address} "))
        self.by_address[address] = link
        if link.is_foreign is None:  # what accepts and closes at once must not count as reached
            link.on_proof = lambda: self._proved(address)
        else:
            self._proved(address)
        return link

    def _proved(self, address: str) -> None:
        """Note that a peer has sent a command, so that it is one."""
        self._failures.pop(address, None)
        self._reached.add(address)
        if address in self._outages:
            seconds = self._outages.find(address, asyncio.get_running_loop().time())
            if seconds is not None:
                client_events.PEER_BACK.log(log, peer=address, seconds=seconds)

    async def _connect(self, address: str) -> Link:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        loop = asyncio.get_running_loop()

        def made() -> Link:
            busy_wait = BusyWait(self._busy_wait_seconds)
            return Link(address, self._on_request, self._lost, self._sign, busy_wait)

        if self._dial is not None and (self._dialled is None or address in self._dialled):
            _, link = await loop.create_connection(made, sock=await self._dial())
            return link
        failure = OSError("the name has no address")
        context = self._tls() if self._tls is not None else None
        for ip in await addresses_of(host, int(port)):
            try:
                _, link = await loop.create_connection(
                    made,
                    ip,
                    int(port),
                    ssl=context,
                    server_hostname=(self._tls_hostname or host) if context else None,
                )
            except OSError as error:
                failure = error
            else:
                return link
        raise failure

    def _opening_ended(self, address: str, task: asyncio.Task[Link]) -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()  # marks the error as retrieved, so that asyncio does not report it

    def _failed(self, address: str, why: str) -> ConnectionLost:
        count = self._failures.get(address, (0, 0.0, ""))[0] + 1
        pause = min(self.BACKOFF_SECONDS * 2 ** (count - 1), self.BACKOFF_SECONDS_MAX)
        # Random part: clients that lost a broker together must not reconnect at the same moment.
        pause *= random.uniform(0.5, 1.0)  # noqa: S311 - it hides nothing
        text = f"{address} cannot be reached: {why}"
        now = asyncio.get_running_loop().time()
        if self._tells_outages and self._outages.lose(address, now):
            fits = self._tls is not None or address in self._reached  # it has answered before
            remedy = tls_remedy(why, tls_fits=fits, words=self._tls_words)
            told = f"{why}; {remedy}" if remedy else why
            if address in self._reached:
                client_events.PEER_LOST.log(log, peer=address, error=told)
            else:
                client_events.PEER_NOT_REACHED.log(log, peer=address, error=told)
        forgotten = now - self.FAILURES_KEPT_SECONDS
        self._failures = {at: each for at, each in self._failures.items() if each[1] > forgotten}
        self._failures[address] = (count, now + pause, text)
        return ConnectionLost(text)

    def _lost(self, link: Link) -> None:
        if self.by_address.get(link.address) is link:
            del self.by_address[link.address]
            self._direct.drop(link.address)
            prefix = f"{link.address} "  # without it, this side has ended the connection
            by_peer = link.why_lost.startswith(prefix)
            if link.is_foreign is not False and by_peer and not self._closed:
                what, *reason = link.why_lost.removeprefix(prefix).split(": ", 1)
                silent = "" if link.is_foreign else " before it answered"
                why = ": ".join([what + silent, *reason])
                self._failed(link.address, why)
            if not self._closed:
                self._on_lost(link.address)
