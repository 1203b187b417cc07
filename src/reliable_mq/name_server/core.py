"""The name server's core: commands and time in, replies out.

Source: Apache RocketMQ `DefaultRequestProcessor`, `ClientRequestProcessor` of the name server.
"""

import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from reliable_mq.errors import ProtocolError
from reliable_mq.name_server.registration import DataVersion, decode_registration
from reliable_mq.name_server.routes import RouteTable
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import RegisterBrokerHeader

_STANDARD_JSON_VERSION = 401  # MQVersion.V4_9_4: clients from here on read standard JSON
_WIPE_WRITE_PERM_OF_BROKER = 205
_ADD_WRITE_PERM_OF_BROKER = 327
_SEE_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_CRC_MASK = 0x7FFFFFFF


class NameServerCore:
    """Answers routes from what brokers registered."""

    def __init__(self) -> None:
        self.routes = RouteTable()
        self._handlers: dict[int, Callable[[int, Command, int], Command]] = {
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topic_list,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            _WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            _ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
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
        except (ProtocolError, ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
            return reply(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _register_broker(self, connection: int, command: Command, now_ms: int) -> Command:
        header = RegisterBrokerHeader.decode(command.ext_fields)
        checksum = zlib.crc32(command.body) & _CRC_MASK
        if header.body_crc32 and header.body_crc32 != checksum:
            return reply(command, ResponseCode.SYSTEM_ERROR, "crc32 not match")
        registration = decode_registration(command.body, compressed=header.compressed)
        registered = self.routes.register(header, registration, connection, now_ms)
        if registered is None:
            return reply(command, ResponseCode.SYSTEM_ERROR, "register broker failed")
        ext = {"haServerAddr": registered.ha_address, "masterAddr": registered.master_address}
        return reply(command, ext={name: value for name, value in ext.items() if value})

    def _unregister_broker(self, _connection: int, command: Command, _now_ms: int) -> Command:
        ext = command.ext_fields
        self.routes.unregister(ext["clusterName"], ext["brokerName"], ext["brokerAddr"])
        return reply(command)

    def _broker_heartbeat(self, _connection: int, command: Command, now_ms: int) -> Command:
        ext = command.ext_fields
        self.routes.renew(ext["clusterName"], ext["brokerAddr"], now_ms)
        return reply(command)

    def _query_data_version(self, _connection: int, command: Command, now_ms: int) -> Command:
        ext = command.ext_fields
        cluster, address = ext["clusterName"], ext["brokerAddr"]
        version = msgspec.convert(fastjson.loads(command.body), DataVersion)
        is_changed = self.routes.is_changed(cluster, address, version)
        self.routes.renew(cluster, address, now_ms)
        known = self.routes.version_of(cluster, address)
        return reply(
            command,
            ext={"changed": "true" if is_changed else "false"},
            body=fastjson.dumps(msgspec.to_builtins(known)) if known else b"",
        )

    def _route(self, _connection: int, command: Command, _now_ms: int) -> Command:
        topic = command.ext_fields.get("topic", "")
        route = self.routes.route(topic)
        if route is None:
            return reply(
                command,
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}{_SEE_FAQ}",
            )
        is_standard = (
            command.version >= _STANDARD_JSON_VERSION
            or command.ext_fields.get("acceptStandardJsonOnly") == "true"
        )
        return reply(command, body=_standard_json(route) if is_standard else fastjson.dumps(route))

    def _cluster_info(self, _connection: int, command: Command, _now_ms: int) -> Command:
        return reply(command, body=fastjson.dumps(self.routes.cluster_info()))

    def _topic_list(self, _connection: int, command: Command, _now_ms: int) -> Command:
        return reply(command, body=fastjson.dumps({"topicList": self.routes.topics()}))

    def _delete_topic(self, _connection: int, command: Command, _now_ms: int) -> Command:
        ext = command.ext_fields
        self.routes.drop_topic(ext["topic"], ext.get("clusterName", ""))
        return reply(command)

    def _wipe_write_permission(self, _connection: int, command: Command, _now_ms: int) -> Command:
        count = self.routes.wipe_write_permission(command.ext_fields["brokerName"])
        return reply(command, ext={"wipeTopicCount": str(count)})

    def _add_write_permission(self, _connection: int, command: Command, _now_ms: int) -> Command:
        count = self.routes.add_write_permission(command.ext_fields["brokerName"])
        return reply(command, ext={"addTopicCount": str(count)})


def _standard_json(value: dict[str, Any]) -> bytes:
    """Return JSON that every reader takes: number keys quoted, names sorted."""
    return msgspec.json.encode(msgspec.to_builtins(value, str_keys=True), order="sorted")
