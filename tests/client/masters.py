"""A scripted cluster of two masters, "a" and "b", for what administration asks of all brokers."""

from collections.abc import Mapping

import msgspec
from tests.client.script import NAME_SERVER, Answer, World, route_table, says

from reliable_mq.client.administering.cluster_reply import AdminTarget
from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.flow import Call
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import MessageQueue
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, reply

SETTINGS = ClientSettings()
BROKERS = {
    "brokerAddrTable": {
        name: {"brokerAddrs": {0: f"{name}:10911"}, "brokerName": name, "cluster": "c"}
        for name in ("b", "a")
    },
    "clusterAddrTable": {"c": ["a", "b"]},
}


def cluster() -> AdminTarget:
    """Return what flows of administration take."""
    servers = NameServers((NAME_SERVER,), SETTINGS.request_timeout_seconds)
    return AdminTarget(servers, route_table(), SETTINGS)


def world(answers: Mapping[int, Answer]) -> World:
    """Return a world whose name server tells of both masters."""
    brokers = says(body=fastjson.dumps(BROKERS))
    return World({RequestCode.GET_BROKER_CLUSTER_INFO: brokers, **answers})


def by_broker(answers: Mapping[str, Answer]) -> Answer:
    """Return an answer that is each broker's own, by its name."""
    return lambda call: answers[call.address.partition(":")[0]](call)


def offline(code: int, remark: str = "") -> Answer:
    """Return the answer of a broker that refuses."""
    return says(code, remark=remark)


def key(name: str, topic: str = "t", queue_id: int = 0) -> tuple[tuple[str, str | int], ...]:
    """Return a queue as it is the key of a table."""
    return (("brokerName", name), ("queueId", queue_id), ("topic", topic))


def queue(name: str, topic: str = "t", queue_id: int = 0) -> MessageQueue:
    return MessageQueue(topic, name, queue_id)


def table(rows: Mapping[str, Mapping[int, object]], topic: str = "t") -> dict[str, Answer]:
    """Return answers with an `offsetTable`: broker -> queue id -> row."""
    return {
        name: says(
            body=fastjson.dumps(
                {"offsetTable": {key(name, topic, number): row for number, row in own.items()}}
            )
        )
        for name, own in rows.items()
    }


def echo(call: Call) -> Command:
    """Answer that all is well."""
    return reply(call.command)


def json(value: object) -> Answer:
    """Return an answer with a plain body."""
    return says(body=msgspec.json.encode(value))
