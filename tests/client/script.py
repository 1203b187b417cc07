"""A scripted world: it answers the steps of a flow, without sockets and without waiting."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.flow import (
    Call,
    CallAll,
    Flow,
    Instant,
    Now,
    Once,
    Post,
    Step,
    Together,
    Work,
)
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConnectionLost, ReliableMQError
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply

T = TypeVar("T")

NAME_SERVER = "ns:9876"
Answer = Callable[[Call], Command]


class World:
    """Answers calls by request code and remembers what it was asked.

    `answers` holds one function for each request code; it returns the reply or raises. Waiting
    only moves the clock.
    """

    def __init__(self, answers: Mapping[int, Answer] | None = None) -> None:
        self.answers: dict[int, Answer] = dict(answers or {})
        self.seconds = 1000.0
        self.asleep = 0.0  # so long has the machine slept
        self.epoch_ms = 1_800_000_000_000
        self.calls: list[Call] = []
        self.posts: list[Post] = []
        self.waits: list[float] = []
        self.works = 0
        self.dead: set[str] = set()

    @property
    def lease_seconds(self) -> float:
        """The time by which locks and leases age."""
        return self.seconds + self.asleep

    def play(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""
        answer: Any = None
        failure: ReliableMQError | None = None
        while True:
            try:
                step = flow.throw(failure) if failure is not None else flow.send(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            failure = None
            try:
                answer = self._answer(step)
            except ReliableMQError as error:
                failure = error

    def calls_of(self, code: int) -> list[Call]:
        """Return the calls with this request code."""
        return [call for call in self.calls if call.command.code == code]

    def _answer(self, step: Step) -> Any:
        if isinstance(step, Now):
            return Instant(self.seconds, self.epoch_ms, self.lease_seconds)
        if isinstance(step, Call):
            return self._call(step)
        if isinstance(step, CallAll):
            return [self._call_or_failure(call) for call in step.calls]
        if isinstance(step, Once):
            return self.play(step.flow())
        if isinstance(step, Together):
            return [self.play(flow) for flow in step.flows]
        if isinstance(step, Work):
            self.works += 1
            return step.function()
        if isinstance(step, Post):
            if step.address in self.dead:
                raise ConnectionLost(f"{step.address} is dead")
            self.posts.append(step)
            return None
        self.waits.append(step.seconds)
        self.seconds += step.seconds
        return None

    def _call_or_failure(self, call: Call) -> Command | ReliableMQError:
        try:
            return self._call(call)
        except ReliableMQError as error:
            return error

    def _call(self, call: Call) -> Command:
        self.calls.append(call)
        if call.address in self.dead:
            raise ConnectionLost(f"{call.address} is dead")
        return self.answers[call.command.code](call)


def says(
    code: int = ResponseCode.SUCCESS,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    remark: str = "",
) -> Answer:
    """Return an answer that is always the same."""
    return lambda call: reply(call.command, code, remark or None, ext, body)


def in_turn(*answers: Answer) -> Answer:
    """Return an answer that is each of `answers` in turn, then the last one for ever."""
    left = list(answers)

    def answer(call: Call) -> Command:
        current = left.pop(0) if len(left) > 1 else left[0]
        return current(call)

    return answer


def fails(error: ReliableMQError) -> Answer:
    """Return an answer that never comes: the call raises."""

    def answer(_: Call) -> Command:
        raise error

    return answer


def route_body(
    queues: Mapping[str, int], *, permission: int = 6, addresses: Mapping[str, str] | None = None
) -> bytes:
    """Return the body of a route: broker name -> number of queues, masters at "<name>:10911"."""
    masters = addresses or {}
    return msgspec.json.encode(
        {
            "brokerDatas": [
                {
                    "brokerAddrs": {"0": masters.get(name, f"{name}:10911")},
                    "brokerName": name,
                    "cluster": "c",
                }
                for name in queues
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": name,
                    "perm": permission,
                    "readQueueNums": count,
                    "topicSysFlag": 0,
                    "writeQueueNums": count,
                }
                for name, count in queues.items()
            ],
        }
    )


def routes_answer(topics: Mapping[str, Mapping[str, int]]) -> Answer:
    """Return the name server's answer: topic -> broker name -> number of queues."""

    def answer(call: Call) -> Command:
        topic = call.command.ext_fields["topic"]
        if topic not in topics:
            return reply(call.command, ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
        return reply(call.command, body=route_body(topics[topic]))

    return answer


def random_bytes(count: int) -> bytes:
    """Return bytes that are not random at all."""
    return bytes(range(count))


def route_table(settings: ClientSettings | None = None) -> RouteCache:
    """Return an empty route table that asks `NAME_SERVER`."""
    settings = settings or ClientSettings()
    servers = NameServers((NAME_SERVER,), settings.request_timeout_seconds)
    return RouteCache(servers, settings.new_topic_queues, settings.route_refresh_seconds)


def group_of(
    world: World,
    subscription: Subscription,
    *,
    queues: Mapping[str, int],
    settings: ClientSettings | None = None,
    client_id: str = "client-a",
    polled: bool = False,
    is_member: bool = True,
) -> ConsumerGroup:
    """Return a consumer group whose topics, its retry topic's included, are at `queues`."""
    settings = settings or ClientSettings()
    routes = route_table(settings)
    topics = dict.fromkeys(subscription.topics, queues)
    topics[subscription.retry_topic] = dict.fromkeys(queues, 1)
    topics[subscription.dead_letter_topic] = dict.fromkeys(queues, 1)
    world.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = routes_answer(topics)
    for topic in topics:
        world.play(routes.of(topic))
    world.calls.clear()
    return ConsumerGroup(
        subscription,
        world.epoch_ms,
        client_id,
        settings=settings,
        routes=routes,
        producer=SendFlows(settings, routes, random_bytes),
        polled=polled,
        is_member=is_member,
    )


def queue_ids(queues: Sequence[MessageQueue]) -> list[tuple[str, int]]:
    """Return (broker name, queue id) of each queue."""
    return [(queue.broker_name, queue.queue_id) for queue in queues]
