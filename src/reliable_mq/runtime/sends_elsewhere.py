"""Sends what a slave delivers in its master's place to other masters of the cluster.

It receives messages that are due. It finds a master that takes their topic, sends them as a client
would, and passes the answers back. Source: Apache RocketMQ `EscapeBridge`.
"""

import asyncio
import time
from collections.abc import Callable

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.delivery.elsewhere import (
    DeliveriesElsewhere,
    Elsewhere,
    TopicQueues,
    queue_for,
    send_of,
)
from reliable_mq.errors import MessageRefused
from reliable_mq.line_limit import limited_log
from reliable_mq.replication.standing_in import MASTER
from reliable_mq.runtime.broker_members import ASKING_FAULTS, TopicRoute, asked
from reliable_mq.runtime.links import Links
from reliable_mq.runtime.server_connection import now_ms
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.peer_texts import read_json_as

log = limited_log(__name__)

SEND_SECONDS = 3.0
"""So long another master may take for its answer: `EscapeBridge.SEND_TIMEOUT`."""
ROUTE_SECONDS = 5.0
"""So long a route is used."""
_NO_ROUTE_SECONDS = 0.5
_AWAY_SECONDS = 1.0  # so long a master that did not answer is passed over
_WRITE = 2
_NO_ANSWER = -1


class SendsElsewhere:
    """The sends of one slave.

    Args:
        config: of the slave.
        links: to name servers and to other masters.
        on_answer: called after each answer.
    """

    def __init__(self, config: BrokerConfig, links: Links, on_answer: Callable[[], None]) -> None:
        self._config = config
        self._links = links
        self._on_answer = on_answer
        self._producers = f"InnerProducerGroup_{config.broker_name}_{config.broker_id}"
        self._routes: dict[str, tuple[float, list[TopicQueues]]] = {}  # by topic; valid until
        self._asking: dict[str, asyncio.Task[list[TopicQueues]]] = {}
        self._away: dict[str, float] = {}  # masters, and until when they are passed over
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    def begin(self, deliveries: DeliveriesElsewhere) -> None:
        """Send what is due now.

        Raises: what an earlier send has raised: it is a bug.
        """
        if self._failure is not None:
            raise self._failure
        for one in deliveries.take(now_ms(), time.monotonic()):
            task = asyncio.create_task(self._send(deliveries, one))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error

    async def _send(self, deliveries: DeliveriesElsewhere, one: Elsewhere) -> None:
        code, reason = _NO_ANSWER, f"no other master has topic {one.message.topic}"
        try:
            place = queue_for(
                await self._places(one.message.topic), one.message.queue_id, self._is_away
            )
            if place is not None:
                address, queue_id = place
                code, reason = await self._answer_of(address, one, queue_id)
        finally:
            has_it = deliveries.answered(one, code, now_ms(), time.monotonic())
            if not has_it:
                broker_events.NOT_DELIVERED_ELSEWHERE.log(
                    log, topic=one.message.topic, reason=reason
                )
            self._on_answer()

    async def _answer_of(self, address: str, one: Elsewhere, queue_id: int) -> tuple[int, str]:
        """Send a message; return the code of the answer, and a remark."""
        try:
            command = send_of(one.message, queue_id, self._producers)
        except MessageRefused as error:
            return _NO_ANSWER, str(error)
        try:
            answer = await self._links.call(address, command, SEND_SECONDS)
        except ASKING_FAULTS as error:
            self._away[address] = time.monotonic() + _AWAY_SECONDS
            self._routes.pop(one.message.topic, None)
            return _NO_ANSWER, str(error)
        return answer.code, f"{address}: {answer.remark}"

    def _is_away(self, address: str) -> bool:
        return self._away.get(address, 0.0) > time.monotonic()

    async def _places(self, topic: str) -> list[TopicQueues]:
        """Return the queues of a topic at other masters."""
        until, places = self._routes.get(topic, (0.0, []))
        if until > time.monotonic():
            return places
        task = self._asking.get(topic)
        if task is None:
            task = self._asking[topic] = asyncio.create_task(self._asked(topic))
            task.add_done_callback(lambda _: self._asking.pop(topic, None))
        return await asyncio.shield(task)

    async def _asked(self, topic: str) -> list[TopicQueues]:
        places: list[TopicQueues] = []
        for name_server in self._config.name_servers.split(";"):
            try:
                code, fields = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
                answer = await asked(self._links, name_server, code, fields)
                places = self._read(answer.body)
            except ASKING_FAULTS:  # also if it does not know the topic
                continue
            if places:
                break
        seconds = ROUTE_SECONDS if places else _NO_ROUTE_SECONDS
        now = time.monotonic()
        self._routes = {name: each for name, each in self._routes.items() if each[0] > now}
        self._routes[topic] = now + seconds, places
        return places

    def _read(self, body: bytes) -> list[TopicQueues]:
        """Return the queues in a route that take messages, but those of this broker's name."""
        route = read_json_as(body, TopicRoute)
        masters = {
            each.broker_name: each.broker_addrs[MASTER]
            for each in route.broker_datas
            if MASTER in each.broker_addrs and each.cluster == self._config.broker_cluster_name
        }
        masters.pop(self._config.broker_name, None)
        rows = sorted(route.queue_datas, key=lambda each: each.broker_name)
        return [
            TopicQueues(masters[each.broker_name], each.write_queue_nums)
            for each in rows
            if each.broker_name in masters and each.perm & _WRITE and each.write_queue_nums > 0
        ]

    async def close(self) -> None:
        """Give up what is on its way."""
        tasks = [*self._tasks, *self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
