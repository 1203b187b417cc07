"""Who is connected: producers and consumers by group, known from their heartbeats.

Members are keyed by connection; a client id is listed once. A member that sends no heartbeat for
120 s, or whose connection closes, is gone.
Source: Apache RocketMQ `ConsumerManager`, `ConsumerGroupInfo`, `ProducerManager`.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from sys import getsizeof

import msgspec

from reliable_mq.errors import InvariantBroken

EXPIRY_MS = 120_000
BROADCASTING = "BROADCASTING"

# What the table keeps, in bytes of memory: measured, and rounded up.
_SUBSCRIPTION_SIZE = 700
_TAG_SIZE = 85  # without its characters
_GROUP_SIZE = 1_100
_MEMBER_SIZE = 700


class ClientLimits(msgspec.Struct, frozen=True):
    """How many bytes heartbeats may leave in memory: those of one connection, and all."""

    size_of_one: int = 32 * 1024 * 1024
    size_of_all: int = 256 * 1024 * 1024


class SubscriptionData(msgspec.Struct, kw_only=True, rename="camel"):
    """What a group wants of one topic."""

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = msgspec.field(default_factory=list)
    code_set: list[int] = msgspec.field(default_factory=list)
    sub_version: int = 0
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False

    def measure(self) -> int:
        """Return how many bytes of memory it takes, or some more."""
        size = _SUBSCRIPTION_SIZE + _size_of(self.topic, self.sub_string, self.expression_type)
        if self.tags_set:
            size += _TAG_SIZE * len(self.tags_set) + getsizeof("".join(self.tags_set))
        if self.code_set:
            largest = max(getsizeof(max(self.code_set)), getsizeof(min(self.code_set)))
            size += (8 + largest) * len(self.code_set)
        return size + getsizeof(self.sub_version)


class ConsumerData(msgspec.Struct, kw_only=True, rename="camel"):
    """What a consumer's heartbeat says of its group; what it leaves out stays as it was."""

    group_name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_data_set: list[SubscriptionData] | None = None
    unit_mode: bool = False


class RegisteredMember(msgspec.Struct):
    """One client of a group. `address` is "ip:port"."""

    connection: int
    client_id: str
    language: str
    version: int
    last_seen_ms: int
    address: str = ""

    def measure(self, group: str) -> int:
        """Return how many bytes of memory it takes in a group, or some more."""
        return _MEMBER_SIZE + _size_of(self.client_id, self.language, group)


