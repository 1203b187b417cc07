"""The route table of a name server.

A broker registers its topics every 30 s. It is removed when it is silent for 120 s or its
connection closes. With the last broker of a name, the topics of the name are removed. The
topics of a master count; while it is away, those of its slave with the smallest id.
Source: Apache RocketMQ `RouteInfoManager`.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import msgspec

from reliable_mq.errors import InvariantBroken, ProtocolError
from reliable_mq.limits import (
    BROKER_LIFETIME_MS_MAX,
    BROKER_TEXT_LENGTH_MAX,
    REGISTERED_NAME_LENGTH_MAX,
)
from reliable_mq.name_server.epochs import Epochs
from reliable_mq.name_server.name_server_limits import NameServerLimits
from reliable_mq.name_server.registration import RegisteredVersion, Registration
from reliable_mq.name_server.route_rows import (
    MASTER,
    READ,
    WRITE,
    BrokerData,
    QueueData,
    queue_data_of,
    shown_brokers,
)
from reliable_mq.name_server.steps import Steps
from reliable_mq.wire.headers import RegisterBrokerHeader

EXPIRY_MS = 120_000
_TOPICS_AT_ONCE = 50


class _Live(msgspec.Struct):
    """One broker process that registered and has not expired."""

    header: RegisterBrokerHeader
    connection: int
    lifetime_ms: int
    expires_ms: int
    version: RegisteredVersion


class RegistrationReply(msgspec.Struct, frozen=True):
    """What a slave receives when it registers: the addresses of its master."""

    master_address: str = ""
    ha_address: str = ""


class RouteTable:
    """Brokers by (cluster, address) and by name; queues by broker name and topic.

    Topics are grouped by broker name, so one step removes a broker name with all its topics. A
    route looks at each broker name; there are only a few.

    Invariant N1: each address in a route belongs to a live broker. Topics are known only for
    broker names that have an address.

    Args:
        limits: the most brokers and topics.
    """

    def __init__(self, limits: NameServerLimits | None = None) -> None:
        self._limits = limits or NameServerLimits()
        self._live: dict[tuple[str, str], _Live] = {}
        self._names: dict[str, BrokerData] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}  # by broker name, then by topic
        self._count = 0  # of (broker name, topic) pairs
        self._epochs = Epochs(self._limits.brokers)

    def invariants(self) -> None:
        """N1; see the class."""
        alive = {(live.header.broker_name, live.header.broker_addr) for live in self._live.values()}
        for name, data in self._names.items():
            for address in data.broker_addrs.values():
                if (name, address) not in alive:
                    raise InvariantBroken(f"N1: {address} of {name} is not alive")
            if not data.broker_addrs:
                raise InvariantBroken(f"N1: {name} has no address")
        if self._topics.keys() != self._names.keys():
            raise InvariantBroken(f"N1: topics of {[*self._topics]}, brokers {[*self._names]}")
        if len(self._live) > self._limits.brokers:
            raise InvariantBroken(f"N1: {len(self._live)} brokers are known")
        count = sum(map(len, self._topics.values()))
        if count != self._count:
            raise InvariantBroken(f"N1: {count} topics are known, {self._count} are counted")

    def register(
        self,
        header: RegisterBrokerHeader,
        registration: Registration,
        connection: int,
        now_ms: int,
    ) -> Steps[RegistrationReply | None]:
        """Add or renew a broker. The result is None for a new broker with exactly one topic.

        An address that registers with another id loses the old id. A second address for a taken id
        is ignored while the first one has a newer state version. Topics come from the master, or
        without one from the slave with the smallest id. They are added in steps. The
        steps stop when the broker registers again or is removed.

        Raises:
            ProtocolError: when there is no room for the broker or its topics; SecondMaster.
        """
        _refuse_long_texts(header)
        name, address, number = header.broker_name, header.broker_addr, header.broker_id
        data = self._names.get(name)
        if data is None:
            data = BrokerData(broker_name=name, cluster=header.cluster_name)
        there = self._live.get((header.cluster_name, data.broker_addrs.get(number, "")))
        self._epochs.check(header, None if there is None else there.header)
        key = (header.cluster_name, address)
        if self._is_outdated(data, header, registration):
            self._forget(key)
            return RegistrationReply()
        addresses = data.broker_addrs
        is_first = number not in addresses
        if is_first and len(registration.topic_config_table) == 1:
            return None
        known = self._live.get(key)
        self._refuse_many_brokers(known, connection)
        if known is not None and known.header.broker_name != name:
            self._forget(key)  # the broker at this address changed its name
            known = None
        self._names[name] = data
        self._topics.setdefault(name, {})
        data.enable_acting_master = bool(header.enable_acting_master)
        for other in [n for n, a in addresses.items() if a == address and n != number]:
            del addresses[other]
        replaced = addresses.get(number)
        if replaced not in (None, address):
            rival = self._live.get((header.cluster_name, replaced))
            if rival is not None and rival.header.broker_name == name:
                del self._live[header.cluster_name, replaced]
        addresses[number] = address
        is_changed = known is None or known.version != registration.data_version
        lifetime_ms = min(header.heartbeat_timeout_millis or EXPIRY_MS, BROKER_LIFETIME_MS_MAX)
        live = self._live[key] = _Live(
            header, connection, lifetime_ms, now_ms + lifetime_ms, registration.data_version
        )
        is_prime_slave = (
            number != MASTER
            and header.enable_acting_master is not None
            and number == min(addresses)
        )
        if number == MASTER or is_prime_slave:
            is_new = is_first or is_changed
            try:
                yield from self._take_topics(name, registration, live, is_new=is_new)
            except ProtocolError:
                live.version = RegisteredVersion(
                    timestamp=-1
                )  # its next registration counts as new
                raise
        if number == MASTER or data.cluster != header.cluster_name:
            return RegistrationReply()  # a slave of another cluster must not copy this master
        return self._master_of(data)

    def _refuse_many_brokers(self, known: _Live | None, connection: int) -> None:
        """Raise when there is no room for a new broker, or for one more on this connection."""
        most = self._limits.brokers
        if known is None and len(self._live) >= most:
            raise ProtocolError(
                f"the name server has no room for more than {most} brokers (maxBrokers)"
            )
        if known is not None and known.connection == connection:
            return
        others = sum(live.connection == connection for live in self._live.values())
        most = self._limits.brokers_of_connection
        if others >= most:
            raise ProtocolError(
                f"one connection may register at most {most} brokers (maxBrokersOfConnection)"
            )

    def _is_outdated(
        self, data: BrokerData, header: RegisterBrokerHeader, registration: Registration
    ) -> bool:
        known = data.broker_addrs.get(header.broker_id)
        if known in (None, header.broker_addr):
            return False
        live = self._live.get((header.cluster_name, known))
        newest = registration.data_version.state_version
        return live is not None and live.version.state_version > newest

    def _take_topics(
        self, name: str, registration: Registration, live: _Live, *, is_new: bool
    ) -> Steps[None]:
        header = live.header
        key = (header.cluster_name, header.broker_addr)
        is_acting = header.broker_id != MASTER and header.enable_acting_master
        for number, topic in enumerate(registration.topic_config_table.values(), 1):
            if is_new or topic.topic_name not in self._topics[name]:
                queues = queue_data_of(name, topic)
                if is_acting:
                    queues.perm &= ~WRITE
                self._put_queues(topic.topic_name, queues)
            if number % _TOPICS_AT_ONCE == 0:
                yield
                if self._live.get(key) is not live:
                    return

    def _put_queues(self, topic: str, queue_data: QueueData) -> None:
        queues = self._topics[queue_data.broker_name]
        if topic not in queues:
            if len(topic) > REGISTERED_NAME_LENGTH_MAX:
                raise ProtocolError(
                    f"a topic name of {len(topic)} characters; "
                    f"at most {REGISTERED_NAME_LENGTH_MAX} are allowed"
                )
            if self._count >= self._limits.topics:
                raise ProtocolError(
                    f"the name server has no room for more than {self._limits.topics} topics "
                    "(maxRegisteredTopics)"
                )
            self._count += 1
        queues[topic] = queue_data

    def _master_of(self, data: BrokerData) -> RegistrationReply:
        address = data.broker_addrs.get(MASTER, "")
        live = self._live.get((data.cluster, address))
        return (
            RegistrationReply(address, live.header.ha_server_addr or "")
            if live
            else RegistrationReply()
        )

    def is_changed(self, cluster: str, address: str, version: RegisteredVersion) -> bool:
        """Whether the stored version of a broker's topics differs from `version`."""
        return self.version_of(cluster, address) != version

    def version_of(self, cluster: str, address: str) -> RegisteredVersion | None:
        """Return the version of a broker's topics; None when the broker is unknown."""
        live = self._live.get((cluster, address))
        return live.version if live else None

    def renew(self, cluster: str, address: str, now_ms: int) -> None:
        """Extend the lifetime of a broker; an unknown broker is ignored."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.expires_ms = now_ms + live.lifetime_ms

    def unregister(self, cluster: str, name: str, address: str) -> None:
        """Remove a broker that has this name; the last broker of a name takes its topics along."""
        live = self._live.get((cluster, address))
        if live is not None and live.header.broker_name == name:
            self._forget((cluster, address))

    def _forget(self, key: tuple[str, str]) -> None:
        """Remove the broker of this cluster and address, if it is known."""
        live = self._live.pop(key, None)
        if live is None:
            return
        name, address = live.header.broker_name, live.header.broker_addr
        data = self._names.get(name)
        if data is None:
            return
        for number in [n for n, known in data.broker_addrs.items() if known == address]:
            del data.broker_addrs[number]
        if data.broker_addrs:
            if data.enable_acting_master and MASTER not in data.broker_addrs:
                self._change_permissions(name, lambda perm: perm & ~WRITE)
            return
        del self._names[name]
        self._count -= len(self._topics.pop(name))

    def disconnected(self, connection: int) -> None:
        """Remove the brokers whose latest registration came over this connection."""
        for key in [key for key, live in self._live.items() if live.connection == connection]:
            self._forget(key)

    def expire(self, now_ms: int) -> list[int]:
        """Remove the expired brokers; return their connections, which the caller closes."""
        silent = [(key, live) for key, live in self._live.items() if live.expires_ms < now_ms]
        for key, _live in silent:
            self._forget(key)
        return [live.connection for _key, live in silent]

    def drop_topic(self, topic: str, cluster: str = "") -> None:
        """Remove a topic from all clusters or one; brokers that have it will register it again."""
        for name, queues in self._topics.items():
            is_meant = not cluster or self._names[name].cluster == cluster
            if is_meant and queues.pop(topic, None) is not None:
                self._count -= 1

    def wipe_write_permission(self, broker_name: str) -> int:
        """Remove the write permission of all topics of a broker name; return the topic count."""
        return self._change_permissions(broker_name, lambda perm: perm & ~WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Restore the write permission of all topics of a broker name; return the topic count."""
        return self._change_permissions(broker_name, lambda _perm: READ | WRITE)

    def permissions(self, broker_name: str) -> dict[str, int]:
        """Return how many topics a broker name has, and to how many clients may write."""
        queues = self._topics.get(broker_name, {})
        return {
            "topics": len(queues),
            "writable": sum(bool(each.perm & WRITE) for each in queues.values()),
        }

    def _change_permissions(self, broker_name: str, change: Callable[[int], int]) -> int:
        changed = self._topics.get(broker_name, {})
        for queue_data in changed.values():
            queue_data.perm = change(queue_data.perm)
        return len(changed)

    def route(self, topic: str, *, has_acting: bool = False) -> dict[str, Any] | None:
        """Return the topic's route in the format of clients, or None when no broker has it.

        With `has_acting`, the slave with the smallest id stands for a master that is away, if its
        brokers want that and nobody may write (`supportActingMaster`).
        """
        names = sorted(name for name, queues in self._topics.items() if topic in queues)
        if not names:
            return None
        return {
            "brokerDatas": [
                msgspec.to_builtins(
                    shown_brokers(self._names[name], self._topics[name][topic], topic)
                    if has_acting
                    else self._names[name]
                )
                for name in names
            ],
            "filterServerTable": {},
            "queueDatas": [msgspec.to_builtins(self._topics[name][topic]) for name in names],
        }

    def cluster_info(self) -> dict[str, Any]:
        """Return all brokers and clusters."""
        clusters: dict[str, list[str]] = {}
        for name, data in self._names.items():
            clusters.setdefault(data.cluster, []).append(name)
        return {
            "brokerAddrTable": msgspec.to_builtins(self._names),
            "clusterAddrTable": clusters,
        }

    def members(self, cluster: str, name: str) -> dict[int, str]:
        """Return the addresses of one broker name in one cluster, by broker id."""
        data = self._names.get(name)
        return dict(data.broker_addrs) if data and data.cluster == cluster else {}

    def topics_in(self, cluster: str) -> list[str]:
        """Return the topics of a cluster's brokers, sorted."""
        return _sorted_topics(
            queues for name, queues in self._topics.items() if self._names[name].cluster == cluster
        )

    def topics_by_flag(self, wanted: Callable[[int], bool]) -> list[str]:
        """Return the topics for which `wanted` accepts the system flag of any broker; sorted."""
        return _sorted_topics(
            [topic for topic, row in queues.items() if wanted(row.topic_sys_flag)]
            for queues in self._topics.values()
        )

    def add_topic(self, topic: str, queues: list[QueueData]) -> None:
        """Add queues of a topic without a registration; queues of unknown brokers are ignored."""
        for queue_data in queues:
            if queue_data.broker_name in self._names:
                self._put_queues(topic, queue_data)

    @property
    def broker_count(self) -> int:
        """The number of registered brokers."""
        return len(self._live)

    @property
    def topic_count(self) -> int:
        """The number of registered topics; one at several brokers counts for each."""
        return self._count

    def topics(self) -> list[str]:
        """Return all topics, sorted."""
        return _sorted_topics(self._topics.values())


def _sorted_topics(tables: Iterable[Iterable[str]]) -> list[str]:
    """Return the topics of several tables, without duplicates, sorted."""
    return sorted(dict.fromkeys(chain.from_iterable(tables)))  # nearly sorted input is fast


def _refuse_long_texts(header: RegisterBrokerHeader) -> None:
    """Refuse long names and addresses: they stay in memory."""
    texts = (
        *(header.broker_name, header.broker_addr, header.cluster_name),
        header.ha_server_addr or "",
    )
    if max(map(len, texts)) > BROKER_TEXT_LENGTH_MAX:
        raise ProtocolError(
            f"a broker's name or address is longer than {BROKER_TEXT_LENGTH_MAX} characters"
        )
