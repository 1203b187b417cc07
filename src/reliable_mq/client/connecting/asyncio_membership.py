"""The groups of one client on an event loop: sends heartbeats, and handles brokers' requests.

It receives members of groups. It sends their heartbeats to brokers, and passes brokers' requests to
the members. It must not know what a member does with these.
"""

import asyncio
import logging
from collections.abc import Collection
from typing import Protocol, TypeVar

from reliable_mq.client.asyncio_daemon import ShieldedTask
from reliable_mq.client.connecting.heartbeats import Heartbeats
from reliable_mq.client.connecting.membership import Member, unregister_calls
from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.connecting.routes import RouteCache, masters
from reliable_mq.client.consuming.offsets import read_reset
from reliable_mq.client.flow import Call, Flow, call_all
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ProtocolError, ReliableMQError, UsageError
from reliable_mq.runtime.link import Link, OnRequest
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.outages import level_of
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.remote_faults import with_remedy

log = logging.getLogger(__name__)

T = TypeVar("T")

_NO_QUEUES = fastjson.dumps({"messageQueueTable": {}})


class MembershipEngine(Protocol):
    """What membership needs from the client's engine."""

    settings: ClientSettings
    client_id: str

    @property
    def routes(self) -> RouteCache:
        """The routes, which name the brokers."""

    @property
    def name_servers(self) -> NameServers:
        """The name servers, which know all brokers."""

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""

    def open_addresses(self) -> set[str]:
        """Return the addresses with a connection."""

    def drop(self, address: str) -> None:
        """End the connection to a peer that does not answer."""


