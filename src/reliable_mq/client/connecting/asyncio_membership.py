"""The groups of one client on an event loop: brokers are told of them, and may speak to them.

Receives members; hands on heartbeats, and what brokers say to a group. Refuses to know what a
member does with that.
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
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply

log = logging.getLogger(__name__)

T = TypeVar("T")

_NO_QUEUES = fastjson.dumps({"messageQueueTable": {}})


class MembershipEngine(Protocol):
    """What membership needs of the engine that drives the client's flows."""

    settings: ClientSettings
    client_id: str

    @property
    def routes(self) -> RouteCache:
        """The routes that name the brokers."""

    @property
    def name_servers(self) -> NameServers:
        """The name servers, which know all brokers."""

    async def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its end."""

    def open_addresses(self) -> set[str]:
        """Return the addresses with a connection."""

    def drop(self, address: str) -> None:
        """End the connection to a peer that does not answer."""


class AsyncMembership:
    """Which groups a client is in.

    Invariant: of one consumer group at most one member is here.

    Args:
        engine: drives the calls.
    """

    def __init__(self, engine: MembershipEngine) -> None:
        self._engine = engine
        self.heartbeats = Heartbeats(engine.client_id, in_short=engine.settings.heartbeat_v2)
        self._members: dict[str, Member] = {}
        self._left: set[str] = set()  # consumer groups, until brokers have answered to it
        self._producers: dict[str, None] = {}  # an ordered set
        self._is_everywhere = False
        self._all_masters: set[str] = set()
        self._refusing: set[str] = set()
        self._beats = ShieldedTask()
        self._introducing = asyncio.Lock()
        self._introductions_begun = 0
        self._introduction_ended = 0  # the number of the last one that told all brokers

    @property
    def members(self) -> Collection[Member]:
        """The members of consumer groups."""
        return self._members.values()

    @property
    def producer_groups(self) -> list[str]:
        """The producer groups of this client."""
        return list(self._producers)

    def requests(self) -> dict[int, OnRequest]:
        """Return what answers the requests of brokers to groups, by request code."""
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._offsets_reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status_asked,
        }

    def check_free(self, group: str) -> None:
        """Check that nothing here is a member of a consumer group yet.

        Raises:
            UsageError: when something is: a broker knows one member for each connection. Also
                while brokers are told that it left: they would strike off who joins meanwhile.
        """
        if group in self._left:
            raise UsageError(f"this client is leaving group {group}: wait for the end of its close")
        if group in self._members:
            raise UsageError(f"this client consumes for group {group} already")

    def join(self, member: Member) -> None:
        """Take a member in; brokers hear of it with the next heartbeat, which its start sends.

        Raises:
            UsageError: when the client is in its group already, or yet.
        """
        self.check_free(member.group_name)
        self._members[member.group_name] = member

    async def leave(self, group: str) -> None:
        """Take the member out of a group at every broker that is connected."""
        self._members.pop(group, None)
        self._left.add(group)
        try:
            await self._unregister(consumer_group=group)
        finally:
            self._left.discard(group)

    def produce(self, group: str) -> None:
        """Be in a producer group from now on, at the brokers that are sent to."""
        self._producers.setdefault(group)

    async def produce_everywhere(self, group: str) -> None:
        """Be in a producer group at every master that the name servers know, and tell them now.

        Any of them may ask a member of the group: for a half message, say.
        """
        self._producers.setdefault(group)
        self._is_everywhere = True
        await self.heartbeat()

    async def heartbeat(self) -> None:
        """Tell every broker that any route names which groups this client belongs to."""
        if not self._members and not self._producers:
            return
        if self._is_everywhere:
            await self._look_for_masters()
        known = self._broker_addresses()
        self.heartbeats.keep(known)
        self._refusing &= known
        addresses = known if self._members else self._master_addresses()
        calls = [self._call(address) for address in addresses]
        await self._beats.see(self._beat(calls))  # to its end: see `_unregister`

    async def _beat(self, calls: list[Call]) -> None:
        answers = await self._engine.run(call_all(calls))
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, ReliableMQError):
                log.info("a heartbeat did not reach %s: %s", call.address, answer)
                self._engine.drop(call.address)
            else:
                self._note(call.address, answer)

    async def introduce(self) -> None:
        """Tell every broker in full, whatever it seems to know: one has shown that it does not.

        Who asks while that is done waits for its end; then one more time serves all who waited.
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

    async def greet(self, address: str, link: Link) -> None:
        """Register with a broker on a new connection, before anything else goes over it."""
        self.heartbeats.forget(address)
        if (self._members or self._producers) and address in self._broker_addresses():
            call = self._call(address)
            self._note(address, await link.call(call.command, call.timeout))

    def lost(self, address: str) -> None:
        """Tell the members that a connection has ended."""
        self.heartbeats.forget(address)
        brokers = self._engine.routes.brokers()
        names = {broker.name for broker in brokers if address in broker.addresses.values()}
        for member in self._members.values():
            member.broker_lost(names)

    async def farewell(self) -> None:
        """Leave all producer groups."""
        for group in list(self._producers):
            await self._unregister(producer_group=group)

    async def _unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Take a group back behind the heartbeats under way.

        Brokers answer those by other threads: one that is taken in later would put this client back
        into the group.
        """
        await self._beats.ended()
        addresses = self._engine.open_addresses() & self._broker_addresses()
        for address in addresses:  # what the group wants is told anew when it is joined again
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
        elif address not in self._refusing:  # told once: it will go on like that
            self._refusing.add(address)
            log.warning("%s refused a heartbeat: %d %s", address, answer.code, answer.remark)

    async def _look_for_masters(self) -> None:
        """Learn of every broker: those that may ask us need not be in any route of ours."""
        try:
            self._all_masters = set(await self._engine.run(masters(self._engine.name_servers)))
        except ReliableMQError as error:
            log.info("the name servers do not tell of all brokers: %s", error)

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
            log.warning("%s: %s", address, error)
        return reply(command)

    def _status_asked(self, address: str, command: Command) -> Command:  # noqa: ARG002
        member = self._members.get(command.ext_fields.get("group", ""))
        topic = command.ext_fields.get("topic", "")
        return reply(command, body=member.status(topic) if member is not None else _NO_QUEUES)
