"""Clean-up on request of tools. The next rounds of housekeeping remove the files.

Source: Apache RocketMQ `AdminBrokerProcessor`. Two things are done more carefully. A queue without
messages keeps its offsets; otherwise a replay of the log could confuse new messages with old ones
of the same number. The queues of a deleted topic are removed only when the log has none of their
messages.
"""

from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.command import Command, reply


def delete_expired_commit_log(state: BrokerState, request: Request) -> Command:
    """DELETE_EXPIRED_COMMITLOG: remove expired log files now, at any hour."""
    state.retention.begin_manual()
    return reply(request.command)


def clean_expired_consume_queue(state: BrokerState, request: Request) -> Command:
    """CLEAN_EXPIRED_CONSUMEQUEUE: trim every queue to the start of the log."""
    state.store.upkeep.trim_all()
    return reply(request.command)


def clean_unused_topic(state: BrokerState, request: Request) -> Command:
    """CLEAN_UNUSED_TOPIC: remove the queues of deleted topics."""
    state.wants_unused_dropped = True
    return reply(request.command)
