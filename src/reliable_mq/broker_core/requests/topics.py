"""Requests of clients and tools that create, change, read and delete topics.

Source: Apache RocketMQ `AdminBrokerProcessor`, `AttributeParser`, `AttributeUtil`,
`TopicAttributes`.
"""

from collections import deque
from collections.abc import Iterator

import msgspec

from reliable_mq.broker_core.long_works import Steps, parts_of
from reliable_mq.broker_core.names import EVENT_TOPIC, pop_retry_topic, topic_fault
from reliable_mq.broker_core.requests import message_type
from reliable_mq.broker_core.requests.consumer_rules import forget_modes
from reliable_mq.broker_core.requests.refusal import RequestRefused, refuse_above, table_full
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.broker_core.store.deletions import PATH as DELETIONS_PATH
from reliable_mq.broker_core.store.disk import is_out_of_room
from reliable_mq.broker_core.topics import TopicConfig
from reliable_mq.decodable import decodable
from reliable_mq.errors import StoreError
from reliable_mq.limits import ATTRIBUTES_LENGTH_MAX, QUEUES_MAX, ROWS_MAX
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import TopicConfigHeader
from reliable_mq.wire.peer_texts import read_json

_TOPICS_AT_ONCE = 20
_TOPICS_US = 100  # microseconds that so many topics take
_FILTER_TYPES = frozenset({"SINGLE_TAG", "MULTI_TAG"})
# The supported values of each attribute. Apache's other values are refused, not ignored.
_ATTRIBUTE_VALUES = {
    message_type.ATTRIBUTE: frozenset(
        {"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", message_type.MIXED}
    ),
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
}


def update_and_create_topic(state: BrokerState, request: Request) -> Command | None:
    """UPDATE_AND_CREATE_TOPIC. An equal topic is not changed."""
    ext = request.command.ext_fields
    is_order = ext.get("order", "").lower() == "true"  # as in Java: any other text is false
    header = TopicConfigHeader.decode({**ext, "order": "true" if is_order else "false"})
    fault = topic_fault(header.topic)
    if fault:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
    _refuse_system_topic(state, header.topic)
    _refuse_filter_type(header.topic_filter_type)
    known = state.topics.get(header.topic)
    topic = TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=header.topic_filter_type,
        topic_sys_flag=header.topic_sys_flag or 0,
        order=header.order or False,
        attributes=_changed_attributes(state, known, header.attributes or ""),
    )
    _refuse_queue_count(topic)
    if topic == known and topic.topic_name not in state.new_topics:
        return reply(request.command)
    state.pressure.check_tables()
    if topic != known:
        if not state.topics.has_room(topic):
            raise table_full("topics")
        new = state.creators.refuse("topic", [topic.topic_name], request.user, state.config)
        state.put_topic(topic, request.now_ms)
        state.creators.note("topic", new, request.user)
    state.reply_when_registered(request, reply(request.command))
    return None


@decodable
class _TopicList(msgspec.Struct):
    topics: list[TopicConfig] = msgspec.field(name="topicConfigList")


@decodable
class _UnreadList(msgspec.Struct):
    topics: list[msgspec.Raw] = msgspec.field(name="topicConfigList")


_decode_unread = msgspec.json.Decoder(_UnreadList).decode
_decode_topic = msgspec.json.Decoder(TopicConfig).decode


def _listed(body: bytes) -> tuple[int, Iterator[TopicConfig]]:
    """Return the number of topics in a body, and the topics, each decoded when it is wanted."""
    try:
        unread = _decode_unread(body).topics
    except msgspec.DecodeError:  # not standard JSON, or an error to be told
        read = msgspec.convert(read_json(body), _TopicList).topics
        return len(read), iter(read)
    return len(unread), map(_decode_topic, unread)


def update_and_create_topic_list(state: BrokerState, request: Request) -> Steps[None]:
    """UPDATE_AND_CREATE_TOPIC_LIST: all topics, or none if one is faulty.

    The name of an attribute begins with its sign, + or -, as in the header of a single topic.
    """
    count, listed = _listed(request.command.body)
    refuse_above(count, ROWS_MAX, "topics")
    topics: list[TopicConfig] = []
    for number, wanted in enumerate(listed):
        if number % _TOPICS_AT_ONCE == 0:
            yield _TOPICS_US
        topics.append(_checked(state, wanted))
    state.pressure.check_tables()
    for part in parts_of(topics):
        if not all(map(state.topics.has_room, part)):
            raise table_full("topics")
        yield _TOPICS_US
    names = [topic.topic_name for topic in topics]
    new = state.creators.refuse("topic", names, request.user, state.config)
    state.creators.note("topic", new, request.user)  # at once: no request passes the limit between
    yield _TOPICS_US
    held: deque[tuple[list[str], list[str]]] = deque()
    try:
        for part_of_names in parts_of(names):  # messages may come before all are in the table
            held.append((part_of_names, state.hold_topics(part_of_names)))
            yield _TOPICS_US
        for part in parts_of(topics, _TOPICS_AT_ONCE):
            for topic in part:
                state.topics.set_topic(topic, request.now_ms)
            yield _TOPICS_US
        while held:
            state.topics_changed(*held.popleft())
            yield _TOPICS_US
    finally:
        while held:
            state.topics_changed(*held.popleft())
    state.reply_when_registered(request, reply(request.command))


