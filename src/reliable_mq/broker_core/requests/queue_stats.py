"""Statistics of a topic's queues, and functions that several queue replies share.

Source: Apache RocketMQ `AdminBrokerProcessor`.
"""

from reliable_mq.broker_core.requests.offsets import store_time_ms
from reliable_mq.broker_core.requests.refusal import QUEUES_ASKED_MAX, RequestRefused, refuse_above
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.statistics import MINUTE, TOPIC_PUT_NUMS
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply

QueueKey = tuple[tuple[str, str | int], ...]


def get_topic_stats_info(state: BrokerState, request: Request) -> Command:
    """GET_TOPIC_STATS_INFO: first and next offset of each queue, and time of its last message."""
    name = request.command.ext_fields.get("topic", "")
    topic = state.topics.get(name)
    if topic is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
    refuse_above(topic.queue_count, QUEUES_ASKED_MAX, "queues")
    table: dict[QueueKey, dict[str, int]] = {}
    for queue_id in range(topic.queue_count):
        queue = state.store.queue(name, queue_id)
        first, end = state.store.bounds(name, queue_id)
        table[queue_key(state, name, queue_id)] = {
            "lastUpdateTimestamp": store_time_ms(state, queue, end - 1)
            if queue and end > first
            else 0,
            "maxOffset": end,
            "minOffset": first,
        }
    tps = tps_in_minute(state, TOPIC_PUT_NUMS, name, request.now_ms)
    return reply(request.command, body=fastjson.dumps({"offsetTable": table, "topicPutTps": tps}))


def tps_in_minute(state: BrokerState, name: str, key: str, now_ms: int) -> float:
    """Return the increase of a counter per second over the last minute; 0 without a counter."""
    state.collect_statistics(now_ms)
    item = state.statistics.item(name, key)
    return item.over(MINUTE, now_ms).tps if item else 0.0


def queue_key(state: BrokerState, topic: str, queue_id: int) -> QueueKey:
    """Return a queue as a key of a JSON table (`MessageQueue`)."""
    return (
        ("brokerName", state.config.broker_name),
        ("queueId", queue_id),
        ("topic", topic),
    )
