"""A connection to one broker or name server, shared by everything that talks to it.

Requests of both sides cross on it. A reply finds its waiter by `opaque`, the sender's counter; see
`waiters`.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from reliable_mq.errors import (
    ConnectionLost,
    FrameError,
    InvariantBroken,
    RequestTimeout,
)
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.busy_wait import BusyWait
from reliable_mq.runtime.waiters import Waiters
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import Command, decode_reply, encode_command
from reliable_mq.wire.frame import FrameReader

log = limited_log(__name__)

_OPAQUE_MASK = 0x7FFFFFFF
_UNSENT_MAX = 32 * 1024  # the peer begins with the first requests while the next ones are made

OnRequest = Callable[[str, Command], Command | None]
"""Gets the peer's address and its request, returns the reply when one is wanted."""


Sign = Callable[[Command], None]

Render = Callable[[int], bytes]
"""Returns the whole frame of a request, given its opaque."""


class Link(asyncio.Protocol):
    """One open connection.

    Args:
        address: the peer, "host:port".
        on_request: called for each request of the peer.
        on_lost: called once, when the connection has ended for whatever reason.
        sign: changes each request before it leaves.
        busy_wait: whether the loop looks for a reply before it sleeps; by default never.
    """

    def __init__(
        self,
        address: str,
        on_request: OnRequest,
        on_lost: Callable[["Link"], None],
        sign: Sign | None = None,
        busy_wait: BusyWait | None = None,
    ) -> None:
        self.address = address
        self._sign = sign
        self._busy_wait = busy_wait or BusyWait(0.0)
        self._on_request = on_request
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._waiters = Waiters(address, self._loop)
        self._opaque = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._unsent: list[bytes] = []
        self._unsent_size = 0
        self._posted = 0  # the opaque of a request that wanted no reply, while it may be under way
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
        self._check_open()
        opaque = self._next_opaque()
        command.opaque = opaque
        if self._sign is not None:
            self._sign(command)
        frame = encode_command(command)
        future = self._waiters.add(opaque, command.code, timeout)
        try:
            self._write(frame)
            return await future
        finally:
            self._waiters.remove(opaque)

    @property
    def is_clear(self) -> bool:
        """Whether a request can leave at once, and as it is: the peer reads, and nobody signs."""
        return self._transport is not None and self._sign is None and self._writable.is_set()

    @property
    def is_settled(self) -> bool:
        """Whether the peer has handled the requests that want no reply, as far as can be known.

        It has when it has answered something that was sent later.
        """
        return not self._posted

    @property
    def peer_name(self) -> tuple[str, int] | tuple[str, int, int, int] | None:
        """Where the connection leads to, as sockets name it; None when it has ended."""
        if self._transport is None:
            return None
        name: tuple[str, int] | tuple[str, int, int, int] = self._transport.get_extra_info(
            "peername"
        )
        return name

    def ask(self, render: Render, code: int, timeout: float) -> asyncio.Future[Command]:
        """Send a request that is rendered already; the link is clear.

        Returns:
            The future of its reply; it raises what `call` does. Who cancels it is answered to no
            more.

        Raises:
            ConnectionLost: when the connection has ended.
        """
        self._check_open()
        opaque = self._next_opaque()
        frame = render(opaque)
        future = self._waiters.add(opaque, code, timeout)
        self._write(frame)
        if self._waiters.count == 1 and self._busy_wait.begin():
            self._loop.call_soon(self._look, future)
        return future

    def _look(self, future: asyncio.Future[Command]) -> None:
        """Keep the loop from sleeping until a reply has come, as long as that is worth it."""
        if future.done():
            self._busy_wait.came()
        elif self._busy_wait.goes_on():
            self._loop.call_soon(self._look, future)

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
        self._check_open()
        self._posted = command.opaque
        self._write(encode_command(command))

    def answer(self, command: Command) -> None:
        """Send a reply to what the peer asked; when the connection has ended, nobody waits for it.

        The few replies of a client wait for no peer that reads too slowly. One that fits no frame
        is our own fault, which the peer is told.
        """
        if self._transport is not None:
            self._write(encode_answer(command))

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
                command = decode_reply(frame)
                if command.is_reply:
                    self._answered(command)
                else:
                    self._asked(command)
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

    def _answered(self, command: Command) -> None:
        if self._posted and command.opaque > self._posted:
            self._posted = 0
        self._waiters.answer(command)

    def _asked(self, command: Command) -> None:
        answer = self._on_request(self.address, command)
        if answer is not None and not command.is_oneway:
            self.answer(answer)

    def _lose(self, why: str) -> None:
        if self._unsent:
            self._flush()
        transport, self._transport = self._transport, None
        if transport is None:
            return
        self._why_lost = why
        transport.close()
        self._writable.set()
        self._waiters.fail(lambda: ConnectionLost(why))
        self._on_lost(self)

    def _check_open(self) -> None:
        if self._transport is None:
            raise ConnectionLost(self._why_lost)

    def _write(self, frame: bytes) -> None:
        """Let a frame leave: with the others of this turn of the loop, where several calls wait.

        A system call for each would cost half as much as all the rest of a request. Who is alone
        is not kept waiting.
        """
        if not self._unsent:
            if self._transport is not None and self._waiters.count <= 1:
                self._transport.write(frame)
                return
            self._loop.call_soon(self._flush)
        self._unsent.append(frame)
        self._unsent_size += len(frame)
        if self._unsent_size > _UNSENT_MAX:
            self._flush()

    def _flush(self) -> None:
        frames, self._unsent, self._unsent_size = self._unsent, [], 0
        if frames and self._transport is not None:
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def _next_opaque(self) -> int:
        self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        return self._opaque

    def __repr__(self) -> str:
        return f"Link({self.address})"
