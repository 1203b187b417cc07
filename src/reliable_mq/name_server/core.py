"""The name server's core: commands and time in, replies out.

Source: Apache RocketMQ `DefaultRequestProcessor`, `ClientRequestProcessor` of the name server.
"""

import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from reliable_mq.broker_core.topics import TopicConfig
from reliable_mq.errors import ProtocolError
from reliable_mq.name_server.routes import RouteTable
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import RegisterBrokerHeader

_STANDARD_JSON_VERSION = 401  # MQVersion.V4_9_4: clients from here on read standard JSON


class NameServerCore:
    """Answers routes from what brokers registered."""

    def __init__(self) -> None:
        self.routes = RouteTable()
        self._handlers: dict[int, Callable[[int, Command, int], Command]] = {
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topic_list,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
        }

    def receive(self, connection: int, command: Command, now_ms: int) -> Command:
        """Return the answer to a command."""
        handler = self._handlers.get(command.code)
        if handler is None:
            return reply(
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {command.code} not supported",
            )
        try:
            return handler(connection, command, now_ms)
        except (ProtocolError, ValueError, KeyError, msgspec.MsgspecError, zlib.error) as error:
            return reply(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _register_broker(self, connection: int, command: Command, now_ms: int) -> Command:
        header = RegisterBrokerHeader.decode(command.ext_fields)
        checksum = zlib.crc32(command.body) & 0x7FFFFFFF
        if header.body_crc32 and header.body_crc32 != checksum:
            return reply(command, ResponseCode.SYSTEM_ERROR, "crc32 not match")
        wrapper = (
            _topics_of_compressed(command.body)
            if header.compressed
            else fastjson.loads(command.body)["topicConfigSerializeWrapper"]["topicConfigTable"]
        )
        topics = msgspec.convert(wrapper, dict[str, TopicConfig])
        self.routes.register(header, topics, connection, now_ms)
        return reply(command, ext={})

    def _unregister_broker(self, _connection: int, command: Command, _now_ms: int) -> Command:
        ext = command.ext_fields
        self.routes.unregister(ext["clusterName"], ext["brokerAddr"])
        return reply(command)

    def _route(self, _connection: int, command: Command, _now_ms: int) -> Command:
        topic = command.ext_fields.get("topic", "")
        route = self.routes.route(topic)
        if route is None:
            return reply(
                command,
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}",
            )
        is_standard = (
            command.version >= _STANDARD_JSON_VERSION
            or command.ext_fields.get("acceptStandardJsonOnly") == "true"
        )
        return reply(
            command, body=msgspec.json.encode(route) if is_standard else fastjson.dumps(route)
        )

    def _cluster_info(self, _connection: int, command: Command, _now_ms: int) -> Command:
        return reply(command, body=fastjson.dumps(self.routes.cluster_info()))

    def _topic_list(self, _connection: int, command: Command, _now_ms: int) -> Command:
        return reply(command, body=msgspec.json.encode({"topicList": self.routes.topics()}))

    def _delete_topic(self, _connection: int, command: Command, _now_ms: int) -> Command:
        self.routes.drop_topic(command.ext_fields["topic"])
        return reply(command)


def _topics_of_compressed(body: bytes) -> dict[str, Any]:
    """Return the topics of a compressed registration.

    `i32 length, data version JSON | i32 count | count * (i32 length, "name readQueues writeQueues
    perm filterType [attributes JSON]")`, then parts that are of no use here.
    """
    data = zlib.decompress(body)
    at = 4 + int.from_bytes(data[:4])
    count = int.from_bytes(data[at : at + 4])
    at += 4
    topics: dict[str, Any] = {}
    for _ in range(count):
        end = at + 4 + int.from_bytes(data[at : at + 4])
        name, read, write, perm, filter_type = data[at + 4 : end].decode().split(" ")[:5]
        topics[name] = {
            "topicName": name,
            "readQueueNums": int(read),
            "writeQueueNums": int(write),
            "perm": int(perm),
            "topicFilterType": filter_type,
        }
        at = end
    return topics
