"""Routes: which brokers have which queues of a topic.

While the name servers do not answer, a known route stays in use. A message to an unknown topic goes
to the brokers that create topics: those with the template topic TBW102.
Source: Apache RocketMQ `TopicRouteData`, `MQClientInstance`.
"""

from collections import Counter
from typing import Any

import msgspec

from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.flow import Flow, now, once, succeeded
from reliable_mq.errors import NoRoute, ProtocolError, RemoteError, Unavailable
from reliable_mq.message import MessageQueue
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import request
from reliable_mq.wire.remote_faults import remote_error

TEMPLATE_TOPIC = "TBW102"
NO_TEMPLATE_SECONDS = 1.0
"""Seconds before the next question for a template topic that no broker has."""

ROUTES_KEPT = 1_000
"""Above this number of routes, idle ones are forgotten."""
IDLE_ROUNDS = 20
"""A route is idle after this many refreshes without use: ten minutes by default."""

MASTER_ID = 0

_READABLE = 4
_WRITABLE = 2


class Broker(msgspec.Struct, frozen=True):
    """The addresses of the brokers that share one name, by broker id; 0 is the master."""

    name: str
    cluster: str
    addresses: dict[int, str]

    @property
    def master(self) -> str | None:
        """The master's address; None when the name servers know no master."""
        return self.addresses.get(MASTER_ID)

    def to_read_from(self, broker_id: int) -> str | None:
        """Return the address of `broker_id`, else of the master, else of any slave."""
        return (
            self.addresses.get(broker_id)
            or self.master
            or next(iter(self.addresses.values()), None)
        )


class Route(msgspec.Struct, frozen=True):
    """The queues and brokers of a topic. Queues are sorted: every client has the same order."""

    topic: str
    writable: tuple[MessageQueue, ...]
    readable: tuple[MessageQueue, ...]
    brokers: dict[str, Broker]


def decode_route(topic: str, body: bytes) -> Route:
    """Return the route in the body of a reply to GET_ROUTEINFO_BY_TOPIC.

    Raises:
        ProtocolError: when the body is not a valid route.
    """
    try:
        fields = fastjson.loads(body)
        brokers = {
            data["brokerName"]: Broker(
                data["brokerName"],
                data.get("cluster") or "",
                {int(key): address for key, address in data["brokerAddrs"].items()},
            )
            for data in fields.get("brokerDatas") or ()
        }
        readable: list[MessageQueue] = []
        writable: list[MessageQueue] = []
        for data in fields.get("queueDatas") or ():
            broker = brokers.get(data["brokerName"])
            if broker is None:
                continue
            if data["perm"] & _READABLE:
                readable += _queues(topic, broker.name, data["readQueueNums"])
            if data["perm"] & _WRITABLE and broker.master:
                writable += _queues(topic, broker.name, data["writeQueueNums"])
        if fields.get("orderTopicConf"):
            writable = _ordered_queues(topic, fields["orderTopicConf"], brokers)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"the route of topic {topic} cannot be decoded: {error!r}") from error
    return Route(topic, tuple(sorted(writable)), tuple(sorted(readable)), brokers)


def _queues(topic: str, broker_name: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic, broker_name, queue_id) for queue_id in range(count)]


def _ordered_queues(topic: str, text: str, brokers: dict[str, Broker]) -> list[MessageQueue]:
    """Return the queues of an ordered topic: "broker:count;broker:count" overrides the route."""
    queues: list[MessageQueue] = []
    for part in text.split(";"):
        name, _, count = part.partition(":")
        broker = brokers.get(name)
        if broker is not None and broker.master:
            queues += _queues(topic, name, int(count))
    return queues


