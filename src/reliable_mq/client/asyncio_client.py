"""The asyncio shell: drives flows over connections, keeps routes fresh and hearts beating.

Everything that decides lives in the flows; here are only the loop, the links and the clocks.
"""

import asyncio
import logging
import os
import platform
import time
from collections.abc import Iterable, Sequence
from typing import Any, Self, TypeVar

from reliable_mq.client import admin
from reliable_mq.client.asyncio_consumer import AsyncPushConsumer
from reliable_mq.client.asyncio_daemon import repeat
from reliable_mq.client.asyncio_transactions import AsyncTransactions
from reliable_mq.client.batching import Group, plan_many
from reliable_mq.client.cluster_facts import ClusterFacts, cluster_facts
from reliable_mq.client.consumer_group import ConsumerGroup
from reliable_mq.client.flow import (
    Call,
    CallAll,
    Flow,
    Instant,
    Now,
    Once,
    Post,
    Step,
    call_all,
)
from reliable_mq.client.membership import heartbeat, unregister_calls
from reliable_mq.client.name_servers import NameServers, parse_addresses
from reliable_mq.client.offsets import read_reset, status_of
from reliable_mq.client.producer import Producer
from reliable_mq.client.routes import Route, RouteTable
from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.subscription import Handler, Subscription
from reliable_mq.client.transaction import TransactionFlows
from reliable_mq.errors import ProtocolError, ReliableMQError, RequestTimeout, UsageError
from reliable_mq.message import Message, MessageQueue, SendResult
from reliable_mq.runtime.link import Link, Links
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply

log = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_SETTINGS = ClientSettings()


