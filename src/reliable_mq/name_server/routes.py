"""The route table of a name server.

A broker registers its topics every 30 s; one that is silent for 120 s, or whose connection closes,
is forgotten. Source: Apache RocketMQ `RouteInfoManager`.
"""

from typing import Any

import msgspec

from reliable_mq.broker_core.topics import TopicConfig
from reliable_mq.wire.headers import RegisterBrokerHeader

EXPIRY_MS = 120_000


class LiveBroker(msgspec.Struct):
    """One broker process."""

    header: RegisterBrokerHeader
    connection: int
    expires_ms: int
    topics: dict[str, TopicConfig]


class RouteTable:
    """Brokers by (cluster, address). Invariant N1: a route names only brokers that are alive."""

    def __init__(self) -> None:
        self._brokers: dict[tuple[str, str], LiveBroker] = {}

    def register(
        self,
        header: RegisterBrokerHeader,
        topics: dict[str, TopicConfig],
        connection: int,
        now_ms: int,
    ) -> None:
        """Add or renew a broker. An address that comes back under another id replaces itself."""
        lifetime_ms = header.heartbeat_timeout_millis or EXPIRY_MS
        key = (header.cluster_name, header.broker_addr)
        self._brokers[key] = LiveBroker(header, connection, now_ms + lifetime_ms, topics)

    def unregister(self, cluster: str, address: str) -> None:
        """Forget a broker that says goodbye."""
        self._brokers.pop((cluster, address), None)

    def disconnected(self, connection: int) -> None:
        """Forget the brokers that registered over this connection."""
        for key, broker in list(self._brokers.items()):
            if broker.connection == connection:
                del self._brokers[key]

    def expire(self, now_ms: int) -> None:
        """Forget the brokers that fell silent."""
        for key, broker in list(self._brokers.items()):
            if broker.expires_ms <= now_ms:
                del self._brokers[key]

    def drop_topic(self, topic: str) -> None:
        """Forget a topic at all brokers."""
        for broker in self._brokers.values():
            broker.topics.pop(topic, None)

    def route(self, topic: str) -> dict[str, Any] | None:
        """Return the topic's route as clients expect it, or None when no broker has it."""
        masters: dict[str, TopicConfig] = {}
        for broker in self._brokers.values():
            config = broker.topics.get(topic)
            if config is not None and broker.header.broker_id == 0:
                masters[broker.header.broker_name] = config
        if not masters:
            return None
        brokers = self._broker_data()
        return {
            "brokerDatas": [brokers[name] for name in sorted(masters) if name in brokers],
            "filterServerTable": {},
            "queueDatas": [_queue_data(name, masters[name]) for name in sorted(masters)],
        }

    def _broker_data(self) -> dict[str, dict[str, Any]]:
        data: dict[str, dict[str, Any]] = {}
        for broker in self._brokers.values():
            header = broker.header
            entry = data.setdefault(
                header.broker_name,
                {
                    "brokerAddrs": {},
                    "brokerName": header.broker_name,
                    "cluster": header.cluster_name,
                    "enableActingMaster": False,
                },
            )
            entry["brokerAddrs"][header.broker_id] = header.broker_addr
        return data

    def cluster_info(self) -> dict[str, Any]:
        """Return all brokers and clusters."""
        clusters: dict[str, list[str]] = {}
        for broker in self._brokers.values():
            names = clusters.setdefault(broker.header.cluster_name, [])
            if broker.header.broker_name not in names:
                names.append(broker.header.broker_name)
        return {"brokerAddrTable": self._broker_data(), "clusterAddrTable": clusters}

    def topics(self) -> list[str]:
        """Return all topics, sorted."""
        return sorted({topic for broker in self._brokers.values() for topic in broker.topics})


def _queue_data(broker_name: str, topic: TopicConfig) -> dict[str, Any]:
    return {
        "brokerName": broker_name,
        "perm": topic.perm,
        "readQueueNums": topic.read_queue_nums,
        "topicSysFlag": topic.topic_sys_flag,
        "writeQueueNums": topic.write_queue_nums,
    }
