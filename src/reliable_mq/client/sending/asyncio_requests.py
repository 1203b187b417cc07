"""Requests that wait for the reply of another client, on an event loop.

It receives requests, and the replies that brokers push to this client. It gives each reply to its
waiting request. It must not know how a message is sent.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from reliable_mq.client.asyncio_daemon import attempt
from reliable_mq.client.sending.asyncio_transactions import FlowDriver
from reliable_mq.client.sending.request_reply import correlation_of, read_reply, request_of
from reliable_mq.errors import ProtocolError, ReplyTimeout, RequestTimeout
from reliable_mq.message import Message, ReceivedMessage, SendResult
from reliable_mq.telemetry import client_events
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply

log = logging.getLogger(__name__)

Send = Callable[[Message, float], Awaitable[SendResult]]
"""Sends a message within the given number of seconds."""


class AsyncRequests:
    """The waiting requests of one client.

    Invariant: each waiting request has its own id, until its reply arrives or its time is over.

    Args:
        client_id: the client's name at brokers.
        random_bytes: returns that many random bytes (for correlation ids).
        run: runs flows.
        be_known: sends heartbeats to all brokers: any of them may push the reply.
    """

    def __init__(
        self,
        client_id: str,
        random_bytes: Callable[[int], bytes],
        run: FlowDriver,
        be_known: Callable[[], Awaitable[None]],
    ) -> None:
        self._client_id = client_id
        self._random_bytes = random_bytes
        self._run = run
        self._be_known = be_known
        self._known: asyncio.Task[bool] | None = None
        self._waiting: dict[str, asyncio.Future[Command]] = {}

    async def ask(self, message: Message, timeout: float, send: Send) -> ReceivedMessage:
        """Send a request and return its reply.

        Raises:
            ReplyTimeout: when no reply arrives within `timeout` seconds.
            ProtocolError: when the reply cannot be decoded.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        correlation_id = self._random_bytes(16).hex()
        waiting: asyncio.Future[Command] = loop.create_future()
        await self._send_heartbeats(deadline)
        left = deadline - loop.time()
        asked = request_of(message, self._client_id, correlation_id, left)
        self._waiting[correlation_id] = waiting
        try:
            await send(asked, left)
            async with asyncio.timeout_at(deadline):
                pushed = await waiting
        except TimeoutError as error:
            raise ReplyTimeout(
                f"no reply to a request in topic {message.topic} in {timeout:.3g} s"
            ) from error
        finally:
            del self._waiting[correlation_id]
        return await self._run(read_reply(pushed))

    def answered(self, address: str, command: Command) -> Command:
        """Accept a reply that a broker pushes. Drop it if its request has timed out."""
        try:
            waiting = self._waiting.get(correlation_of(command))
        except ProtocolError as error:
            client_events.REPLY_UNREADABLE.log(log, peer=address, error=error)
            return reply(command, ResponseCode.SYSTEM_ERROR, "process reply message fail")
        if waiting is None:
            client_events.REPLY_TOO_LATE.log(log, peer=address)
        elif not waiting.done():
            waiting.set_result(command)
        return reply(command)

    async def _send_heartbeats(self, deadline: float) -> None:
        """Send heartbeats before the first request. A broker that is away gets its one later."""
        if self._known is None:
            self._known = asyncio.create_task(
                attempt(self._be_known, "the heartbeat before a request")
            )
        if self._known.done():
            return
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(self._known)
        except TimeoutError as error:
            raise RequestTimeout(
                "no broker got this client's heartbeat in time: nothing was sent"
            ) from error
