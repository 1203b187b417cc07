"""The tables of a master, as a slave takes them over.

Receives the replies of the master to the requests for whole tables. Changes the slave's tables, and
has them saved. What is as the slave has it is left alone: the tables come again every few seconds.
Source: Apache RocketMQ `SlaveSynchronize`.
"""

from collections.abc import Callable

from reliable_mq.broker_core.delivery import schedule
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request

_Take = Callable[[BrokerState, str, int], None]


def table_requests() -> list[Command]:
    """Return the requests for the tables, in the order in which they are to be taken over."""
    return [request(code) for code in _TAKES]


def take_table(state: BrokerState, code: int, body: bytes, now_ms: int) -> None:
    """Take over one table, from the reply to its request.

    Raises:
        ValueError, MsgspecError: when the reply is no such table. The slave's table is as before.
    """
    _TAKES[RequestCode(code)](state, body.decode(), now_ms)


def _take_topics(state: BrokerState, text: str, now_ms: int) -> None:
    topics = state.topics
    gone, changed = topics.take_over(text)
    for name in gone:
        topics.remove(name, now_ms)
    if gone or changed:
        state.topics_changed(changed)


def _take_groups(state: BrokerState, text: str, _now_ms: int) -> None:
    if state.groups.take_over(text):
        state.groups_changed()


def _take_offsets(state: BrokerState, text: str, _now_ms: int) -> None:
    state.offsets.load(text)


def _take_delays(state: BrokerState, text: str, _now_ms: int) -> None:
    before = state.schedule.saved()
    state.schedule.load(text)
    if state.schedule.saved() != before:
        state.files.change(schedule.PATH, state.schedule.dump)


_TAKES: dict[RequestCode, _Take] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: _take_topics,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _take_groups,
    RequestCode.GET_ALL_CONSUMER_OFFSET: _take_offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: _take_delays,
}
