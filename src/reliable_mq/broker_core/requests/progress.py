"""Progress of one group or of all groups, and the content of single queues.

Source: Apache RocketMQ `AdminBrokerProcessor`.
"""

import msgspec

from reliable_mq.broker_core.requests.offsets import store_time_ms
from reliable_mq.broker_core.requests.queue_stats import QueueKey, queue_key, tps_in_minute
from reliable_mq.broker_core.requests.refusal import QUEUES_ASKED_MAX, RequestRefused, refuse_above
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.statistics import GROUP_GET_NUMS
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.topics import TopicConfig
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import ConsumeQueueHeader

_TIMES_QUEUES_MAX = 3_000  # queues with store times per reply; each may need reads of the log
_UNITS_MAX = 4_096  # units per reply; Apache has no limit


def get_consume_stats(state: BrokerState, request: Request) -> Command:
    """GET_CONSUME_STATS: the progress of a group in its topics.

    What is popped and not acknowledged counts as not consumed. (Apache counts it as consumed.)
    """
    ext = request.command.ext_fields
    group = ext.get("consumerGroup", "")
    table: dict[QueueKey, dict[str, int]] = {}
    tps = 0.0
    for name in _topics_asked(state, group, ext.get("topicList", ""), ext.get("topic", "")):
        topic = state.topics.get(name)
        count = topic.read_queue_nums if topic else 0
        refuse_above(len(table) + count, QUEUES_ASKED_MAX, "queues")
        for queue_id in range(count):
            queue = state.store.queue(name, queue_id)
            popped = state.offsets.get(group, name, queue_id) or 0
            consumed = popped - state.popped.count(name, group, queue_id)
            if queue is not None and consumed < popped:
                consumed = max(queue.first, consumed)
            is_kept = queue is not None and queue.first < consumed <= queue.end
            table[queue_key(state, name, queue_id)] = {
                "brokerOffset": queue.end if queue else 0,
                "consumerOffset": consumed,
                "lastTimestamp": store_time_ms(state, queue, consumed - 1)
                if queue is not None and is_kept
                else 0,
                "pullOffset": max(popped, state.offsets.pulled(group, name, queue_id)),
            }
        tps += tps_in_minute(state, GROUP_GET_NUMS, f"{name}@{group}", request.now_ms)
    return reply(request.command, body=fastjson.dumps({"consumeTps": tps, "offsetTable": table}))


def _topics_asked(state: BrokerState, group: str, listed: str, single: str) -> list[str]:
    """Return the requested topics; without a request, the topics of the group."""
    if listed:
        return [name for name in listed.split(";") if name]
    names = [single] if single.strip() else state.offsets.topics_of(group)
    members = state.clients.consumer_group(group)
    if members is None or not members.subscriptions:
        return names
    return [name for name in names if name in members.subscriptions]


def get_broker_consume_stats(state: BrokerState, request: Request) -> Command:
    """GET_BROKER_CONSUME_STATS: the offsets of all groups, on request of ordered topics only."""
    is_order = request.command.ext_fields.get("isOrder", "").lower() == "true"
    stats: list[dict[str, list[object]]] = []
    total = 0
    refuse_above(len(state.groups), QUEUES_ASKED_MAX, "groups")
    count = 0
    for group in state.groups.names():
        of_group: list[object] = []
        for topic in _topics_of(state, group):
            if topic.order or not is_order:
                count += topic.write_queue_nums
                refuse_above(count, QUEUES_ASKED_MAX, "queues")
                table = _offsets_in(state, group, topic)
                total += sum(row["brokerOffset"] - row["consumerOffset"] for row in table.values())
                key = f"{topic.topic_name}@{group}"
                tps = tps_in_minute(state, GROUP_GET_NUMS, key, request.now_ms)
                of_group.append({"consumeTps": tps, "offsetTable": table})
        stats.append({group: of_group})
    body = {
        "brokerAddr": state.config.address,
        "consumeStatsList": stats,
        "totalDiff": total,
        "totalInflightDiff": 0,
    }
    return reply(request.command, body=fastjson.dumps(body))


