"""A connection to one broker or name server, shared by all tasks of the client.

Both sides may send requests on it at any time. A reply is matched to its request by `opaque`, the
sender's request number. One timer serves all calls that wait (`Waiters`): a timer per call would
be created and cancelled with every request.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import cast

from reliable_mq.errors import (
    ConnectionLost,
    FrameError,
    InvariantBroken,
    ReliableMQError,
    RequestTimeout,
)
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.busy_wait import BusyWait
from reliable_mq.runtime.tls_contexts import reason_of
from reliable_mq.telemetry import client_events
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import REPLY_FLAG, Command, decode_reply, encode_command
from reliable_mq.wire.frame import FrameReader

log = limited_log(__name__)

_OPAQUE_MASK = 0x7FFFFFFF
_UNSENT_MAX = 32 * 1024  # the peer can handle the first requests while the next ones are encoded
GRAIN_SECONDS = 0.01
"""Minimum seconds between two runs of the timer: a timeout may be this much late."""

OnRequest = Callable[[str, Command], Command | None]
"""Gets the peer's address and its request; returns the reply, or None for no reply."""

Sign = Callable[[Command], None]
Render = Callable[[int], bytes]
"""Returns the whole frame of a request with the given opaque."""
_Waiter = tuple[asyncio.Future[Command], float, int, float]  # deadline, request code, timeout


