"""Keeps name servers informed of a broker's topics.

Receives which topics changed; hands on registrations, and replies that waited for them. All topics
are told when a name server is met and every 30 s, between these only what changed: telling ten
thousand topics because one is new would stop both sides for a moment.
Source: Apache RocketMQ `BrokerController.registerIncrementBrokerData`, `registerSingleTopicAll`.
"""

import asyncio
from collections.abc import Callable, Sequence

from reliable_mq.broker_core.registration import (
    farewell,
    registrations,
    take_order_topics,
    topic_registration,
)
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.errors import FrameError, Unavailable
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.broken import OnBroken, die, watched
from reliable_mq.runtime.link import Link
from reliable_mq.runtime.links import Links
from reliable_mq.runtime.listener import now_ms
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command

log = limited_log(__name__)

_TIMEOUT = 6.0
_FAREWELL_TIMEOUT = 1.0

Replies = list[tuple[int, bytes]]


class Registrar:
    """One broker's registrations.

    Invariant N2: a name server that is not known to have all topics is told all of them next, and
    one registration is under way at a time.

    Args:
        state: the broker.
        addresses: the name servers', "host:port" each.
        send: takes replies whose topics the name servers know.
        on_broken: takes an exception that nobody expected.
    """

    def __init__(
        self,
        state: BrokerState,
        addresses: Sequence[str],
        send: Callable[[Replies], None],
        on_broken: OnBroken = die,
    ) -> None:
        self._on_broken = on_broken
        self._state = state
        self._addresses = addresses
        self._send = send
        self._informed: set[str] = set()  # name servers that have all topics but the changed ones
        self._is_all_due = False
        self._waiting: Replies = []
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._links = Links(
            connect_timeout=_TIMEOUT,
            on_request=lambda _address, _command: None,
            greet=_no_greeting,
            on_lost=self._informed.discard,
        )

    def note(self, replies: Replies) -> None:
        """Tell the topics that changed, if there are any, and let `replies` go after that.

        What is under way is waited for first; when all is told, they go at once, and so they do
        when the broker has taken its leave.
        """
        if self._is_closed:
            self._send(replies)
            return
        self._waiting += replies
        if self._waiting or self._state.needs_registration:
            self._begin()

    async def register(self) -> None:
        """Tell every name server all topics; return when they know, or cannot be told."""
        self._is_all_due = True
        await self._begin()

    def _begin(self) -> asyncio.Task[None]:
        if self._task is None or self._task.done():
            self._task = watched(self._register(), self._on_broken)
        return self._task

    async def _register(self) -> None:
        while self._waiting or self._is_all_due or self._state.needs_registration:
            replies, self._waiting = self._waiting, []
            if self._is_all_due:
                self._is_all_due = False
                self._informed.clear()
            names = self._state.take_unregistered()
            try:
                if names or len(self._informed) < len(self._addresses):
                    await asyncio.gather(
                        *(self._tell(address, names) for address in self._addresses)
                    )
            finally:  # also when the broker takes its leave meanwhile
                self._send(replies)

    async def _tell(self, address: str, names: list[str]) -> None:
        """Tell one name server of the topics `names`, or of all if it may not know the others."""
        if address in self._informed:
            if not names:
                return
            if self._state.config.single_topic_register:
                told = (topic_registration(self._state, name) for name in names)
                commands = [one for one in told if one]
                is_told = all(await asyncio.gather(*(self._call(address, c) for c in commands)))
            else:
                is_told = await self._call_all(address, names)
            if is_told:
                return
        if await self._call_all(address):
            self._informed.add(address)

    async def _call_all(self, address: str, names: list[str] | None = None) -> bool:
        """Return whether a name server took all topics, or all of these; one part at a time."""
        for command in registrations(self._state, names):
            if not await self._call(address, command):
                return False
        return True

    async def _call(self, address: str, command: Command) -> bool:
        """Return whether a name server took what it was told."""
        try:
            answer = await self._links.call(address, command, _TIMEOUT)
        except (Unavailable, FrameError) as error:
            log.warning("cannot register at %s: %s", address, error)
            self._informed.discard(address)
            return False
        if answer.code != ResponseCode.SUCCESS:
            log.warning("%s refuses a registration: %s", address, answer.remark)
            return False
        take_order_topics(self._state, answer.body, now_ms())
        return True

    async def unregister(self) -> None:
        """End what is under way, and tell every name server that the broker goes.

        Who waited is answered: the topics are saved, and nobody will be told of them now.
        """
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        replies, self._waiting = self._waiting, []
        self._send(replies)
        for address in self._addresses:
            try:
                await self._links.call(address, farewell(self._state), _FAREWELL_TIMEOUT)
            except Unavailable as error:
                log.info("cannot unregister at %s: %s", address, error)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._links.close()


async def _no_greeting(_address: str, _link: Link) -> None:
    """A name server needs no introduction."""
