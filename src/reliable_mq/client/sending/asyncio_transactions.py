"""Half messages on an event loop: sends them, ends them, and answers brokers' check-backs.

It receives half messages to send, and check-backs of brokers. It passes check-backs to the answerer
of their producer group. It decides nothing: without an answer it stays silent, and the broker asks
again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from reliable_mq.client.asyncio_daemon import attempt
from reliable_mq.client.checked import checked
from reliable_mq.client.connecting.namespace import NO_NAMESPACE, Namespace
from reliable_mq.client.consuming.thread_handling import ExitRaised
from reliable_mq.client.flow import Flow
from reliable_mq.client.observing.asyncio_hooks import Hooks
from reliable_mq.client.observing.middleware import ClientIdentity, SendOutcome
from reliable_mq.client.sending.outgoing import check_is_message
from reliable_mq.client.sending.transaction import TransactionFlows, read_check_back
from reliable_mq.errors import ProtocolError, UsageError
from reliable_mq.limits import GROUP_LENGTH_MAX
from reliable_mq.message import CheckBack, Decision, Half, Message, SendResult
from reliable_mq.names import check_name
from reliable_mq.telemetry import client_events
from reliable_mq.wire.command import Command

log = logging.getLogger(__name__)

T = TypeVar("T")

ANSWERS_AT_ONCE = 256
"""Maximum check-backs in progress. Further ones are dropped: their broker asks again."""

Answerer = Callable[[CheckBack], Awaitable[Decision | None]]
"""Decides the transaction of a half; None: the answerer has ended the half itself."""


class FlowDriver(Protocol):
    """Runs a flow: `AsyncClient.run`."""

    async def __call__(self, flow: Flow[T], /) -> T: ...


class AsyncTransactions:
    """The half messages of one client.

    Invariant: at most one check-back per half is being answered.

    Args:
        flows: the flows for half messages.
        run: runs them.
        tell_group: sends heartbeats to all brokers after a group was joined.
        namespace: translates names. A `Half` has the brokers' names.
        hooks: see messages that are sent, and their decisions.
    """

    def __init__(
        self,
        flows: TransactionFlows,
        run: FlowDriver,
        tell_group: Callable[[str], Awaitable[None]],
        namespace: Namespace = NO_NAMESPACE,
        hooks: Hooks | None = None,
    ) -> None:
        self._namespace = namespace
        self._flows = flows
        self._run = run
        self._tell_group = tell_group
        self._hooks = hooks or Hooks((), ClientIdentity())
        self._answerers: dict[str, Answerer] = {}
        self._answering: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._is_closed = False

    @property
    def groups(self) -> list[str]:
        """The producer groups whose check-backs this client answers."""
        return sorted(map(self._namespace.own_name, self._answerers))

    @property
    def running(self) -> list[asyncio.Task[None]]:
        """The check-backs in progress."""
        return list(self._answering.values())

    @checked()
    async def join(self, group: str, answerer: Answerer) -> None:
        """Answer check-backs of a producer group from now on, for halves of all its members.

        A broker that cannot be reached now learns of the group by a later heartbeat.

        Raises:
            ConfigurationError: when the group's name is illegal.
        """
        check_name("producer group", group, GROUP_LENGTH_MAX)
        group = self._namespace.full_name(group)
        is_known = group in self._answerers
        self._answerers[group] = answerer
        if not is_known:
            await attempt(lambda: self._tell_group(group), "the heartbeat of a new producer group")

    @checked()
    async def send(self, message: Message, group: str, *, timeout: float = 3.0) -> Half:
        """Send a half message of a joined group; see `TransactionFlows.send`.

        Raises:
            UsageError: when this client has not joined the group: the half would stay undecided.
            MessageRefused: when `message` is not a message.
        """
        check_is_message(message)
        names, whole = self._namespace, self._namespace.full_name(group)
        if whole not in self._answerers:
            raise UsageError(f"join producer group {whole} before it sends a half")

        def send(sent: Sequence[Message]) -> Awaitable[Half]:
            return self._run(self._flows.send(names.whole_message(sent[0]), whole, timeout=timeout))

        def stored(half: Half) -> Sequence[SendOutcome]:
            return (names.own_result(half.stored) if half.stored else None,)

        return await self._hooks.around_send("send_half", (message,), send, stored, group=group)

    @checked()
    async def end(self, half: Half, decision: Decision) -> None:
        """End a half and wait until the broker has stored the decision; see `TransactionFlows.end`.

        Call it once only. The bundled broker accepts a second decision, and ignores it. Apache's
        broker stores the message again with each COMMIT.
        """
        await self._seen(half, decision, self._flows.end(half, decision))

    @checked()
    async def post(self, half: Half, decision: Decision) -> None:
        """End a half without waiting for an answer; see `TransactionFlows.post`."""
        await self._seen(half, decision, self._flows.post(half, decision))

    @checked()
    async def commit_many(self, halves: Sequence[Half]) -> list[SendResult | Exception]:
        """Commit half messages; see `TransactionFlows.commit_many`."""
        results = await self._run(self._flows.commit_many(halves))
        if self._hooks.ends:
            for half, result in zip(halves, results, strict=True):
                error = result if isinstance(result, Exception) else None
                self._hooks.ended(half, Decision.COMMIT, error)
        return results

    def asked(self, address: str, command: Command) -> None:
        """Accept a check-back. A task answers it, unless the client closes."""
        if self._is_closed:
            return
        try:
            check = read_check_back(command, address)
        except ProtocolError as error:
            client_events.CHECK_BACK_UNREADABLE.log(log, peer=address, error=error)
            return
        half = check.half
        check = CheckBack(half, self._namespace.own_message(check.message))
        answerer = self._answerers.get(half.group)
        if answerer is None:
            client_events.CHECK_BACK_NOT_JOINED.log(
                log, peer=address, message_id=half.message_id, group=half.group
            )
            return
        key = (half.group, half.message_id)
        if key in self._answering or len(self._answering) >= ANSWERS_AT_ONCE:
            return
        task = asyncio.create_task(self._answer(check, answerer))
        self._answering[key] = task
        task.add_done_callback(lambda _: self._answering.pop(key))

    async def close(self) -> None:
        """Answer no more check-backs. Brokers ask again: another member, or later."""
        self._is_closed = True
        tasks = list(self._answering.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _seen(self, half: Half, decision: Decision, flow: Flow[None]) -> None:
        """End a half, and report the decision to the hooks. An unknown outcome is not reported."""
        sees = self._hooks.ends and decision is not Decision.UNKNOWN
        try:
            await self._run(flow)
        except BaseException as error:
            if sees:
                self._hooks.ended(half, decision, error)
            raise
        if sees:
            self._hooks.ended(half, decision)

    async def _answer(self, check: CheckBack, answerer: Answerer) -> None:
        async def work() -> Any:
            try:
                decision = await answerer(check)
            except SystemExit as error:  # SystemExit would end the loop
                raise ExitRaised(f"it raised {error!r}") from error
            if decision is not None:
                await self.post(check.half, decision)

        await attempt(work, f"the answer for half message {check.half.message_id}")
