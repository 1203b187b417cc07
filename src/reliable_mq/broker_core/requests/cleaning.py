"""What tools ask to be cleaned at once. The files go with the next rounds of housekeeping.

Source: Apache RocketMQ `AdminBrokerProcessor`. Two things are done more carefully: a queue whose
messages are all gone keeps counting where it was, as a replay of the log could not tell messages
from older ones of the same number; and the queues of a topic that is no more go when the log holds
none of their messages any more.
"""

from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.command import Command, reply


def delete_expired_commit_log(state: BrokerState, request: Request) -> Command:
    """DELETE_EXPIRED_COMMITLOG: old files of the log go, whatever the hour."""
    state.retention.begin_manual()
    return reply(request.command)


def clean_expired_consume_queue(state: BrokerState, request: Request) -> Command:
    """CLEAN_EXPIRED_CONSUMEQUEUE: every queue begins where the log begins."""
    state.store.upkeep.trim_all()
    return reply(request.command)


def clean_unused_topic(state: BrokerState, request: Request) -> Command:
    """CLEAN_UNUSED_TOPIC: queues of topics that are no more go."""
    state.wants_unused_dropped = True
    return reply(request.command)