class AsyncMembership:
    """The groups of one client.

    Invariant: each consumer group has at most one member here.

    Args:
        engine: runs the flows.
    """

    def __init__(self, engine: MembershipEngine) -> None:
        self._engine = engine
        self.heartbeats = Heartbeats(engine.client_id, in_short=engine.settings.heartbeat_v2)
        self._members: dict[str, Member] = {}
        self._left: set[str] = set()  # left consumer groups, until brokers have answered
        self._producers: dict[str, None] = {}  # an ordered set
        self._is_everywhere = False
        self._all_masters: set[str] = set()
        self._refusing: set[str] = set()
        self._beats = ShieldedTask()
        self._introducing = asyncio.Lock()
        self._introductions_begun = 0
        self._introduction_ended = 0  # number of the last introduction that all brokers got

    @property
    def members(self) -> Collection[Member]:
        """The members of consumer groups."""
        return self._members.values()

    @property
    def producer_groups(self) -> list[str]:
        """The producer groups of this client."""
        return list(self._producers)

    def requests(self) -> dict[int, OnRequest]:
        """Return the handlers of brokers' requests to groups, by request code."""
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._offsets_reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status_asked,
        }

    def check_free(self, group: str) -> None:
        """Check that this client has no member of a consumer group.

        Raises:
            UsageError: when it has one: a broker knows one member per connection. Also while that
                member unregisters: the brokers would remove the new member too.
        """
        if group in self._left:
            raise UsageError(f"this client is leaving group {group}: wait for the end of its close")
        if group in self._members:
            raise UsageError(
                f"this client consumes for group {group} already: close that consumer, or name"
                " another group"
            )

    def join(self, member: Member) -> None:
        """Add a member. Brokers learn of it with the next heartbeat, which its start sends.

        Raises:
            UsageError: when the group still has a member here.
        """
        self.check_free(member.group_name)
        self._members[member.group_name] = member

    async def leave(self, group: str) -> None:
        """Remove the member of a group, and unregister it at every connected broker."""
        self._members.pop(group, None)
        self._left.add(group)
        try:
            await self._unregister(consumer_group=group)
        finally:
            self._left.discard(group)

    def produce(self, group: str) -> None:
        """Join a producer group at the brokers that receive its messages."""
        self._producers.setdefault(group)

    async def produce_everywhere(self, group: str) -> None:
        """Join a producer group at all masters that the name servers know, and send heartbeats now.

        Any master may send a check-back to a member of the group.
        """
        self._producers.setdefault(group)
        self._is_everywhere = True
        await self.heartbeat()

    async def heartbeat(self) -> None:
        """Send heartbeats with this client's groups to all brokers in known routes."""
        if not self._members and not self._producers:
            return
        if self._is_everywhere:
            await self._look_for_masters()
        known = self._broker_addresses()
        self.heartbeats.forget_except(known)
        self._refusing &= known
        addresses = known if self._members else self._master_addresses()
        calls = [self._call(address) for address in addresses]
        await self._beats.result(self._beat(calls))  # must not be cancelled: see `_unregister`

    async def _beat(self, calls: list[Call]) -> None:
        answers = await self._engine.run(call_all(calls))
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, ReliableMQError):
                client_events.HEARTBEAT_MISSED.log(
                    log, level=level_of(answer), peer=call.address, error=answer
                )
                self._engine.drop(call.address)
            else:
                self._note(call.address, answer)

    async def send_full_heartbeats(self) -> None:
        """Send a full heartbeat to every broker: one has shown that it does not know this client.

        Calls that arrive meanwhile wait for the end. Then one more introduction serves all of them.
        """
        begun = self._introductions_begun
        async with self._introducing:
            if self._introduction_ended > begun:
                return
            self._introductions_begun += 1
            number = self._introductions_begun
            for address in self._broker_addresses():
                self.heartbeats.forget(address)
            await self.heartbeat()
            self._introduction_ended = number

    async def send_first_heartbeat(self, address: str, link: Link) -> None:
        """Send a heartbeat on a new connection, before anything else."""
        self.heartbeats.forget(address)
        if (self._members or self._producers) and address in self._broker_addresses():
            call = self._call(address)
            self._note(address, await link.call(call.command, call.timeout))

    def lost(self, address: str) -> None:
        """Inform the members that a connection has ended."""
        self.heartbeats.forget(address)
        brokers = self._engine.routes.brokers()
        names = {broker.name for broker in brokers if address in broker.addresses.values()}
        for member in self._members.values():
            member.broker_lost(names)

    async def leave_producer_groups(self) -> None:
        """Leave all producer groups."""
        for group in list(self._producers):
            await self._unregister(producer_group=group)

    async def _unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Unregister a group after all heartbeats in flight have been answered.

        A broker handles heartbeats in other threads. A heartbeat that it handles later would add
        this client to the group again.
        """
        await self._beats.ended()
        addresses = self._engine.open_addresses() & self._broker_addresses()
        for address in addresses:  # a later join sends full subscriptions again
            self.heartbeats.forget(address)
        calls = unregister_calls(
            self._engine.client_id,
            addresses,
            self._engine.settings.request_timeout_seconds,
            producer_group=producer_group,
            consumer_group=consumer_group,
        )
        await self._engine.run(call_all(calls))

    def _call(self, address: str) -> Call:
        consumers = [member.consumer_data() for member in self._members.values()]
        command = self.heartbeats.command(address, self._producers, consumers)
        return Call(address, command, self._engine.settings.request_timeout_seconds)

    def _note(self, address: str, answer: Command) -> None:
        self.heartbeats.answered(address, answer)
        if answer.code == ResponseCode.SUCCESS:
            self._refusing.discard(address)
        elif address not in self._refusing:  # once only: it will refuse all heartbeats
            self._refusing.add(address)
            client_events.HEARTBEAT_REFUSED.log(
                log, peer=address, code=answer.code, remark=with_remedy(answer.remark or "")
            )

    async def _look_for_masters(self) -> None:
        """Find all brokers: one that sends check-backs may be in none of the known routes."""
        try:
            self._all_masters = set(await self._engine.run(masters(self._engine.name_servers)))
        except ReliableMQError as error:
            client_events.BROKER_LIST_MISSING.log(log, level=level_of(error), error=error)

    def _broker_addresses(self) -> set[str]:
        brokers = self._engine.routes.brokers()
        return {a for broker in brokers for a in broker.addresses.values()} | self._all_masters

    def _master_addresses(self) -> set[str]:
        brokers = self._engine.routes.brokers()
        return {broker.master for broker in brokers if broker.master} | self._all_masters

    def _members_changed(self, address: str, command: Command) -> Command:  # noqa: ARG002
        member = self._members.get(command.ext_fields.get("consumerGroup", ""))
        if member is not None:
            member.rebalance_soon()
        return reply(command)

    def _offsets_reset(self, address: str, command: Command) -> Command:
        member = self._members.get(command.ext_fields.get("group", ""))
        try:
            if member is not None:
                member.reset_offsets(read_reset(command.body))
        except ProtocolError as error:
            client_events.RESET_UNREADABLE.log(log, peer=address, error=error)
        return reply(command)

    def _status_asked(self, address: str, command: Command) -> Command:  # noqa: ARG002
        member = self._members.get(command.ext_fields.get("group", ""))
        topic = command.ext_fields.get("topic", "")
        return reply(command, body=member.status(topic) if member is not None else _NO_QUEUES)
