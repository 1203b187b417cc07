"""Registration of a broker at its name servers, and what it reads from their answers.

Source: Apache RocketMQ `RegisterBrokerRequestHeader`, `RegisterBrokerBody`, `TopicRouteData`.
"""

from collections.abc import Collection, Iterator

import msgspec

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.decodable import decodable
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.peer_texts import read_json_as

log = limited_log(__name__)


PART_SIZE_MAX = 32 * 1024
"""Characters of JSON in one registration: about 200 topics, little work for both loops."""
_WHOLE_SIZE_MAX = FRAME_SIZE_MAX - 1024 * 1024
"""The limit without split. The rest of the frame is for the header and for non-ASCII text."""


def registrations(state: BrokerState, names: Collection[str] | None = None) -> Iterator[Command]:
    """Yield the requests that register the broker, in one or several parts.

    With `enableSingleTopicRegister` the first registration has as many topics as fit into a frame.
    Each further topic has its own request. A name server with `deleteTopicWithBrokerRegistration`
    forgets the topics that are not in a registration.

    A name server ignores changes to a known topic unless the registration has a new version. So
    each part has its own version.
    Source: Apache RocketMQ `BrokerController.registerBrokerAll` (enableSplitRegistration),
    `RouteInfoManager.registerBroker`.

    Args:
        state: the broker.
        names: the topics to register; None, the default, for all. Deleted topics are skipped.
    """
    is_whole = names is None and state.config.single_topic_register
    size_max = _WHOLE_SIZE_MAX if is_whole else PART_SIZE_MAX
    for number, part in enumerate(state.topics.parts(names, size_max)):
        if is_whole and number:
            yield from filter(None, (topic_registration(state, name) for name in part))
            continue
        wrapper = state.topics.wrapped(part, number)
        body = b'{"filterServerList":[],"topicConfigSerializeWrapper":%b}' % wrapper
        yield request(RequestCode.REGISTER_BROKER, _header(state), body)


def unregistration(state: BrokerState) -> Command:
    """Return the request that ends the broker's registration."""
    return request(RequestCode.UNREGISTER_BROKER, _header(state))


def _header(state: BrokerState) -> dict[str, str]:
    config = state.config
    # Without it, a name server takes no topics of a slave, also if the master is away.
    acting = {"enableActingMaster": "false"} if config.is_slave else {}
    if config.stands_in:  # it sends heartbeats, so its silence is noticed sooner
        acting = {
            "enableActingMaster": "true",
            "heartbeatTimeoutMillis": str(config.silent_ms),
        }
    epoch = {} if state.epoch is None else {"brokerEpoch": str(state.epoch)}
    return {
        **acting,
        **epoch,
        "brokerName": config.broker_name,
        "brokerAddr": config.address,
        "clusterName": config.broker_cluster_name,
        "haServerAddr": config.ha_address,
        "brokerId": str(config.broker_id),
        "compressed": "false",
        "bodyCrc32": "0",
    }


def heartbeat(config: BrokerConfig) -> Command:
    """Return the request that says that the broker is there (`brokerHeartbeatInterval`)."""
    fields = {
        "clusterName": config.broker_cluster_name,
        "brokerAddr": config.address,
        "brokerName": config.broker_name,
        "brokerId": str(config.broker_id),
    }
    return request(RequestCode.BROKER_HEARTBEAT, fields, oneway=True)


def topic_registration(state: BrokerState, name: str) -> Command | None:
    """Return the request that registers only this topic; None when the topic does not exist."""
    topic = state.topics.get(name)
    if topic is None:
        return None
    queues = {
        "brokerName": state.config.broker_name,
        "perm": topic.perm,
        "readQueueNums": topic.read_queue_nums,
        "topicSysFlag": topic.topic_sys_flag,
        "writeQueueNums": topic.write_queue_nums,
    }
    body = msgspec.json.encode({"queueDatas": [queues]})
    return request(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": name}, body)


def take_order_topics(state: BrokerState, body: bytes, now_ms: int) -> None:
    """Mark as ordered the topics that are in a name server's reply to a registration."""
    try:
        table = read_json_as(body, _NamedTopics).table if body else {}
    except (ValueError, msgspec.MsgspecError) as error:
        broker_events.ORDERED_TOPICS_UNREADABLE.log(log, error=error)
        return
    for topic in map(state.topics.get, table):
        if topic is not None and not topic.order:
            state.put_topic(msgspec.structs.replace(topic, order=True), now_ms)


@decodable
class _NamedTopics(msgspec.Struct):
    """The ordered topics of a name server (`KVTable`)."""

    table: dict[str, str] = msgspec.field(default_factory=dict)
