"""The brokers behind the endpoint: one question, and what is kept of the answers for a while.

The endpoint knows brokers by `Ask` alone. Behind it are connections to brokers of a cluster, or the
broker of the same process.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from itertools import count
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from reliable_mq.client.connecting.routes import Broker, Route, decode_cluster, decode_route
from reliable_mq.errors import (
    ConnectionLost,
    ProtocolError,
    ReliableMQError,
    RequestTimeout,
    Unavailable,
)
from reliable_mq.gateway.acting import ACTING
from reliable_mq.gateway.codes import Code, KindOfMessage, RpcRefused, refused_by_broker
from reliable_mq.gateway.group_policy import GroupPolicy, policy_of
from reliable_mq.gateway.sending import KINDS_OF_TYPE
from reliable_mq.limits import SLOW_TEXT_SIZE_MAX
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request

KEPT_SECONDS = 20.0
"""How long routes, types of topics and settings of groups are kept."""
MISSING_SECONDS = 1.0
"""How long it is kept that a topic does not exist: a client asks again at once."""
KEPT_MAX = 10_000
ASK_SECONDS = 3.0
MARGIN_SECONDS = 2.0
"""How much longer than a wait at a broker its answer may take."""
_MISSING = {
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
}
"""Answers that say that there is nothing to know, so that what is new applies."""

OnAnswer = Callable[[Command | ReliableMQError], None]
"""Takes an answer, or why there is none."""


class Teller(Protocol):
    """The broker of this process, for requests that nobody signs and no task waits for."""

    def reaches(self, address: str) -> bool:
        """Whether it is the server at an address, and takes requests."""

    def tell(self, host: str, command: Command, timeout: float, on_answer: OnAnswer) -> None:
        """Take a request of a client at an address; `hand_over` must follow."""

    def hand_over(self, number: int) -> None:
        """Hand over what was told on a connection of clients with this number.

        This is done at once. If many connections are active, it is done in the next turn of the
        loop: requests that come together share a write to the log.
        """


class Begun(NamedTuple):
    """A call whose answer is that of one request."""

    address: str
    command: Command
    finish: Callable[[Command], Any]
    """Makes the answer of the call of that of the request; raises RpcRefused."""


Key = TypeVar("Key")
Value = TypeVar("Value")


class Ask(Protocol):
    """Asks one server."""

    def __call__(self, address: str, command: Command, timeout: float) -> Awaitable[Command]:
        """Return the answer of the server at `address`.

        Raises:
            RequestTimeout: when none comes within `timeout` seconds.
            ConnectionLost: when the server cannot be reached.
        """


class Kept(Generic[Key, Value]):
    """Answers by key, for a while. Those who ask at the same time share one question."""

    def __init__(self, ask: Callable[[Key], Coroutine[Any, Any, Value]]) -> None:
        self._ask = ask
        self._values: dict[Key, tuple[float, Value | RpcRefused]] = {}
        self._asking: dict[Key, asyncio.Task[Value]] = {}

    def known(self, key: Key) -> Value | None:
        """Return what is kept and fresh."""
        found = self._values.get(key)
        if found is None or isinstance(found[1], RpcRefused):
            return None
        return found[1] if found[0] >= time.monotonic() else None

    def all(self) -> list[Value]:
        """Return all answers, also those that are no longer fresh."""
        return [each for _, each in self._values.values() if not isinstance(each, RpcRefused)]

    async def of(self, key: Key) -> Value:
        """Return the answer for a key."""
        found = self._values.get(key)
        if found is not None and found[0] >= time.monotonic():
            if isinstance(found[1], RpcRefused):  # a new one: each raise adds to its traceback
                raise RpcRefused(found[1].code, str(found[1]))
            return found[1]
        task = self._asking.get(key)
        if task is None:  # the answer is for everybody: the endpoint asks for itself
            own = copy_context()
            own.run(ACTING.set, None)
            task = self._asking[key] = asyncio.get_running_loop().create_task(
                self._ask(key), context=own
            )
            task.add_done_callback(lambda done: self._asked(key, done))
        try:
            return await asyncio.shield(task)
        except RpcRefused as refused:
            if found is None or isinstance(found[1], RpcRefused) or _is_told(refused):
                raise
            return found[1]  # the old answer is better than none

    def _asked(self, key: Key, task: asyncio.Task[Value]) -> None:
        self._asking.pop(key, None)
        if task.cancelled():
            return
        error = task.exception()
        now = time.monotonic()
        if len(self._values) >= KEPT_MAX:
            self._values = {at: each for at, each in self._values.items() if each[0] > now}
            if len(self._values) >= KEPT_MAX:
                self._values.clear()
        if error is None:
            self._values[key] = (now + KEPT_SECONDS, task.result())
        elif isinstance(error, RpcRefused) and _is_told(error):
            kept = RpcRefused(error.code, str(error))  # without the frames that it came through
            self._values[key] = (now + MISSING_SECONDS, kept)

    def forget(self, key: Key) -> None:
        """Ask again the next time."""
        self._values.pop(key, None)


def _is_told(refused: RpcRefused) -> bool:
    """Whether a server has told it, so that asking again gives the same."""
    return refused.code in {Code.TOPIC_NOT_FOUND, Code.CONSUMER_GROUP_NOT_FOUND}


class Upstream:
    """The brokers of one cluster.

    Args:
        ask: asks a server.
        name_servers: their addresses, "host:port".
    """

    def __init__(self, ask: Ask, name_servers: Sequence[str]) -> None:
        self._ask = ask
        self._name_servers = list(name_servers)
        self._first = 0
        self._turn = count()
        self._routes = Kept[str, Route](self._look_up)
        self._kinds = Kept[str, frozenset[KindOfMessage]](self._look_up_kinds)
        self._groups = Kept[str, GroupPolicy](self._look_up_group)
        self._users = Kept[str, dict[str, Any]](self._look_up_user)
        self._clusters = Kept[str, tuple[Broker, ...]](self._look_up_brokers)

    async def ask(self, address: str, command: Command, timeout: float = ASK_SECONDS) -> Command:
        """Ask a broker; the answer may be a refusal.

        Raises:
            RpcRefused: when it does not answer, or cannot be reached.
        """
        try:
            return await self._ask(address, command, timeout)
        except (RequestTimeout, ConnectionLost, Unavailable) as error:
            raise refused_by(error) from error

    async def asked(self, address: str, command: Command, timeout: float = ASK_SECONDS) -> Command:
        """Ask a broker, and return its answer if it is no refusal.

        Raises:
            RpcRefused: else.
        """
        answer = await self.ask(address, command, timeout)
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark)
        return answer

    def known_route(self, topic: str) -> Route | None:
        """Return the route of a topic if it is known and fresh."""
        return self._routes.known(topic)

    def known_kinds(self, topic: str) -> frozenset[KindOfMessage] | None:
        """Return what kinds of messages a topic takes if it is known."""
        return self._kinds.known(topic)

    def forget_topic(self, topic: str) -> None:
        """Look up a topic again: a broker does not know it any more."""
        self._routes.forget(topic)
        self._kinds.forget(topic)

    async def route(self, topic: str) -> Route:
        """Return the route of a topic.

        Raises:
            RpcRefused: when there is none.
        """
        return await self._routes.of(topic)

    async def kinds(self, topic: str) -> frozenset[KindOfMessage]:
        """Return what kinds of messages a topic takes."""
        return await self._kinds.of(topic)

    async def group(self, group: str) -> GroupPolicy:
        """Return the configuration of a consumer group; that of a new one if it does not exist."""
        return await self._groups.of(group)

    async def user(self, name: str) -> dict[str, Any]:
        """Return what a broker knows of a user; nothing if there is none."""
        return await self._users.of(name)

    async def brokers(self) -> tuple[Broker, ...]:
        """Return all brokers that have a master."""
        return await self._clusters.of("")

    def known_brokers(self) -> tuple[Broker, ...]:
        """Return the brokers that were seen lately, by routes or by the list of all."""
        found = {each.name: each for route in self._routes.all() for each in route.brokers.values()}
        return tuple(found.values()) or self._clusters.known("") or ()

    def known_master(self, name: str, topic: str) -> str:
        """Return the address of a broker's master if the route of a topic says it; else ""."""
        route = self._routes.known(topic)
        broker = None if route is None else route.brokers.get(name)
        return (broker.master or "") if broker is not None else ""

    async def master(self, name: str, topic: str) -> str:
        """Return the address of a broker's master.

        Raises:
            RpcRefused: when there is no such broker.
        """
        known = self.known_master(name, topic)
        if known:
            return known
        for each in await self.brokers():
            if each.name == name and each.master:
                return each.master
        raise RpcRefused(
            Code.INTERNAL_SERVER_ERROR, f"broker {name} is not known, or has no master"
        )

    async def any_master(self, topic: str = "") -> str:
        """Return the address of a master: one that has the topic if its route is known.

        Raises:
            RpcRefused: when there is none.
        """
        route = self._routes.known(topic)
        return self._one_of(tuple(route.brokers.values()) if route else await self.brokers())

    async def _ask_names(self, command: Command) -> Command:
        """Ask the name servers one after another, the one that answered last first."""
        failure: RpcRefused | None = None
        for _ in self._name_servers:
            address = self._name_servers[self._first % len(self._name_servers)]
            try:
                return await self.ask(address, command)
            except RpcRefused as refused:
                failure = refused
                self._first += 1
        raise failure or RpcRefused(Code.INTERNAL_SERVER_ERROR, "there is no name server")

    async def _look_up(self, topic: str) -> Route:
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = await self._ask_names(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields))
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark)
        try:
            return decode_route(topic, answer.body)
        except ProtocolError as error:
            raise RpcRefused(Code.INTERNAL_SERVER_ERROR, str(error)) from error

    async def _look_up_brokers(self, _key: str) -> tuple[Broker, ...]:
        answer = await self._ask_names(request(RequestCode.GET_BROKER_CLUSTER_INFO))
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark)
        return tuple(each for each in decode_cluster(answer.body) if each.master)

    def _one_of(self, brokers: Sequence[Broker]) -> str:
        masters = [each.master for each in brokers if each.master]
        if not masters:
            raise RpcRefused(Code.INTERNAL_SERVER_ERROR, "there is no broker with a master")
        return masters[next(self._turn) % len(masters)]

    async def _look_up_kinds(self, topic: str) -> frozenset[KindOfMessage]:
        route = await self.route(topic)
        address = self._one_of(tuple(route.brokers.values()))
        answer = await self.ask(address, request(RequestCode.GET_TOPIC_CONFIG, {"topic": topic}))
        if answer.code in _MISSING:
            return KINDS_OF_TYPE["NORMAL"]
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark)
        found = _fields(answer.body)
        attributes = found.get("attributes")
        kind = attributes.get("message.type") if isinstance(attributes, dict) else None
        return KINDS_OF_TYPE.get(str(kind), KINDS_OF_TYPE["NORMAL"])

    async def _look_up_user(self, name: str) -> dict[str, Any]:
        address = self._one_of(await self.brokers())
        answer = await self.asked(address, request(RequestCode.AUTH_GET_USER, {"username": name}))
        return _fields(answer.body)

    async def _look_up_group(self, group: str) -> GroupPolicy:
        address = self._one_of(await self.brokers())
        command = request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": group})
        answer = await self.ask(address, command)
        if answer.code in _MISSING:
            return GroupPolicy()
        if answer.code != ResponseCode.SUCCESS:
            raise refused_by_broker(answer.code, answer.remark)
        return policy_of(_fields(answer.body))


def refused_by(error: ReliableMQError) -> RpcRefused:
    """Return what a client is told when a server does not answer."""
    code = Code.PROXY_TIMEOUT if isinstance(error, RequestTimeout) else Code.INTERNAL_SERVER_ERROR
    return RpcRefused(code, str(error))


async def unless_refused(work: Coroutine[Any, Any, None]) -> None:
    """Do something that is tried again later, or comes again by itself, if it is refused."""
    with suppress(RpcRefused):
        await work


def _fields(body: bytes) -> dict[str, Any]:
    try:
        found = fastjson.loads(body, slow_size_max=SLOW_TEXT_SIZE_MAX)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