def _checked(state: BrokerState, wanted: TopicConfig) -> TopicConfig:
    """Return a listed topic with its attributes.

    Raises:
        RequestRefused: when there is a fault in it.
    """
    fault = topic_fault(wanted.topic_name)
    if fault:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, fault)
    _refuse_system_topic(state, wanted.topic_name)
    _refuse_filter_type(wanted.topic_filter_type)
    _refuse_queue_count(wanted)
    changes = ",".join(
        f"{name}={value}" if name.startswith("+") else name
        for name, value in wanted.attributes.items()
    )
    attributes = _changed_attributes(state, state.topics.get(wanted.topic_name), changes)
    return msgspec.structs.replace(wanted, attributes=attributes)


def _refuse_filter_type(filter_type: str) -> None:
    if filter_type not in _FILTER_TYPES:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"topicFilterType = [{filter_type}] value invalid"
        )


def _refuse_queue_count(topic: TopicConfig) -> None:
    fewest = min(topic.read_queue_nums, topic.write_queue_nums)
    if not 0 <= fewest <= topic.queue_count <= QUEUES_MAX:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"{topic}: a topic has 0 to {QUEUES_MAX} queues",
        )


def _refuse_system_topic(state: BrokerState, name: str) -> None:
    if state.topics.is_system(name):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic."
        )


def _changed_attributes(
    state: BrokerState, topic: TopicConfig | None, changes: str
) -> dict[str, str]:
    """Return a topic's attributes after `+name=value,-name`."""
    refuse_above(len(changes), ATTRIBUTES_LENGTH_MAX, "characters of attributes")
    attributes = dict(topic.attributes) if topic else {}
    for change in filter(None, changes.split(",")):
        sign, name, value = change[0], *change[1:].partition("=")[::2]
        if sign not in "+-" or (sign == "+") != ("=" in change):
            raise _attribute_fault(
                f"add/alter attribute format is wrong: {change.partition('=')[0]}"
            )
        if name not in _ATTRIBUTE_VALUES:
            raise _attribute_fault(f"unsupported key: {name}")
        if sign == "-":
            if name not in attributes:
                raise _attribute_fault(f"attempt to delete a nonexistent key: {name}")
            del attributes[name]
            continue
        is_mixed = (name, value) == (message_type.ATTRIBUTE, message_type.MIXED)
        if is_mixed and not state.config.mixed_message_type:
            raise RequestRefused(
                ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported."
            )
        if value not in _ATTRIBUTE_VALUES[name]:
            allowed = _ATTRIBUTE_VALUES[name]
            if not state.config.mixed_message_type:
                allowed -= {message_type.MIXED}
            raise _attribute_fault(f"value is not in set: {sorted(allowed)}")
        attributes[name] = value
    return attributes


def _attribute_fault(what: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, what)


def get_topic_config(state: BrokerState, request: Request) -> Command:
    """GET_TOPIC_CONFIG."""
    name = request.command.ext_fields.get("topic", "")
    topic = state.topics.get(name)
    if topic is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}"
        )
    return reply(request.command, body=fastjson.dumps(msgspec.to_builtins(topic)))


def delete_topic_in_broker(state: BrokerState, request: Request) -> None:
    """DELETE_TOPIC_IN_BROKER: delete the topic, its messages and its offsets.

    It succeeds for an unknown topic, too. The records stay in the log but are invisible; see
    `store.deletions`. Delayed messages are not in the topic yet: they are delivered later.
    """
    name = request.command.ext_fields.get("topic", "")
    if not name.strip():
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, "The specified topic is blank.")
    _refuse_system_topic(state, name)
    state.pressure.check_tables()
    for retry in _pop_retries(state, name):
        _delete(state, retry, request.now_ms)
    _delete(state, name, request.now_ms)
    # First: after a crash the topic may still exist, but it must not be gone without the deletion.
    state.files.change(DELETIONS_PATH, state.store.deletions.dump, is_first=True)
    state.reply_when_saved(request, reply(request.command))


def _pop_retries(state: BrokerState, name: str) -> list[str]:
    """Return the topics in which popped messages of a topic come back."""
    return [
        retry
        for group in state.offsets.groups_of(name)
        for is_v2 in (False, True)
        if (retry := pop_retry_topic(name, group, is_v2=is_v2)) in state.topics.by_name
    ]


def _delete(state: BrokerState, name: str, now_ms: int) -> None:
    """Delete one topic."""
    if state.topics.remove(name, now_ms):
        state.topics_changed()
    state.creators.forget("topic", name)
    state.offsets.remove_topic(name)
    state.statistics.forget_topic(name)
    forget_modes(state, topic=name)
    state.popped.forget(topic=name)
    state.orders.forget(topic=name)
    if state.store.delete_topic(name):
        _store_event(state, name, now_ms)


def _store_event(state: BrokerState, topic: str, now_ms: int) -> None:
    """Store an event behind the deleted messages, if there is room.

    When Apache's broker opens a store, it builds units for all records after the last one that a
    queue knows. Without this event these could be the deleted records.
    """
    event = StoredMessage(
        topic=EVENT_TOPIC,
        queue_id=0,
        body=f"the topic {topic} was deleted".encode(),
        properties=b"",
        flag=0,
        sys_flag=0,
        born_time_ms=now_ms,
        born_host=state.host,
    )
    try:
        state.append(event, now_ms)
    except StoreError as error:
        if not is_out_of_room(error):
            raise