def _topics_of(state: BrokerState, group: str) -> list[TopicConfig]:
    """Return the topics with offsets of a group; while it is online, only subscribed ones."""
    members = state.clients.consumer_group(group)
    wanted = members.subscriptions if members else None
    names = [name for name in state.offsets.topics_of(group) if not wanted or name in wanted]
    return [topic for topic in map(state.topics.get, names) if topic is not None]


def _offsets_in(
    state: BrokerState, group: str, topic: TopicConfig
) -> dict[QueueKey, dict[str, int]]:
    table = {}
    for queue_id in range(topic.write_queue_nums):
        queue = state.store.queue(topic.topic_name, queue_id)
        consumed = state.offsets.get(group, topic.topic_name, queue_id) or 0
        table[queue_key(state, topic.topic_name, queue_id)] = {
            "brokerOffset": queue.end if queue else 0,
            "consumerOffset": consumed,
            "lastTimestamp": max(0, _stored_ms(state, queue, consumed - 1)),
            "pullOffset": 0,
        }
    return table


def query_consume_time_span(state: BrokerState, request: Request) -> Command:
    """QUERY_CONSUME_TIME_SPAN: the times of a group's messages in each queue of a topic."""
    ext = request.command.ext_fields
    name, group = ext.get("topic", ""), ext.get("group", "")
    topic = state.topics.get(name)
    if topic is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
    refuse_above(topic.write_queue_nums, _TIMES_QUEUES_MAX, "queues")
    spans = []
    for queue_id in range(topic.write_queue_nums):
        queue = state.store.queue(name, queue_id)
        first_ms = _stored_ms(state, queue, queue.first if queue else 0)
        consumed = state.offsets.get(group, name, queue_id)
        waits = queue is not None and (-1 if consumed is None else consumed) < queue.end
        next_ms = _stored_ms(state, queue, -1 if consumed is None else consumed)
        spans.append(
            {
                "consumeTimeStamp": _stored_ms(state, queue, consumed - 1)
                if consumed
                else first_ms,
                "delayTime": request.now_ms - next_ms if waits else 0,
                "maxTimeStamp": _stored_ms(state, queue, queue.end - 1 if queue else -1),
                "messageQueue": dict(queue_key(state, name, queue_id)),
                "minTimeStamp": first_ms,
            }
        )
    return reply(request.command, body=fastjson.dumps({"consumeTimeSpanSet": spans}))


def _stored_ms(state: BrokerState, queue: ConsumeQueue | None, offset: int) -> int:
    """Return when the message at an offset was stored; -1 without such a message."""
    if queue is None or not queue.first <= offset < queue.end:
        return -1
    return store_time_ms(state, queue, offset)


def query_consume_queue(state: BrokerState, request: Request) -> Command:
    """QUERY_CONSUME_QUEUE: the entries of a queue from an index on."""
    header = ConsumeQueueHeader.decode(request.command.ext_fields)
    name, queue_id, index = header.topic, header.queue_id, header.index
    queue = state.store.queue(name, queue_id)
    if queue is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{name} is not exist!")
    if not queue.first <= index < queue.end:
        return reply(request.command, remark=f"Index {index} of {queue_id}@{name} is not exist!")
    body: dict[str, object] = {"maxQueueIndex": queue.end, "minQueueIndex": queue.first}
    if header.consumer_group is not None:
        body |= _filter_of(state, header.consumer_group, name)
    body["queueData"] = [
        {
            "eval": False,
            "physicOffset": unit.commit_log_offset,
            "physicSize": unit.size,
            "tagsCode": unit.tags_code,
        }
        for unit in queue.units(index, max(0, min(header.count, _UNITS_MAX)))
    ]
    return reply(request.command, body=fastjson.dumps(body))


def _filter_of(state: BrokerState, group: str, topic: str) -> dict[str, object]:
    members = state.clients.consumer_group(group)
    subscription = members.subscriptions.get(topic) if members else None
    if subscription is None:
        return {"filterData": f"{group}@{topic} is not online!"}
    return {"filterData": "null", "subscriptionData": msgspec.to_builtins(subscription)}
