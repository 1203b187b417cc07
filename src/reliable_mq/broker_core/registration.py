"""What a broker tells name servers of itself, and takes from their answers.

Source: Apache RocketMQ `RegisterBrokerRequestHeader`, `RegisterBrokerBody`, `TopicRouteData`.
"""

from collections.abc import Collection, Iterator

import msgspec

from reliable_mq.broker_core.state import BrokerState
from reliable_mq.decodable import decodable
from reliable_mq.limits import FRAME_SIZE_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.peer_texts import read_json_as
from reliable_mq.wire.record import address_of

log = limited_log(__name__)


PART_SIZE_MAX = 256 * 1024
"""Characters of JSON in one registration: some 1,500 topics, a few milliseconds of both sides."""
_WHOLE_SIZE_MAX = FRAME_SIZE_MAX - 1024 * 1024
"""Of one that is not to be split; the frame has room for its header and for text beyond ASCII."""


def registrations(state: BrokerState, names: Collection[str] | None = None) -> Iterator[Command]:
    """Yield what registers the broker, in one part or in several behind each other.

    With `enableSingleTopicRegister` all topics are told in one registration, as many as fit a
    frame, and each of the others alone: a name server with `deleteTopicWithBrokerRegistration`
    forgets the topics that a registration lacks.

    A name server takes a topic that it knows already only from a registration whose version is not
    the last one's. So each part has a version of its own.
    Source: Apache RocketMQ `BrokerController.registerBrokerAll` (enableSplitRegistration),
    `RouteInfoManager.registerBroker`.

    Args:
        state: the broker.
        names: the topics that it tells; None for all. Those that are gone are left out.
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


def farewell(state: BrokerState) -> Command:
    """Return what ends the broker's registration."""
    return request(RequestCode.UNREGISTER_BROKER, _header(state))


def _header(state: BrokerState) -> dict[str, str]:
    config = state.config
    return {
        "brokerName": config.broker_name,
        "brokerAddr": config.address,
        "clusterName": config.broker_cluster_name,
        "haServerAddr": address_of(config.broker_ip, config.listen_port + 1),
        "brokerId": str(config.broker_id),
        "compressed": "false",
        "bodyCrc32": "0",
    }


def topic_registration(state: BrokerState, name: str) -> Command | None:
    """Return what tells one topic without a word about the others; None when it is gone."""
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
    """Mark the topics as ordered that a name server's answer to a registration names."""
    try:
        table = read_json_as(body, _NamedTopics).table if body else {}
    except (ValueError, msgspec.MsgspecError) as error:
        log.warning("a name server names ordered topics in a way that does not read: %s", error)
        return
    for topic in map(state.topics.get, table):
        if topic is not None and not topic.order:
            state.put_topic(msgspec.structs.replace(topic, order=True), now_ms)


@decodable
class _NamedTopics(msgspec.Struct):
    """What a name server keeps of ordered topics (`KVTable`)."""

    table: dict[str, str] = msgspec.field(default_factory=dict)
