"""The name server's core: commands and time in, replies out.

Source: Apache RocketMQ `DefaultRequestProcessor`, `ClientRequestProcessor` of the name server.
"""

import zlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.errors import ProtocolError
from reliable_mq.limits import REQUEST_BODY_SIZE_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.name_server.epochs import SecondMaster
from reliable_mq.name_server.name_server_limits import NameServerLimits
from reliable_mq.name_server.registration import RegisteredVersion, decode_in_steps
from reliable_mq.name_server.route_rows import QueueData
from reliable_mq.name_server.routes import RouteTable
from reliable_mq.name_server.settings_table import ORDER_TOPICS, SettingsTable
from reliable_mq.name_server.steps import Steps, finish
from reliable_mq.telemetry import broker_events
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import SECOND_MASTER, RegisterBrokerHeader, fault_of
from reliable_mq.wire.java_properties import format_properties
from reliable_mq.wire.peer_texts import read_json, read_properties

log = limited_log(__name__)

_STANDARD_JSON_VERSION = 401  # MQVersion.V4_9_4: clients since this version read standard JSON
_UNIT = 1  # topicSysFlag: the topic belongs to a unit, or a unit subscribes to it
_UNIT_SUB = 2
_BLACK_LIST = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
_SEE_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_CRC_MASK = 0x7FFFFFFF