class Waiters:
    """The waiting calls of one connection, by opaque.

    C1: each opaque has one waiter. A waiter ends with its reply, its timeout, or the end of the
    connection. While a call waits, the timer is set: to the earliest deadline, or to one grain
    after its last run when that is later.

    Args:
        address: the peer, for error texts.
        loop: the event loop of the connection.
    """

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self._address = address
        self._loop = loop
        self.calls: dict[int, _Waiter] = {}  # with those whose caller has given up
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf

    @property
    def waiting(self) -> int:
        """Number of calls without an answer."""
        return sum(not future.done() for future, *_ in self.calls.values())

    def add(
        self, opaque: int, code: int, timeout: float, told: asyncio.Future[Command] | None = None
    ) -> asyncio.Future[Command]:
        """Return the future of a reply; it raises RequestTimeout after `timeout` seconds."""
        future: asyncio.Future[Command] = told or self._loop.create_future()
        deadline = self._loop.time() + timeout
        self.calls[opaque] = (future, deadline, code, timeout)
        if deadline < self._rings_at:
            self._set(deadline)
        return future

    def remove(self, opaque: int) -> None:
        """Forget a call that has ended."""
        self.calls.pop(opaque, None)

    def answer(self, command: Command) -> None:
        """Give a reply to its waiter. A reply without a waiter is dropped."""
        waiter = self.calls.pop(command.opaque, None)
        if waiter is not None and not waiter[0].done():
            waiter[0].set_result(command)

    def fail(self, make: Callable[[], ReliableMQError]) -> None:
        """Fail each waiting call with an error from `make`, and stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._rings_at = None, math.inf
        for future, *_ in self.calls.values():
            if not future.done():
                future.set_exception(make())

    def invariants(self) -> None:
        """Check C1: the timer does not fire too late for a waiting call."""
        waiting = [when for future, when, *_ in self.calls.values() if not future.done()]
        latest = max(min(waiting, default=math.inf), self._loop.time()) + 2 * GRAIN_SECONDS
        if waiting and self._rings_at > latest:
            raise InvariantBroken(f"C1: the timer of {self._address} fires too late")

    def _set(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = when
        self._timer = self._loop.call_at(when, self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, math.inf
        now = self._loop.time()
        nearest = math.inf
        for opaque, (future, deadline, code, timeout) in list(self.calls.items()):
            if future.done():  # its caller has given up
                del self.calls[opaque]
            elif deadline <= now:
                future.set_exception(
                    RequestTimeout(
                        f"{self._address} did not answer request {code} in {timeout:.3g} s"
                    )
                )
            elif deadline < nearest:
                nearest = deadline
        if nearest < math.inf:
            self._set(max(nearest, now + GRAIN_SECONDS))


class Link(asyncio.Protocol):
    """One open connection.

    Args:
        address: the peer, "host:port".
        on_request: called for each request of the peer.
        on_lost: called once, when the connection has ended for any reason.
        sign: signs each request before it is sent.
        busy_wait: whether the loop polls for a reply before it sleeps; by default never.
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
        self._posted = 0  # the opaque of the last one-way request, until a later reply arrives
        self.why_lost = "the connection is not open"
        self.is_foreign: bool | None = None  # whether the peer's first bytes were no command
        self.on_proof: Callable[[], None] | None = None  # called with the peer's first command

    @property
    def is_open(self) -> bool:
        """Whether commands can be sent."""
        return self._transport is not None

    async def call(self, command: Command, timeout: float) -> Command:
        """Send a request and return its reply.

        Raises:
            RequestTimeout: when no reply arrives within `timeout` seconds. Time in which the peer
                reads nothing counts.
            ConnectionLost: when the connection ends first.
        """
        if not self._writable.is_set():
            timeout = await self._room(command, timeout)
        if self._transport is None:
            raise ConnectionLost(self.why_lost)
        command.opaque = opaque = self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        if self._sign is not None:
            self._sign(command)
        frame = encode_command(command)
        future = self._waiters.add(opaque, command.code, timeout)
        try:
            self._write(frame)
            return await future
        except BaseException:  # no reply has removed it
            self._waiters.remove(opaque)
            raise

    @property
    def is_clear(self) -> bool:
        """Whether a request can be sent at once: the peer reads."""
        return self._transport is not None and self._writable.is_set()

    @property
    def is_settled(self) -> bool:
        """Whether the peer has handled all one-way requests, as far as this side can know.

        The proof is a reply to a later request.
        """
        return not self._posted

    @property
    def peer_name(self) -> tuple[str, int] | tuple[str, int, int, int] | None:
        """The peer's socket address; None after the connection has ended."""
        return None if self._transport is None else self._transport.get_extra_info("peername")

    def ask(
        self, render: Render, code: int, timeout: float, *, waits_busily: bool = True
    ) -> asyncio.Future[Command]:
        """Send a rendered request, which has a signature if it needs one. The link must be clear.

        `waits_busily`: whether the loop may poll for the reply of a caller that is alone.

        Returns:
            A future of the reply. It fails with the errors of `call`. If you cancel the future, a
            later reply is dropped.

        Raises:
            ConnectionLost: when the connection has ended.
        """
        self._check_open()
        opaque = self._next_opaque()
        frame = render(opaque)
        future = self._waiters.add(opaque, code, timeout)
        self._write(frame)
        if waits_busily and len(self._waiters.calls) == 1 and self._busy_wait.begin():
            self._loop.call_soon(self._poll_reply, future)
        return future

    def _poll_reply(self, future: asyncio.Future[Command]) -> None:
        """Poll for the reply instead of letting the loop sleep, while that pays off."""
        if future.done():
            self._busy_wait.note_answer()
        elif self._busy_wait.should_continue():
            self._loop.call_soon(self._poll_reply, future)

    async def post(self, command: Command, timeout: float) -> None:
        """Send a one-way request.

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
        """Send a reply to a request of the peer. Do nothing when the connection has ended.

        Replies of a client are few and do not wait for a slow peer. A reply that is too long for a
        frame is this side's fault: the peer gets an error reply instead.
        """
        if self._transport is not None:
            self._write(encode_answer(command))

    async def _room(self, command: Command, timeout: float) -> float:
        """Wait until the peer reads again, and return the rest of `timeout`.

        Raises:
            RequestTimeout: when the peer reads nothing in that time.
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
        """End the connection after all written data has left. Waiting calls fail at once."""
        self._lose("this client closed it")

    def abort(self) -> None:
        """End the connection now. Written data that the peer has not read is lost."""
        transport = self._transport
        self._lose("this client closed it")
        if transport is not None:
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the open connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses

    def data_received(self, data: bytes) -> None:
        """Give replies to their waiters, and requests to the client."""
        commands: list[Command] = []
        fault: FrameError | None = None
        try:
            for frame in self._reader.feed(data):
                commands.append(decode_reply(frame))  # noqa: PERF401 - those before a fault stay
        except FrameError as error:
            fault = error
        for command in commands:
            if command.flag & REPLY_FLAG:
                self._answered(command)
            else:
                self._asked(command)
        if commands and self.is_foreign is None:
            self.is_foreign = False
            if self.on_proof is not None:
                self.on_proof()
        if fault is not None:
            self.is_foreign = self.is_foreign is None
            level = logging.DEBUG if self.is_foreign else None  # then `Links` tells it, once
            client_events.COMMAND_INVALID.log(log, level=level, peer=self.address, error=fault)
            why = "another program listens there, or one with TLS" if self.is_foreign else fault
            self._lose(f"{self.address} sent an invalid command: {why}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail every waiting call."""
        self._lose(f"{self.address} closed the connection" + (f": {reason_of(exc)}" if exc else ""))

    def pause_writing(self) -> None:
        """Make further requests wait: the peer reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let requests be sent again."""
        self._writable.set()

    def invariants(self) -> None:
        """Check C1: no call waits on a lost connection."""
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
        self.why_lost = why
        transport.close()
        self._writable.set()
        self._waiters.fail(lambda: ConnectionLost(why))
        self._on_lost(self)

    def _check_open(self) -> None:
        if self._transport is None:
            raise ConnectionLost(self.why_lost)

    def _write(self, frame: bytes) -> None:
        """Send a frame. When several calls wait, all frames of a loop turn are sent together.

        One system call per frame would cost half as much as the rest of a request. A single call is
        sent at once.
        """
        if not self._unsent:
            if self._transport is not None and len(self._waiters.calls) <= 1:
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