class RegisteredGroup(msgspec.Struct, kw_only=True):
    """The members of a group and what it subscribes to.

    `size` is how many bytes of memory it takes, without its members.
    """

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[int, RegisteredMember] = msgspec.field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = msgspec.field(default_factory=dict)
    size: int = 0

    def client_ids(self) -> list[str]:
        """Return the client ids, each once, in the order of their arrival."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def update(self, beat: ConsumerData, *, keeps_subscriptions: bool) -> bool:
        """Take what a heartbeat says; return whether a topic came or went."""
        self.consume_type = beat.consume_type or self.consume_type
        self.message_model = beat.message_model or self.message_model
        self.consume_from_where = beat.consume_from_where or self.consume_from_where
        subscriptions = self.subscriptions if keeps_subscriptions else self.updated(beat)
        is_changed = subscriptions.keys() != self.subscriptions.keys()
        self.subscriptions = subscriptions
        self.size = self.measure(subscriptions.values(), beat)
        return is_changed

    def updated(self, beat: ConsumerData) -> dict[str, SubscriptionData]:
        """Return the subscriptions behind a heartbeat.

        A newer version of a known topic replaces the older silently.
        """
        offered: dict[str, SubscriptionData] = {}
        for item in beat.subscription_data_set or ():
            known = self.subscriptions.get(item.topic)
            is_newer = known is None or item.sub_version > known.sub_version
            offered[item.topic] = item if known is None or is_newer else known
        return offered

    def measure(self, subscriptions: Iterable[SubscriptionData], beat: ConsumerData) -> int:
        """Return how many bytes of memory it takes behind a heartbeat, or some more."""
        texts = (
            beat.consume_type or self.consume_type,
            beat.message_model or self.message_model,
            beat.consume_from_where or self.consume_from_where,
        )
        size = _GROUP_SIZE + _size_of(self.name, *texts)
        return size + sum(item.measure() for item in subscriptions)


class ClientTable:
    """All groups.

    Invariant C2: a connection is in a group only as long as it is open, and no group is empty.

    Args:
        limits: how much memory the groups may take.
    """

    def __init__(self, limits: ClientLimits | None = None) -> None:
        self._limits = limits or ClientLimits()
        self._size = 0  # of groups and members, in bytes
        self._consumers: dict[str, RegisteredGroup] = {}
        self._producers: dict[str, dict[int, RegisteredMember]] = {}
        self._producer_connections: dict[str, int] = {}  # by client id
        self._groups_of: dict[int, set[str]] = {}  # by connection; consumer and producer groups
        self._fingerprints: dict[str, int] = {}

    def invariants(self) -> None:
        """C2, as far as it can be seen here; see the class."""
        groups = {name: set(group.members) for name, group in self._consumers.items()}
        for name, members in self._producers.items():
            groups[name] = groups.get(name, set()) | members.keys()
        if not all(groups.values()):
            raise InvariantBroken("C2: a group without members is kept")
        seen: dict[int, set[str]] = {}
        for name, connections in groups.items():
            for connection in connections:
                seen.setdefault(connection, set()).add(name)
        known = {
            member.client_id for members in self._producers.values() for member in members.values()
        }
        if not self._producer_connections.keys() <= known:
            raise InvariantBroken("C2: a client is found that is no producer")
        if not self._fingerprints.keys() <= self._consumers.keys():
            raise InvariantBroken("C2: the fingerprint of a group without members is kept")
        if self._size != self._measured():
            raise InvariantBroken(f"C2: {self._size} bytes counted, {self._measured()} are kept")
        if seen != self._groups_of:
            raise InvariantBroken(f"C2: {self._groups_of} are the groups of connections in {seen}")

    def _measured(self) -> int:
        members = [
            (name, member)
            for name, group in self._consumers.items()
            for member in group.members.values()
        ]
        for name, some in self._producers.items():
            members += [(name, member) for member in some.values()]
        size = sum(group.size for group in self._consumers.values())
        return size + sum(member.measure(name) for name, member in members)

    def has_room(
        self,
        member: RegisteredMember,
        producers: Iterable[str],
        consumers: Sequence[ConsumerData],
        *,
        keeps_subscriptions: bool = False,
    ) -> bool:
        """Whether a heartbeat can be noted within the limits.

        One that makes nothing larger always can. A connection is charged with its groups, however
        many others are in them.
        """
        connection, limits = member.connection, self._limits
        grown = 0
        for name in producers:
            grown += member.measure(name) - _size_in(self._producers.get(name), name, connection)
        for beat in consumers:
            name = beat.group_name
            known = self._consumers.get(name)
            group = known or RegisteredGroup(name=name)
            grown += member.measure(name) - _size_in(group.members, name, connection)
            now = group.subscriptions if keeps_subscriptions else group.updated(beat)
            grown += group.measure(now.values(), beat) - group.size
        if grown <= 0:
            return True
        return (
            self._size + grown <= limits.size_of_all
            and self._size_behind(connection) + grown <= limits.size_of_one
        )

    def _size_behind(self, connection: int) -> int:
        """Return how many bytes a connection's groups take, and its own places in them."""
        size = 0
        for name in self._groups_of.get(connection, ()):
            group = self._consumers.get(name)
            if group is not None and connection in group.members:
                size += group.size + group.members[connection].measure(name)
            members = self._producers.get(name)
            if members and connection in members:
                size += members[connection].measure(name)
        return size

    def consumer_group(self, name: str) -> RegisteredGroup | None:
        """Return a group that has members, or None."""
        return self._consumers.get(name)

    def producers(self) -> dict[str, list[RegisteredMember]]:
        """Return the producers by group."""
        return {name: list(members.values()) for name, members in self._producers.items()}

    def subscribers_of(self, topic: str) -> set[str]:
        """Return the groups that subscribe to a topic."""
        return {name for name, group in self._consumers.items() if topic in group.subscriptions}

    def register_producer(self, group: str, member: RegisteredMember) -> None:
        """Note a producer's heartbeat."""
        members = self._producers.setdefault(group, {})
        former = members.get(member.connection)
        self._size += member.measure(group) - _size_in(members, group, member.connection)
        members[member.connection] = member
        self._producer_connections[member.client_id] = member.connection
        self._groups_of.setdefault(member.connection, set()).add(group)
        if former is not None and former.client_id != member.client_id:
            self._forget_producer(former)

    def groups_of(self, connection: int) -> Set[str]:
        """Return the groups whose producers or consumers are behind a connection."""
        return self._groups_of.get(connection, frozenset())

    def _forget_producer(self, former: RegisteredMember) -> None:
        """Forget where a client's producer is, unless another group of the connection has it."""
        connection, client_id = former.connection, former.client_id
        if self._producer_connections.get(client_id) != connection:
            return
        for group in self._groups_of.get(connection, ()):
            member = self._producers.get(group, {}).get(connection)
            if member is not None and member.client_id == client_id:
                return
        del self._producer_connections[client_id]

    def register_consumer(
        self, group: ConsumerData, member: RegisteredMember, *, keeps_subscriptions: bool = False
    ) -> bool:
        """Note a consumer's heartbeat; return whether the group's members must rebalance.

        Args:
            group: what the heartbeat says of the group.
            member: who sent it.
            keeps_subscriptions: whether the heartbeat says nothing of subscriptions.
        """
        name = group.group_name
        known = self._consumers.get(name)
        if known is None:
            known = self._consumers[name] = RegisteredGroup(name=name)
        is_new = member.connection not in known.members
        self._size += member.measure(name) - _size_in(known.members, name, member.connection)
        known.members[member.connection] = member
        self._groups_of.setdefault(member.connection, set()).add(name)
        size = known.size
        is_changed = known.update(group, keeps_subscriptions=keeps_subscriptions)
        self._size += known.size - size
        return is_new or is_changed

    def note_fingerprint(self, group: str, fingerprint: int) -> bool:
        """Note the fingerprint of a group's heartbeat; return whether it differs from the last.

        Clients that send one leave their subscriptions out as long as nothing changes.
        """
        last = self._fingerprints.get(group)
        self._fingerprints[group] = fingerprint
        return last is not None and last != fingerprint

    def next_producer(self, group: str) -> int | None:
        """Return the connection of a producer of the group, of each in turn; None without one."""
        members = self._producers.get(group)
        if not members:
            return None
        connection = next(iter(members))
        members[connection] = members.pop(connection)
        return connection

    def find_producer(self, client_id: str) -> int | None:
        """Return the connection over which a client registered as a producer, or None."""
        return self._producer_connections.get(client_id)

    def unregister_consumer(self, name: str, connection: int) -> bool:
        """Remove a member; return whether it was one."""
        group = self._consumers.get(name)
        member = group.members.pop(connection, None) if group else None
        if group is None or member is None:
            return False
        self._size -= member.measure(name)
        if not group.members:
            self._size -= group.size
            del self._consumers[name]
            self._fingerprints.pop(name, None)
        self._left(name, connection)
        return True

    def unregister_producer(self, name: str, connection: int) -> None:
        """Remove a producer."""
        members = self._producers.get(name, {})
        member = members.pop(connection, None)
        if member is None:
            return
        self._size -= member.measure(name)
        if not members:
            del self._producers[name]
        self._forget_producer(member)
        self._left(name, connection)

    def _left(self, name: str, connection: int) -> None:
        """Note that a connection left a group, unless it is in another of that name."""
        group = self._consumers.get(name)
        is_consumer = group is not None and connection in group.members
        if is_consumer or connection in self._producers.get(name, {}):
            return
        groups = self._groups_of[connection]
        groups.discard(name)
        if not groups:
            del self._groups_of[connection]

    def disconnect(self, connection: int) -> list[str]:
        """Remove a connection everywhere; return the consumer groups that it leaves."""
        names = sorted(self._groups_of.get(connection, ()))
        for name in names:
            self.unregister_producer(name, connection)
        return [name for name in names if self.unregister_consumer(name, connection)]

    def expire(self, now_ms: int) -> list[str]:
        """Remove the members that fell silent; return the consumer groups that lost one."""
        deadline = now_ms - EXPIRY_MS
        for name, members in list(self._producers.items()):
            for member in [m for m in members.values() if m.last_seen_ms < deadline]:
                self.unregister_producer(name, member.connection)
        shrunk: list[str] = []
        for name, group in list(self._consumers.items()):
            silent = [m for m in group.members.values() if m.last_seen_ms < deadline]
            for member in silent:
                self.unregister_consumer(name, member.connection)
            if silent:
                shrunk.append(name)
        return shrunk


def _size_of(*texts: str | None) -> int:
    return sum(map(getsizeof, texts))


def _size_in(members: Mapping[int, RegisteredMember] | None, group: str, connection: int) -> int:
    """Return how many bytes a connection's place in a group takes."""
    member = members.get(connection) if members else None
    return member.measure(group) if member else 0
