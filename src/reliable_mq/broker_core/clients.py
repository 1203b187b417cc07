"""Connected producers and consumers by group, known from their heartbeats.

Members are keyed by connection; a list of client ids has no duplicates. A member is removed when it
sends no heartbeat for 120 s, or when its connection closes.
Source: Apache RocketMQ `ConsumerManager`, `ConsumerGroupInfo`, `ProducerManager`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from sys import getsizeof

import msgspec

from reliable_mq.errors import InvariantBroken

EXPIRY_MS = 120_000
BROADCASTING = "BROADCASTING"

# Memory per entry of the table, in bytes: measured, rounded up.
_SUBSCRIPTION_SIZE = 700
_TAG_SIZE = 85  # without its characters
_GROUP_SIZE = 1_100
_MEMBER_SIZE = 700


class ClientLimits(msgspec.Struct, frozen=True):
    """Limits of memory used by heartbeats, in bytes: for one connection, and for all."""

    size_of_one: int = 32 * 1024 * 1024
    size_of_all: int = 256 * 1024 * 1024


class SubscriptionData(msgspec.Struct, kw_only=True, rename="camel"):
    """A group's subscription to one topic."""

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = msgspec.field(default_factory=list)
    code_set: list[int] = msgspec.field(default_factory=list)
    sub_version: int = 0
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False

    def measure(self) -> int:
        """Return an upper bound of its memory, in bytes."""
        size = _SUBSCRIPTION_SIZE + _size_of(self.topic, self.sub_string, self.expression_type)
        if self.tags_set:
            size += _TAG_SIZE * len(self.tags_set) + getsizeof("".join(self.tags_set))
        if self.code_set:
            largest = max(getsizeof(max(self.code_set)), getsizeof(min(self.code_set)))
            size += (8 + largest) * len(self.code_set)
        return size + getsizeof(self.sub_version)


class ConsumerData(msgspec.Struct, kw_only=True, rename="camel"):
    """The group of a consumer's heartbeat. A field that the heartbeat omits keeps its value."""

    group_name: str
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    subscription_data_set: list[SubscriptionData] | None = None
    unit_mode: bool = False


class RegisteredMember(msgspec.Struct):
    """One client of a group. `address` is "ip:port". `user`: who has signed; "": nobody."""

    connection: int
    client_id: str
    language: str
    version: int
    last_seen_ms: int
    address: str = ""
    user: str = ""

    def measure(self, group: str) -> int:
        """Return an upper bound of its memory in a group, in bytes."""
        return _MEMBER_SIZE + _size_of(self.client_id, self.language, group)


class RegisteredGroup(msgspec.Struct, kw_only=True):
    """The members of a group, and its subscriptions.

    `size` is the memory of the group without its members, in bytes.
    """

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[int, RegisteredMember] = msgspec.field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = msgspec.field(default_factory=dict)
    size: int = 0

    def client_ids(self) -> list[str]:
        """Return the client ids without duplicates, in order of arrival."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def update(self, beat: ConsumerData, *, keeps_subscriptions: bool) -> bool:
        """Apply a heartbeat; return whether the set of subscribed topics changed."""
        self.consume_type = beat.consume_type or self.consume_type
        self.message_model = beat.message_model or self.message_model
        self.consume_from_where = beat.consume_from_where or self.consume_from_where
        subscriptions = self.subscriptions if keeps_subscriptions else self.updated(beat)
        is_changed = subscriptions.keys() != self.subscriptions.keys()
        self.subscriptions = subscriptions
        self.size = self.measure(subscriptions.values(), beat)
        return is_changed

    def updated(self, beat: ConsumerData) -> dict[str, SubscriptionData]:
        """Return the subscriptions after a heartbeat.

        For a known topic a newer version replaces the older one.
        """
        offered: dict[str, SubscriptionData] = {}
        for item in beat.subscription_data_set or ():
            known = self.subscriptions.get(item.topic)
            is_newer = known is None or item.sub_version > known.sub_version
            offered[item.topic] = item if known is None or is_newer else known
        return offered

    def measure(self, subscriptions: Iterable[SubscriptionData], beat: ConsumerData) -> int:
        """Return an upper bound of the group's memory after a heartbeat, in bytes."""
        texts = (
            beat.consume_type or self.consume_type,
            beat.message_model or self.message_model,
            beat.consume_from_where or self.consume_from_where,
        )
        size = _GROUP_SIZE + _size_of(self.name, *texts)
        return size + sum(item.measure() for item in subscriptions)


