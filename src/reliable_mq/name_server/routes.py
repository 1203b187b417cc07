"""The route table of a name server.

A broker registers its topics every 30 s; one that is silent for 120 s, or whose connection closes,
is forgotten, and with the last broker of a name its topics. Only a master's topics count.
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
    BROKERS_MAX,
    BROKERS_OF_CONNECTION_MAX,
    REGISTERED_NAME_LENGTH_MAX,
    REGISTERED_TOPICS_MAX,
)
from reliable_mq.name_server.registration import RegisteredTopic, RegisteredVersion, Registration
from reliable_mq.name_server.steps import Steps
from reliable_mq.wire.headers import RegisterBrokerHeader
from reliable_mq.wire.java_int import I32

EXPIRY_MS = 120_000
MASTER = 0
_TOPICS_AT_ONCE = 1_000
WRITE = 2
READ = 4


class BrokerData(msgspec.Struct, kw_only=True, rename="camel"):
    """The brokers of one name: their addresses by id, 0 the master's."""

    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)
    broker_name: str
    cluster: str
    enable_acting_master: bool = False


class QueueData(msgspec.Struct, kw_only=True, rename="camel"):
    """The queues that the brokers of one name have of a topic."""

    broker_name: str
    perm: I32 = 0
    read_queue_nums: I32 = 0
    topic_sys_flag: I32 = 0
    write_queue_nums: I32 = 0


class _Live(msgspec.Struct):
    """One broker process that was heard of."""

    header: RegisterBrokerHeader
    connection: int
    lifetime_ms: int
    expires_ms: int
    version: RegisteredVersion


class RegistrationReply(msgspec.Struct, frozen=True):
    """What a slave learns when it registers: its master's addresses."""

    master_address: str = ""
    ha_address: str = ""


