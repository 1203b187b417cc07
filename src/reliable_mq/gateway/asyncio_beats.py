"""What brokers are told of producers: which topics have one that can be asked about transactions.

The endpoint is a member of a group of producers with the topic's name. It tells brokers every few
seconds, and at once when a topic gets its first producer.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from reliable_mq.client.connecting.routes import Broker
from reliable_mq.gateway.asyncio_producing import Producing
from reliable_mq.gateway.asyncio_soon import Soon
from reliable_mq.gateway.asyncio_upstream import Upstream, unless_refused
from reliable_mq.gateway.codes import Code, KindOfMessage, RpcRefused
from reliable_mq.gateway.sessions import Session, Sessions
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request

PRODUCER_BEAT_SECONDS = 10.0
"""How often brokers are told which topics have producers that can be asked about transactions."""
UNKNOWN_SECONDS = 60.0
"""How long a topic that does not exist is not looked up again for the producers that name it."""
UNKNOWN_MAX = 10_000
_BEAT_SECONDS = 2.0


class Beats:
    """Tells brokers of producers.

    One look at topics runs at a time, however many producers come.

    Args:
        client_id: names this process to brokers.
        upstream: the brokers.
        sessions: the clients.
        producing: knows who can be asked.
        soon: does what nobody waits for.
    """

    def __init__(
        self,
        client_id: str,
        upstream: Upstream,
        sessions: Sessions,
        producing: Producing,
        soon: Soon,
    ) -> None:
        self._client_id = client_id
        self._upstream = upstream
        self._sessions = sessions
        self._producing = producing
        self._soon = soon
        self._told: set[str] = set()  # topics that brokers know of
        self._others: set[str] = set()  # topics that take no transactions
        self._unknown: dict[str, float] = {}  # topics that do not exist, and until when that counts
        self._new: set[str] = set()  # topics of producers that have come
        self._is_looking = False

    def came(self, session: Session) -> None:
        """Tell brokers at once about a topic that had no producer."""
        self._new |= session.topics - self._told - self._others
        if self._new and not self._is_looking:
            self._is_looking = True
            self._soon.begin_own(self._look_at_new())

    async def _look_at_new(self) -> None:
        try:
            while self._new:
                topics, self._new = self._new, set()
                if found := await self._asked_about(topics):
                    self._told |= found.keys()
                    await self._tell(self._told, found.values())
        finally:
            self._is_looking = False

    async def beat_forever(self) -> None:
        """Tell brokers every few seconds."""
        while True:
            await asyncio.sleep(PRODUCER_BEAT_SECONDS)
            await self.beat_once()

    async def beat_once(self) -> None:
        """Tell brokers of all topics that have producers."""
        topics = self._sessions.topics_of_producers()
        self._others &= topics
        found = await self._asked_about(topics)
        self._told = set(found)
        if found:
            await self._tell(self._told, found.values())

    async def _asked_about(self, topics: Iterable[str]) -> dict[str, dict[str, Broker]]:
        """Return the topics whose producers can be asked, with their brokers."""
        found: dict[str, dict[str, Broker]] = {}
        loop = asyncio.get_running_loop()
        for topic in sorted(topics):
            if self._unknown.get(topic, 0.0) > loop.time():
                continue
            try:
                if KindOfMessage.TRANSACTION not in await self._upstream.kinds(topic):
                    self._others.add(topic)
                elif await self._producing.producer_of(topic) is not None:
                    found[topic] = dict((await self._upstream.route(topic)).brokers)
            except RpcRefused as refused:
                if refused.code is Code.TOPIC_NOT_FOUND:
                    if len(self._unknown) >= UNKNOWN_MAX:
                        self._unknown.clear()
                    self._unknown[topic] = loop.time() + UNKNOWN_SECONDS
        return found

    async def _tell(self, topics: Iterable[str], brokers: Iterable[dict[str, Broker]]) -> None:
        body = msgspec.json.encode(
            {
                "clientID": self._client_id,
                "consumerDataSet": [],
                "heartbeatFingerprint": 0,
                "producerDataSet": [{"groupName": topic} for topic in sorted(topics)],
                "withoutSub": False,
            }
        )
        found = [each for some in brokers for each in some.values()]
        masters = {each.master for each in found if each.master}
        await asyncio.gather(*(self._beat(address, body) for address in masters))

    async def _beat(self, address: str, body: bytes) -> None:
        command = request(RequestCode.HEART_BEAT, None, body)
        await unless_refused(self._ask(address, command))

    async def _ask(self, address: str, command: Any) -> None:
        await self._upstream.ask(address, command, _BEAT_SECONDS)