class ClientTable:
    """All groups.

    Invariant C2: a connection is in a group only while it is open, and no group is empty.

    Args:
        limits: how much memory the groups may use.
    """

    def __init__(self, limits: ClientLimits | None = None) -> None:
        self._limits = limits or ClientLimits()
        self._size = 0  # memory of groups and members, in bytes
        self.consumers: dict[str, RegisteredGroup] = {}
        self._producers: dict[str, dict[int, RegisteredMember]] = {}
        self._producer_connections: dict[str, int] = {}  # by client id
        self._groups_of: dict[int, set[str]] = {}  # consumer and producer groups by connection
        self._fingerprints: dict[str, int] = {}

    def invariants(self) -> None:
        """Check C2 as far as this table shows it; see the class."""
        groups = {name: set(group.members) for name, group in self.consumers.items()}
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
            raise InvariantBroken("C2: a connection is kept for a client that is not a producer")
        if not self._fingerprints.keys() <= self.consumers.keys():
            raise InvariantBroken("C2: the fingerprint of a group without members is kept")
        if self._size != self._measured():
            raise InvariantBroken(f"C2: {self._size} bytes counted, {self._measured()} are used")
        if seen != self._groups_of:
            raise InvariantBroken(f"C2: groups by connection {self._groups_of}, members in {seen}")

    def _measured(self) -> int:
        members = [
            (name, member)
            for name, group in self.consumers.items()
            for member in group.members.values()
        ]
        for name, some in self._producers.items():
            members += [(name, member) for member in some.values()]
        size = sum(group.size for group in self.consumers.values())
        return size + sum(member.measure(name) for name, member in members)

    def has_room(
        self,
        member: RegisteredMember,
        producers: Iterable[str],
        consumers: Sequence[ConsumerData],
        *,
        keeps_subscriptions: bool = False,
    ) -> bool:
        """Whether a heartbeat fits within the memory limits.

        A heartbeat that needs no more memory always fits. The whole memory of a group is charged to
        each connection in it.
        """
        connection, limits = member.connection, self._limits
        grown = 0
        for name in producers:
            grown += member.measure(name) - _size_in(self._producers.get(name), name, connection)
        for beat in consumers:
            name = beat.group_name
            known = self.consumers.get(name)
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
        """Return the memory of a connection's groups and of its memberships, in bytes."""
        size = 0
        for name in self._groups_of.get(connection, ()):
            group = self.consumers.get(name)
            if group is not None and connection in group.members:
                size += group.size + group.members[connection].measure(name)
            members = self._producers.get(name)
            if members and connection in members:
                size += members[connection].measure(name)
        return size

    def consumer_group(self, name: str) -> RegisteredGroup | None:
        """Return a group with its members, or None."""
        return self.consumers.get(name)

    def producers(self) -> dict[str, list[RegisteredMember]]:
        """Return the producers by group."""
        return {name: list(members.values()) for name, members in self._producers.items()}

    def subscribers_of(self, topic: str) -> set[str]:
        """Return the groups that subscribe to a topic."""
        return {name for name, group in self.consumers.items() if topic in group.subscriptions}

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
        """Return the groups of the producers and consumers of a connection."""
        return self._groups_of.get(connection, frozenset())

    def _forget_producer(self, former: RegisteredMember) -> None:
        """Forget a producer's connection, unless it is in another group of that connection."""
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
            group: the group in the heartbeat.
            member: the sender.
            keeps_subscriptions: whether the heartbeat omits the subscriptions. Default False.
        """
        name = group.group_name
        known = self.consumers.get(name)
        if known is None:
            known = self.consumers[name] = RegisteredGroup(name=name)
        is_new = member.connection not in known.members
        self._size += member.measure(name) - _size_in(known.members, name, member.connection)
        known.members[member.connection] = member
        self._groups_of.setdefault(member.connection, set()).add(name)
        size = known.size
        is_changed = known.update(group, keeps_subscriptions=keeps_subscriptions)
        self._size += known.size - size
        return is_new or is_changed

    def note_fingerprint(self, group: str, fingerprint: int) -> bool:
        """Note the fingerprint of a group's heartbeat; return whether the fingerprint changed.

        A client that sends fingerprints omits its subscriptions while they do not change.
        """
        last = self._fingerprints.get(group)
        self._fingerprints[group] = fingerprint
        return last is not None and last != fingerprint

    def next_producer(
        self, group: str, may: Callable[[RegisteredMember], bool] | None = None
    ) -> int | None:
        """Return the connection of a producer of the group, round robin; None without producers.

        Args:
            group: the group.
            may: whether a producer may be chosen. Default None: all may.
        """
        members = self._producers.get(group, {})
        for connection, member in members.items():
            if may is None or may(member):
                members[connection] = members.pop(connection)
                return connection
        return None

    def find_producer(self, client_id: str) -> int | None:
        """Return the connection on which a client is a producer, or None."""
        return self._producer_connections.get(client_id)

    def user_of_producer(self, client_id: str) -> str | None:
        """Return the user behind a client that is a producer, "" for nobody; None: it is none."""
        connection = self._producer_connections.get(client_id, -1)
        for group in self._groups_of.get(connection, ()):
            member = self._producers.get(group, {}).get(connection)
            if member is not None and member.client_id == client_id:
                return member.user
        return None

    def unregister_consumer(self, name: str, connection: int) -> bool:
        """Remove a member; return whether it was a member."""
        group = self.consumers.get(name)
        member = group.members.pop(connection, None) if group else None
        if group is None or member is None:
            return False
        self._size -= member.measure(name)
        if not group.members:
            self._size -= group.size
            del self.consumers[name]
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
        """Note that a connection left a group, unless it is still in it as the other kind."""
        group = self.consumers.get(name)
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
        """Remove members without heartbeats; return the consumer groups that lost a member."""
        deadline = now_ms - EXPIRY_MS
        for name, members in list(self._producers.items()):
            for member in [m for m in members.values() if m.last_seen_ms < deadline]:
                self.unregister_producer(name, member.connection)
        shrunk: list[str] = []
        for name, group in list(self.consumers.items()):
            silent = [m for m in group.members.values() if m.last_seen_ms < deadline]
            for member in silent:
                self.unregister_consumer(name, member.connection)
            if silent:
                shrunk.append(name)
        return shrunk


def _size_of(*texts: str | None) -> int:
    return sum(map(getsizeof, texts))


def _size_in(members: Mapping[int, RegisteredMember] | None, group: str, connection: int) -> int:
    """Return the memory of a connection's membership in a group, in bytes."""
    member = members.get(connection) if members else None
    return member.measure(group) if member else 0