class AsyncClient:
    """Sends and consumes on one event loop; everything in it shares its connections.

    Use it as `async with AsyncClient(...) as client`, or call `start` and `close`.

    Args:
        name_servers: "host:port", several joined by ";".
        settings: time-outs, limits and intervals.

    Raises:
        ConfigurationError: when `name_servers` does not read.
    """

    def __init__(self, name_servers: str, *, settings: ClientSettings = DEFAULT_SETTINGS) -> None:
        self.settings = settings
        unique = f"{os.getpid()}#{os.urandom(6).hex()}"
        self.client_id = f"{platform.node() or 'client'}@{unique}"
        self._name_servers = NameServers(parse_addresses(name_servers), settings.request_timeout)
        self._routes = RouteTable(
            self._name_servers, settings.new_topic_queues, settings.route_refresh_seconds
        )
        self._producer = Producer(settings, self._routes, os.urandom)
        flows = TransactionFlows(settings, self._routes, self._producer, os.urandom)
        #: half messages: sent, ended, and answered for
        self.transactions = AsyncTransactions(flows, self.run, self.heartbeat)
        self._all_masters: set[str] = set()  # any broker may hold a half of a group we answer for
        self._consumers: dict[str, AsyncPushConsumer] = {}
        self._links: Links | None = None
        self._daemons: list[asyncio.Task[None]] = []
        self._in_flight = asyncio.Semaphore(settings.batches_in_flight)
        self._shared: dict[tuple[str, ...], asyncio.Task[Any]] = {}
        self._has_sent = False

    @property
    def routes(self) -> RouteTable:
        """The routes that this client has met; flows take them."""
        return self._routes

    @property
    def name_servers(self) -> NameServers:
        """The name servers; flows take them."""
        return self._name_servers

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Make the client ready; connections open when they are needed.

        Raises:
            UsageError: when it was started before.
        """
        if self._links is not None:
            raise UsageError("this client was started before: make a new one")
        self._links = Links(
            connect_timeout=self.settings.connect_timeout,
            on_request=self._answer_request,
            greet=self._greet,
            on_lost=self._broker_lost,
        )
        self._daemons = [
            asyncio.create_task(
                repeat(self.settings.route_refresh_seconds, self._refresh, "the refresh of routes")
            ),
            asyncio.create_task(
                repeat(self.settings.heartbeat_seconds, self.heartbeat, "a heartbeat")
            ),
        ]

    async def close(self) -> None:
        """Close the consumers gracefully, leave the producer group, end the connections."""
        links = self._started()
        await asyncio.gather(*(consumer.close() for consumer in list(self._consumers.values())))
        for daemon in self._daemons:
            daemon.cancel()
        await asyncio.gather(*self._daemons, return_exceptions=True)
        await self.transactions.close()
        if self._producer_groups():
            open_now = {link.address for link in links.open_links()} & self._broker_addresses()
            await self.run(call_all(self._farewells(open_now)))
        await links.close()

    async def send(
        self, message: Message, *, timeout: float = 3.0, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send one message and return where it is stored; see `Producer.send`."""
        self._has_sent = True
        return await self.run(self._producer.send(message, timeout=timeout, queue=queue))

    async def send_oneway(self, message: Message) -> None:
        """Send one message without asking for an answer; see `Producer.send_oneway`."""
        self._has_sent = True
        await self.run(self._producer.send_oneway(message))

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        timeout: float = 3.0,
        queue: MessageQueue | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request; see `Producer.send_batch`."""
        self._has_sent = True
        return await self.run(self._producer.send_batch(messages, timeout=timeout, queue=queue))

    async def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        """Send messages of any topics in few requests, several on their way at once.

        The order of each ordering key is kept: when a message cannot be sent, later ones of its
        queue are not sent either and carry `NotSent`. Nothing is raised for a single message; its
        place in the result holds the error.
        """
        self._has_sent = True
        plan = await self.run(plan_many(self._producer, self._routes, self.settings, messages))
        outcomes: dict[int, SendResult | Exception] = dict(plan.failures)
        for group, results in zip(
            plan.groups, await asyncio.gather(*map(self._send_group, plan.groups)), strict=True
        ):
            outcomes.update(zip(group.positions, results, strict=True))
        return [outcomes[position] for position in range(len(messages))]

    async def consume(self, subscription: Subscription, handler: Handler) -> AsyncPushConsumer:
        """Begin to read for a consumer group and return the running consumer.

        Raises:
            UsageError: when this client consumes for the group already.
        """
        self._started()
        if subscription.group in self._consumers:
            raise UsageError(f"this client consumes for group {subscription.group} already")
        group = ConsumerGroup(
            subscription,
            int(time.time() * 1000),
            self.client_id,
            settings=self.settings,
            routes=self._routes,
            producer=self._producer,
        )
        consumer = AsyncPushConsumer(self, group, handler)
        self._consumers[subscription.group] = consumer
        await consumer.start()
        return consumer

    async def create_topic(self, topic: str, queues: int = 8) -> None:
        """Create a topic at every broker; see `admin.create_topic`."""
        flow = admin.create_topic(self._name_servers, self._routes, self.settings, topic, queues)
        await self.run(flow)

    async def consumer_progress(
        self, group: str, topic: str
    ) -> dict[MessageQueue, tuple[int, int]]:
        """Return (committed, maximum) offsets by queue; see `admin.consumer_progress`."""
        return await self.run(admin.consumer_progress(self._routes, self.settings, group, topic))

    async def cluster_facts(self, groups: Sequence[str] = ()) -> ClusterFacts:
        """Return what name servers and brokers say of themselves; see `cluster_facts`."""
        return await self.run(cluster_facts(self._name_servers, self.settings, groups))

    async def topic_route(self, topic: str) -> Route:
        """Return where `topic` is, asked from the name servers now; see `RouteTable.look_up`."""
        return await self.run(self._routes.look_up(topic))

    async def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its end over the connections of this client."""
        answer: Any = None
        failure: ReliableMQError | None = None
        try:
            while True:
                step = flow.throw(failure) if failure is not None else flow.send(answer)
                failure = None
                try:
                    answer = await self._answer(step)
                except ReliableMQError as error:
                    failure = error
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            flow.close()

    async def heartbeat(self) -> None:
        """Tell every broker that any route names which groups this client belongs to."""
        if not self._consumers and not self._producer_groups():
            return
        if self.transactions.groups:
            await self._look_for_masters()
        addresses = self._broker_addresses() if self._consumers else self._master_addresses()
        calls = [self._heartbeat_call(address) for address in addresses]
        for call, answer in zip(calls, await self.run(call_all(calls)), strict=True):
            if isinstance(answer, ReliableMQError):
                log.info("a heartbeat did not reach %s: %s", call.address, answer)
                self._started().drop(call.address)
            else:
                self._note_heartbeat(call.address, answer)

    async def leave_group(self, group: ConsumerGroup) -> None:
        """Take a consumer that has ended out of its group at every broker it is connected to."""
        self._consumers.pop(group.name, None)
        open_now = {link.address for link in self._started().open_links()}
        calls = unregister_calls(
            self.client_id,
            open_now & self._broker_addresses(),
            self.settings.request_timeout,
            consumer_group=group.name,
        )
        await self.run(call_all(calls))

    async def _answer(self, step: Step) -> Any:
        if isinstance(step, Now):
            return Instant(asyncio.get_running_loop().time(), time.time_ns() // 1_000_000)
        if isinstance(step, Call):
            return await self._call(step)
        if isinstance(step, CallAll):
            return await asyncio.gather(*map(self._call_or_failure, step.calls))
        if isinstance(step, Once):
            return await self._once(step)
        if isinstance(step, Post):
            return await self._started().post(step.address, step.command)
        return await asyncio.sleep(step.seconds)

    async def _call(self, step: Call) -> Command:
        links = self._started()
        try:
            return await links.call(step.address, step.command, step.timeout)
        except RequestTimeout:
            if step.address in self._name_servers.addresses:  # they get no heartbeats
                links.drop(step.address)
            raise

    async def _call_or_failure(self, step: Call) -> Command | ReliableMQError:
        try:
            return await self._call(step)
        except ReliableMQError as error:
            return error

    async def _once(self, step: Once) -> Any:
        task = self._shared.get(step.key)
        if task is None:
            task = asyncio.create_task(self.run(step.flow()))
            self._shared[step.key] = task
            task.add_done_callback(lambda done: self._shared_ended(step.key, done))
        return await asyncio.shield(task)

    def _shared_ended(self, key: tuple[str, ...], task: asyncio.Task[Any]) -> None:
        del self._shared[key]
        if not task.cancelled():
            task.exception()  # looked at, so that a failure nobody waited for is not reported

    async def _send_group(self, group: Group) -> list[SendResult | Exception]:
        async with self._in_flight:
            return await self.run(self._producer.send_in_order(group.batches, group.queue))

    async def _refresh(self) -> None:
        for topic in self._routes.topics():
            try:
                await self.run(self._routes.look_up(topic))
            except ReliableMQError as error:
                log.info("the route of topic %s was not refreshed: %s", topic, error)

    async def _greet(self, address: str, link: Link) -> None:
        """Register with a broker on a new connection, before anything else goes over it."""
        is_member = self._consumers or self._producer_groups()
        if is_member and address in self._broker_addresses():
            step = self._heartbeat_call(address)
            self._note_heartbeat(address, await link.call(step.command, step.timeout))

    @staticmethod
    def _note_heartbeat(address: str, answer: Command) -> None:
        if answer.code != ResponseCode.SUCCESS:
            log.warning("%s refused a heartbeat: %d %s", address, answer.code, answer.remark)

    def _heartbeat_call(self, address: str) -> Call:
        groups = [consumer.group for consumer in self._consumers.values()]
        command = heartbeat(self.client_id, self._producer_groups(), groups)
        return Call(address, command, self.settings.request_timeout)

    def _farewells(self, addresses: Iterable[str]) -> list[Call]:
        timeout, known = self.settings.request_timeout, list(addresses)
        return [
            call
            for group in self._producer_groups()
            for call in unregister_calls(self.client_id, known, timeout, producer_group=group)
        ]

    def _producer_groups(self) -> list[str]:
        own = [self.settings.producer_group] if self._has_sent else []
        return own + self.transactions.groups

    async def _look_for_masters(self) -> None:
        """Learn of every broker: those that hold halves need not be in any route of ours."""
        try:
            self._all_masters = set(await self.run(admin.masters(self._name_servers)))
        except ReliableMQError as error:
            log.info("the name servers do not tell of all brokers: %s", error)

    def _broker_lost(self, address: str) -> None:
        names = {b.name for b in self._routes.brokers() if address in b.addresses.values()}
        for consumer in self._consumers.values():
            consumer.broker_lost(names)

    def _answer_request(self, address: str, command: Command) -> Command | None:
        """Answer what a broker asks of this client."""
        ext = command.ext_fields
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            consumer = self._consumers.get(ext.get("consumerGroup", ""))
            if consumer is not None:
                consumer.rebalance_soon()
            return reply(command)
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            consumer = self._consumers.get(ext.get("group", ""))
            try:
                if consumer is not None:
                    consumer.reset_offsets(read_reset(command.body))
            except ProtocolError as error:
                log.warning("%s: %s", address, error)
            return reply(command)
        if command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            consumer = self._consumers.get(ext.get("group", ""))
            queues = consumer.group.all_queues if consumer is not None else ()
            return reply(command, body=status_of(queues, ext.get("topic", "")))
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self.transactions.asked(address, command)
            return None
        log.debug("%s asked for %d, which this client does not do", address, command.code)
        remark = f" request type {command.code} not supported"
        return reply(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def _broker_addresses(self) -> set[str]:
        known = {a for broker in self._routes.brokers() for a in broker.addresses.values()}
        return known | self._all_masters

    def _master_addresses(self) -> set[str]:
        known = {broker.master for broker in self._routes.brokers() if broker.master}
        return known | self._all_masters

    def _started(self) -> Links:
        if self._links is None:
            raise UsageError("this client is not started: use it in `async with`, or call start()")
        return self._links
