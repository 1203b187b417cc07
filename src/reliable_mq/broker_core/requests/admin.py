"""Topics made and asked for by tools.

Source: Apache RocketMQ `AdminBrokerProcessor`.
"""

import msgspec

from reliable_mq.broker_core.names import is_system_topic, topic_fault
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.topics import TopicConfig
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import TopicConfigHeader


def update_and_create_topic(state: BrokerState, request: Request) -> Command:
    """UPDATE_AND_CREATE_TOPIC."""
    header = TopicConfigHeader.decode(request.command.ext_fields)
    fault = topic_fault(header.topic)
    if not fault and is_system_topic(header.topic):
        fault = f"The topic[{header.topic}] is conflict with system topic."
    if fault:
        return reply(request.command, ResponseCode.INVALID_PARAMETER, fault)
    state.put_topic(
        TopicConfig(
            topic_name=header.topic,
            read_queue_nums=header.read_queue_nums,
            write_queue_nums=header.write_queue_nums,
            perm=header.perm,
            topic_filter_type=header.topic_filter_type,
            topic_sys_flag=header.topic_sys_flag or 0,
            order=header.order or False,
        ),
        request.now_ms,
    )
    return reply(request.command)


def get_topic_config(state: BrokerState, request: Request) -> Command:
    """GET_TOPIC_CONFIG."""
    name = request.command.ext_fields.get("topic", "")
    topic = state.topics.get(name)
    if topic is None:
        return reply(
            request.command,
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic in this broker. topic: {name}",
        )
    return reply(request.command, body=msgspec.json.encode(topic))