class RouteCache:
    """The routes of all topics that this client has used.

    Invariant: a topic has a route here if and only if a name server has sent one, and none
    has denied it since. Above `ROUTES_KEPT`, only routes in use are kept.
    """

    def __init__(self, name_servers: NameServers, new_topic_queues: int, fresh: float) -> None:
        self._name_servers = name_servers
        self._new_topic_queues = new_topic_queues
        self._fresh_seconds = fresh
        self._routes: dict[str, Route] = {}
        self._asked_at: dict[str, float] = {}
        self._brokers: dict[str, Broker] = {}
        self._named_by: Counter[str] = Counter()  # number of routes with each broker
        self._denied: list[Route] = []  # denied routes that `_named_by` still counts
        self._no_template_until = 0.0
        self._used: set[str] = set()  # since the last refresh
        self._idle_rounds: dict[str, int] = {}  # refreshes without use, by topic

    def find(self, topic: str) -> Route | None:
        """Return the known route of `topic` without a request."""
        self._used.add(topic)
        return self._routes.get(topic)

    def topics(self) -> list[str]:
        """Return the topics that have a route."""
        return list(self._routes)

    def forget_idle(self) -> None:
        """Forget idle topics if there are many. Called with every refresh."""
        rounds = self._idle_rounds
        self._idle_rounds = {
            topic: rounds.get(topic, 0) + 1 for topic in self._routes if topic not in self._used
        }
        self._used.clear()
        excess = max(0, len(self._routes) - ROUTES_KEPT)
        idle = [topic for topic, count in self._idle_rounds.items() if count >= IDLE_ROUNDS]
        for topic in sorted(idle, key=self._idle_rounds.__getitem__, reverse=True)[:excess]:
            self._asked_at.pop(topic, None)
            self._leave(self._routes.pop(topic))

    def brokers(self) -> list[Broker]:
        """Return every broker in any route."""
        return list(self._brokers.values())

    def broker(self, name: str) -> Broker | None:
        """Return the broker with this name; None when no route has it."""
        return self._brokers.get(name)

    def master_of(self, name: str) -> str:
        """Return the address of this broker's master; "" when none is known."""
        broker = self._brokers.get(name)
        return (broker.master or "") if broker is not None else ""

    def mark_stale(self, topic: str) -> None:
        """Look up the route of `topic` again before its next use: one of its brokers has failed."""
        self._asked_at.pop(topic, None)

    def of(self, topic: str) -> Flow[Route]:
        """Return the route of `topic`: the known one while it is fresh, else from a name server.

        Raises:
            NoRoute: when the name servers know no route.
            Unavailable: when no route is known and no name server answers.
            ProtocolError: when no route is known and a name server's answer cannot be decoded.
        """
        known = self.find(topic)
        if known is not None:
            asked_at = self._asked_at.get(topic)
            if asked_at is not None:
                instant = yield from now()
                if instant.seconds - asked_at < self._fresh_seconds:
                    return known
        try:
            return (yield from self.look_up(topic))
        except NoRoute:
            raise
        except (Unavailable, RemoteError, ProtocolError):
            if known is None:
                raise
            return known

    def fresh(self, topic: str, seconds: float) -> Route | None:
        """Return the route that `to_send` would return without a request; None if it needs one."""
        self._used.add(topic)
        route, asked_at = self._routes.get(topic), self._asked_at.get(topic)
        if route is None or asked_at is None or seconds - asked_at >= self._fresh_seconds:
            return None
        return route if route.writable else None

    def look_up(self, topic: str) -> Flow[Route]:
        """Ask the name servers for the route of `topic` and keep it. Callers share one request.

        Raises:
            NoRoute: when the name servers know no route. A kept route is then forgotten.
            RemoteError: when a name server refuses the request.
            Unavailable: when no name server answers.
        """
        return (yield from once(("route", topic), lambda: self._ask(topic)))

    def _ask(self, topic: str) -> Flow[Route]:
        question = {"topic": topic, "acceptStandardJsonOnly": "true"}
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, question)
        reply = yield from self._name_servers.ask(command)
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            if topic in self._routes:
                self._denied.append(self._routes.pop(topic))
                self._asked_at.pop(topic, None)
            raise NoRoute(f"no name server knows topic {topic}")
        if reply.code != ResponseCode.SUCCESS:
            raise remote_error(reply.code, reply.remark)
        instant = yield from now()
        route = decode_route(topic, reply.body)
        self._keep(route, instant.seconds)
        return route

    def _keep(self, route: Route, seconds: float) -> None:
        replaced = self._routes.get(route.topic)
        self._routes[route.topic] = route
        self._asked_at[route.topic] = seconds
        self._brokers |= route.brokers  # the newest route has its brokers' current addresses
        self._named_by.update(route.brokers.keys())
        for gone in (*self._denied, *([replaced] if replaced else [])):
            self._leave(gone)
        self._denied.clear()

    def _leave(self, gone: Route) -> None:
        """Stop counting an ended route, and forget brokers that are in no other route."""
        self._named_by.subtract(gone.brokers.keys())
        for name in gone.brokers:
            if not self._named_by[name]:
                del self._brokers[name], self._named_by[name]

    def to_send(self, topic: str) -> Flow[Route]:
        """Return a route with at least one writable queue.

        An unknown topic gets the queues that its first send will create. This route is not kept.

        Raises:
            NoRoute: when the topic has no writable queue, or is unknown and no broker creates
                topics.
            Unavailable: when no name server answers.
        """
        try:
            route = yield from self.of(topic)
        except NoRoute:
            route = yield from self._route_to_create(topic)
        if not route.writable:
            raise NoRoute(f"topic {topic} has no queue that may be written")
        return route

    def _route_to_create(self, topic: str) -> Flow[Route]:
        instant = yield from now()
        template: Route | None = None
        if instant.seconds >= self._no_template_until:
            try:
                template = yield from self.of(TEMPLATE_TOPIC)
            except NoRoute:
                self._no_template_until = instant.seconds + NO_TEMPLATE_SECONDS
        if template is None:
            raise NoRoute(
                f"no name server knows topic {topic}, and no broker that creates topics:"
                " create it first, or see whether its broker runs"
            )
        queues = tuple(
            MessageQueue(topic, queue.broker_name, queue.queue_id)
            for queue in template.writable
            if queue.queue_id < self._new_topic_queues
        )
        return Route(topic, queues, (), template.brokers)


def masters(name_servers: NameServers) -> Flow[list[str]]:
    """Return the addresses of all masters that the name servers know.

    Raises:
        RemoteError, Unavailable: when no name server returns them.
    """
    reply = yield from name_servers.ask(request(RequestCode.GET_BROKER_CLUSTER_INFO))
    return [broker.master for broker in decode_cluster(succeeded(reply).body) if broker.master]


def decode_cluster(body: bytes) -> list[Broker]:
    """Return every broker in the body of a reply to GET_BROKER_CLUSTER_INFO.

    Raises:
        ProtocolError: when the body cannot be decoded.
    """
    try:
        table: dict[str, Any] = fastjson.loads(body).get("brokerAddrTable") or {}
        return [
            Broker(
                name,
                data.get("cluster") or "",
                {int(key): address for key, address in data["brokerAddrs"].items()},
            )
            for name, data in table.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"the list of brokers cannot be decoded: {error!r}") from error