@decodable
class NameServerConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All properties that this name server supports. Each can change at run time.

    `enable_all_topic_list`: whether clients may list all topics. Default True.
    `enable_topic_list`: whether clients may list the topics of a cluster, and unit topics. Default
    True. `order_message_enable`: whether a route has the queue counts of an ordered topic. Default
    False. `return_order_topic_config_to_broker`: whether the reply to a registration has the
    ordered topics. Default True. `support_acting_master`: whether a route shows a slave of brokers
    with `enableSlaveActingMaster` as the master while that is away. Default False.
    """

    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    order_message_enable: bool = False
    return_order_topic_config_to_broker: bool = True
    support_acting_master: bool = False


def changed_config(config: NameServerConfig, changes: Mapping[str, str]) -> NameServerConfig:
    """Return the settings after a change; unknown names are ignored.

    Raises:
        msgspec.ValidationError: when a value does not parse.
    """
    known = msgspec.to_builtins(config)
    supported = {name: value for name, value in changes.items() if name in known}
    return msgspec.convert({**known, **supported}, NameServerConfig, strict=False)


class NameServerCore:
    """Stores the registrations of brokers and answers route requests from them."""

    def __init__(
        self, config: NameServerConfig | None = None, limits: NameServerLimits | None = None
    ) -> None:
        self.routes = RouteTable(limits)
        self.settings = SettingsTable()
        self.config = config or NameServerConfig()
        self.listen_port = 0  # shown among the settings; the owner of the listening socket sets it
        self._handlers: dict[int, Callable[[int, Command, int], Command | Steps[Command]]] = {
            RequestCode.PUT_KV_CONFIG: self._put_setting,
            RequestCode.GET_KV_CONFIG: self._get_setting,
            RequestCode.DELETE_KV_CONFIG: self._delete_setting,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self._settings_of,
            RequestCode.REGISTER_BROKER: self._register_broker,
            RequestCode.UNREGISTER_BROKER: self._unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self._broker_heartbeat,
            RequestCode.QUERY_DATA_VERSION: self._query_data_version,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topic_list,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register_topic,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topics_by_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._unit_topics,
            RequestCode.GET_BROKER_MEMBER_GROUP: self._member_group,
            RequestCode.UPDATE_NAMESRV_CONFIG: self._update_config,
            RequestCode.GET_NAMESRV_CONFIG: self._get_config,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe_write_permission,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._add_write_permission,
        }

    @property
    def codes(self) -> Collection[int]:
        """The request codes that the name server supports."""
        return self._handlers.keys()

    def receive(self, connection: int, command: Command, now_ms: int) -> Command:
        """Return the answer to a command; see `begin`."""
        return finish(self.begin(connection, command, now_ms))

    def begin(self, connection: int, command: Command, now_ms: int) -> Steps[Command]:
        """Return the answer to a command, in several steps for a large command.

        Every error, also an unexpected one, becomes an error reply.
        """
        handler = self._handlers.get(command.code)
        if handler is None:
            return reply(
                command,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {command.code} not supported",
            )
        try:
            if command.code != RequestCode.REGISTER_BROKER:
                _refuse_long_body(command)
            answer = handler(connection, command, now_ms)
            return answer if isinstance(answer, Command) else (yield from answer)
        except (ProtocolError, ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
            return reply(command, ResponseCode.SYSTEM_ERROR, fault_of(error))
        except Exception as bug:  # noqa: BLE001 - it is logged
            broker_events.NAME_SERVER_REQUEST_FAILED.log(log, traceback_of=True, code=command.code)
            return reply(command, ResponseCode.SYSTEM_ERROR, fault_of(bug))

    def _register_broker(self, connection: int, command: Command, now_ms: int) -> Steps[Command]:
        header = RegisterBrokerHeader.decode(command.ext_fields)
        checksum = header.body_crc32
        if checksum and checksum != zlib.crc32(command.body) & _CRC_MASK:
            return reply(command, ResponseCode.SYSTEM_ERROR, "crc32 not match")
        registration = yield from decode_in_steps(command.body, compressed=header.compressed)
        try:
            registered = yield from self.routes.register(header, registration, connection, now_ms)
        except SecondMaster as error:
            refusal = reply(command, ResponseCode.SYSTEM_ERROR, str(error))
            refusal.ext_fields = {SECOND_MASTER: "true"}
            return refusal
        if registered is None:
            return reply(command, ResponseCode.SYSTEM_ERROR, "register broker failed")
        ext = {"haServerAddr": registered.ha_address, "masterAddr": registered.master_address}
        return reply(
            command,
            ext={name: value for name, value in ext.items() if value},
            body=self._order_topics(),
        )

    def _order_topics(self) -> bytes:
        """Return the ordered topics, as the body of the reply to a registration."""
        topics = self.settings.all_of(ORDER_TOPICS)
        if topics is None or not self.config.return_order_topic_config_to_broker:
            return b""
        return fastjson.dumps({"table": topics})

    def _put_setting(self, _connection: int, command: Command, _now_ms: int) -> Command:
        ext = command.ext_fields
        if "namespace" not in ext or "key" not in ext:
            return reply(command, ResponseCode.SYSTEM_ERROR, "namespace or key is null")
        self.settings.set_value(ext["namespace"], ext["key"], ext["value"])
        return reply(command)

    def _get_setting(self, _connection: int, command: Command, _now_ms: int) -> Command:
        ext = command.ext_fields
        namespace, key = ext.get("namespace", "null"), ext.get("key", "null")
        value = self.settings.get(namespace, key)
        if value is None:
            return _no_setting(command, f"Namespace: {namespace} Key: {key}")
        return reply(command, ext={"value": value})

    def _delete_setting(self, _connection: int, command: Command, _now_ms: int) -> Command:
        self.settings.remove(command.ext_fields["namespace"], command.ext_fields["key"])
        return reply(command)

    def _settings_of(self, _connection: int, command: Command, _now_ms: int) -> Command:
        namespace = command.ext_fields.get("namespace", "null")
        values = self.settings.all_of(namespace)
        if values is None:
            return _no_setting(command, f"Namespace: {namespace}")
        return reply(command, body=fastjson.dumps({"table": values}))

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
        version = msgspec.convert(read_json(command.body), RegisteredVersion)
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
        route = self.routes.route(topic, has_acting=self.config.support_acting_master)
        if route is None:
            return reply(
                command,
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}{_SEE_FAQ}",
            )
        if self.config.order_message_enable:
            order = self.settings.get(ORDER_TOPICS, topic)
            route |= {"orderTopicConf": order} if order is not None else {}
        is_standard = (
            command.version >= _STANDARD_JSON_VERSION
            or command.ext_fields.get("acceptStandardJsonOnly") == "true"
        )
        return reply(command, body=_standard_json(route) if is_standard else fastjson.dumps(route))

    def _cluster_info(self, _connection: int, command: Command, _now_ms: int) -> Command:
        return reply(command, body=fastjson.dumps(self.routes.cluster_info()))

    def _topic_list(self, _connection: int, command: Command, _now_ms: int) -> Command:
        if not self.config.enable_all_topic_list:
            return reply(command, ResponseCode.SYSTEM_ERROR, "disable")
        return _topics(command, self.routes.topics())

    def _topics_by_cluster(self, _connection: int, command: Command, _now_ms: int) -> Command:
        if not self.config.enable_topic_list:
            return reply(command, ResponseCode.SYSTEM_ERROR, "disable")
        return _topics(command, self.routes.topics_in(command.ext_fields["cluster"]))

    def _unit_topics(self, _connection: int, command: Command, _now_ms: int) -> Command:
        if not self.config.enable_topic_list:
            return reply(command, ResponseCode.SYSTEM_ERROR, "disable")
        wanted = {
            RequestCode.GET_UNIT_TOPIC_LIST: lambda flag: flag & _UNIT,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: lambda flag: flag & _UNIT_SUB,
        }.get(
            RequestCode(command.code),
            lambda flag: flag & (_UNIT | _UNIT_SUB) == _UNIT_SUB,
        )
        return _topics(command, self.routes.topics_by_flag(wanted))

    def _system_topics(self, _connection: int, command: Command, _now_ms: int) -> Command:
        info = self.routes.cluster_info()
        names = {name for brokers in info["clusterAddrTable"].values() for name in brokers}
        addresses = [
            a for data in info["brokerAddrTable"].values() for a in data["brokerAddrs"].values()
        ]
        topics = sorted(names | info["clusterAddrTable"].keys())
        body = {"topicList": topics} | ({"brokerAddr": addresses[0]} if addresses else {})
        return reply(command, body=fastjson.dumps(body))

    def _member_group(self, _connection: int, command: Command, _now_ms: int) -> Command:
        ext = command.ext_fields
        cluster, name = ext["clusterName"], ext["brokerName"]
        group = {
            "brokerAddrs": self.routes.members(cluster, name),
            "brokerName": name,
            "cluster": cluster,
        }
        return reply(command, body=fastjson.dumps({"brokerMemberGroup": group}))

    def _register_topic(self, _connection: int, command: Command, _now_ms: int) -> Command:
        route = msgspec.convert(read_json(command.body), _Route) if command.body else _Route()
        self.routes.add_topic(command.ext_fields["topic"], route.queue_datas)
        return reply(command)

    def _update_config(self, _connection: int, command: Command, _now_ms: int) -> Command:
        changes = read_properties(command.body)
        if changes.keys() & _BLACK_LIST:
            return reply(
                command, ResponseCode.NO_PERMISSION, "Can not update config in black list."
            )
        self.config = changed_config(self.config, changes)
        return reply(command)

    def _get_config(self, _connection: int, command: Command, _now_ms: int) -> Command:
        values = {**msgspec.to_builtins(self.config), "listenPort": self.listen_port}
        return reply(command, body=format_properties(values).encode())

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


@decodable
class _Route(msgspec.Struct, rename="camel"):
    queue_datas: list[QueueData] = msgspec.field(default_factory=list)


def _refuse_long_body(command: Command) -> None:
    if len(command.body) > REQUEST_BODY_SIZE_MAX:
        raise ProtocolError(
            f"a body of {len(command.body)} bytes; at most {REQUEST_BODY_SIZE_MAX} are allowed"
        )


def _no_setting(command: Command, what: str) -> Command:
    return reply(command, ResponseCode.QUERY_NOT_FOUND, f"No config item, {what}")


def _topics(command: Command, names: list[str]) -> Command:
    return reply(command, body=msgspec.json.encode({"topicList": names}))


def _standard_json(value: dict[str, Any]) -> bytes:
    """Return JSON that every client can read: number keys in quotes, names sorted."""
    return msgspec.json.encode(msgspec.to_builtins(value, str_keys=True), order="sorted")