class RouteTable:
    """Brokers by (cluster, address) and by name, queues by broker name and topic.

    A broker name goes with all its topics in one step, however many they are. So a route looks at
    each broker name; these are few.

    Invariant N1: an address that a route names belongs to a broker that is alive, and a topic is
    known only of broker names that have an address.
    """

    def __init__(self) -> None:
        self._live: dict[tuple[str, str], _Live] = {}
        self._names: dict[str, BrokerData] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}  # of each broker name, by topic
        self._count = 0  # of topics, each counted once for a broker name

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
        if len(self._live) > BROKERS_MAX:
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
        """Add or renew a broker; None when it names a single topic and is not known yet.

        An address that comes back under another id leaves the old one. An address that takes over
        an id is ignored while the other's state is the newer one. The topics are taken in steps, as
        long as no other registration of the broker comes, and the broker does not go.

        Raises:
            ProtocolError: when the table has no room for the broker or for so many topics.
        """
        _refuse_long_texts(header)
        name, address, number = header.broker_name, header.broker_addr, header.broker_id
        data = self._names.get(name)
        if data is None:
            data = BrokerData(broker_name=name, cluster=header.cluster_name)
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
            self._forget(key)  # the broker at this address has a new name
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
        if number == MASTER:
            is_new = is_first or is_changed
            try:
                yield from self._take_topics(name, registration, live, is_new=is_new)
            except ProtocolError:
                live.version = RegisteredVersion(
                    timestamp=-1
                )  # its next registration counts as new
                raise
        return self._master_of(data) if number != MASTER else RegistrationReply()

    def _refuse_many_brokers(self, known: _Live | None, connection: int) -> None:
        """Refuse a broker that is new, or comes over another connection, if there is no room."""
        if known is None and len(self._live) >= BROKERS_MAX:
            raise ProtocolError(f"the name server has no room for more than {BROKERS_MAX} brokers")
        if known is not None and known.connection == connection:
            return
        others = sum(live.connection == connection for live in self._live.values())
        if others >= BROKERS_OF_CONNECTION_MAX:
            raise ProtocolError(
                f"one connection may register at most {BROKERS_OF_CONNECTION_MAX} brokers"
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
        key = (live.header.cluster_name, live.header.broker_addr)
        for number, topic in enumerate(registration.topic_config_table.values(), 1):
            if is_new or topic.topic_name not in self._topics[name]:
                self._put_queues(topic.topic_name, _queue_data(name, topic))
            if number % _TOPICS_AT_ONCE == 0:
                yield
                if self._live.get(key) is not live:
                    return

    def _put_queues(self, topic: str, queue_data: QueueData) -> None:
        queues = self._topics[queue_data.broker_name]
        if topic not in queues:
            if len(topic) > REGISTERED_NAME_LENGTH_MAX:
                raise ProtocolError(
                    f"a topic's name of {len(topic)} characters, "
                    f"at most {REGISTERED_NAME_LENGTH_MAX} are allowed"
                )
            if self._count >= REGISTERED_TOPICS_MAX:
                raise ProtocolError(
                    f"the name server has no room for more than {REGISTERED_TOPICS_MAX} topics"
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
        """Whether a broker's topics are not known as of this version."""
        return self.version_of(cluster, address) != version

    def version_of(self, cluster: str, address: str) -> RegisteredVersion | None:
        """Return the version of a broker's topics, None when it is not known."""
        live = self._live.get((cluster, address))
        return live.version if live else None

    def renew(self, cluster: str, address: str, now_ms: int) -> None:
        """Note that a broker is alive, if it is known."""
        live = self._live.get((cluster, address))
        if live is not None:
            live.expires_ms = now_ms + live.lifetime_ms

    def unregister(self, cluster: str, name: str, address: str) -> None:
        """Forget a broker, if it has this name; without brokers of its name its topics go too."""
        live = self._live.get((cluster, address))
        if live is not None and live.header.broker_name == name:
            self._forget((cluster, address))

    def _forget(self, key: tuple[str, str]) -> None:
        """Forget the broker of a cluster and an address, if it is known."""
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
        """Forget the brokers whose newest registration came over this connection."""
        for key in [key for key, live in self._live.items() if live.connection == connection]:
            self._forget(key)

    def expire(self, now_ms: int) -> list[int]:
        """Forget the brokers that fell silent; return their connections, to be closed."""
        silent = [(key, live) for key, live in self._live.items() if live.expires_ms < now_ms]
        for key, _live in silent:
            self._forget(key)
        return [live.connection for _key, live in silent]

    def drop_topic(self, topic: str, cluster: str = "") -> None:
        """Forget a topic, in one cluster if that is named; a broker that has it brings it back."""
        for name, queues in self._topics.items():
            is_meant = not cluster or self._names[name].cluster == cluster
            if is_meant and queues.pop(topic, None) is not None:
                self._count -= 1

    def wipe_write_permission(self, broker_name: str) -> int:
        """Let clients send nothing more to the brokers of a name; return how many topics it has."""
        return self._change_permissions(broker_name, lambda perm: perm & ~WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Let clients send to the brokers of a name again; return how many topics it has."""
        return self._change_permissions(broker_name, lambda _perm: READ | WRITE)

    def _change_permissions(self, broker_name: str, change: Callable[[int], int]) -> int:
        changed = self._topics.get(broker_name, {})
        for queue_data in changed.values():
            queue_data.perm = change(queue_data.perm)
        return len(changed)

    def route(self, topic: str) -> dict[str, Any] | None:
        """Return the topic's route as clients expect it, or None when no broker has it."""
        names = sorted(name for name, queues in self._topics.items() if topic in queues)
        if not names:
            return None
        return {
            "brokerDatas": [msgspec.to_builtins(self._names[name]) for name in names],
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
        """Return the addresses of the brokers of one name in one cluster by their ids."""
        data = self._names.get(name)
        return dict(data.broker_addrs) if data and data.cluster == cluster else {}

    def topics_in(self, cluster: str) -> list[str]:
        """Return the topics that brokers of a cluster have, sorted."""
        return _sorted_topics(
            queues for name, queues in self._topics.items() if self._names[name].cluster == cluster
        )

    def topics_by_flag(self, wanted: Callable[[int], bool]) -> list[str]:
        """Return the topics whose system flag, as any broker has it, is wanted; sorted."""
        return _sorted_topics(
            [topic for topic, row in queues.items() if wanted(row.topic_sys_flag)]
            for queues in self._topics.values()
        )

    def add_topic(self, topic: str, queues: list[QueueData]) -> None:
        """Add what somebody else than its brokers says of a topic; unknown brokers are left out."""
        for queue_data in queues:
            if queue_data.broker_name in self._names:
                self._put_queues(topic, queue_data)

    def topics(self) -> list[str]:
        """Return all topics, sorted."""
        return _sorted_topics(self._topics.values())


def _sorted_topics(tables: Iterable[Iterable[str]]) -> list[str]:
    """Return the topics of some broker names, each once."""
    return sorted(dict.fromkeys(chain.from_iterable(tables)))  # in the order of the tables: quick


def _refuse_long_texts(header: RegisterBrokerHeader) -> None:
    """Refuse names and addresses that would take much memory: they are kept."""
    texts = (
        *(header.broker_name, header.broker_addr, header.cluster_name),
        header.ha_server_addr or "",
    )
    if max(map(len, texts)) > BROKER_TEXT_LENGTH_MAX:
        raise ProtocolError(
            f"a name or an address of a broker is longer than {BROKER_TEXT_LENGTH_MAX} characters"
        )


def _queue_data(broker_name: str, topic: RegisteredTopic) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        perm=topic.perm,
        read_queue_nums=topic.read_queue_nums,
        topic_sys_flag=topic.topic_sys_flag,
        write_queue_nums=topic.write_queue_nums,
    )
