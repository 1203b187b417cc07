"""The progress of a slave, as a master that comes back takes it over before anybody is served.

Receives the answers of a slave whose log is the beginning of this one. Changes the offsets, the
delays and the timers. Nothing goes back: what is further here stays. Only offsets that consumers
have committed at the slave count, so that a reset at the master is not undone. A slave of
Apache's cannot tell them apart; its higher offsets count if its table is not older.

Another slave takes over in the same way what the slave that stands in has done.
Source: Apache RocketMQ `BrokerPreOnlineService.syncMetadataReverse`.
"""

from reliable_mq.broker_core.commits_at_slave import CommittedPlace
from reliable_mq.broker_core.delivery import schedule
from reliable_mq.broker_core.offsets import OffsetTable
from reliable_mq.broker_core.requests.tables import DONE_BEFORE, DONE_MS, OF_SLAVE
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.timer_checkpoint import timer_checkpoint_from
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request

CODES = (
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.GET_TIMER_CHECK_POINT,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
)


def questions() -> list[Command]:
    """Return the requests for the progress of a slave."""
    return [request(code, {OF_SLAVE: "true"}) for code in CODES]


def take_progress(state: BrokerState, code: int, answer: Command, now_ms: int) -> None:
    """Take the answer to one of `questions` over.

    Raises:
        ValueError, MsgspecError: when it is no such table. Nothing was changed then.
    """
    if code == RequestCode.GET_ALL_DELAY_OFFSET:
        _take_delays(state, answer.body.decode(), now_ms)
    elif code == RequestCode.GET_TIMER_CHECK_POINT:
        _take_timers(state, answer, now_ms)
    else:
        _take_offsets(state, answer)


def _take_delays(state: BrokerState, text: str, now_ms: int) -> None:
    own = state.schedule
    other = schedule.DelaySchedule(own.delays_ms)
    other.load(text)
    other.settle(state.store)  # nothing behind the end of a queue
    for level, offset in other.saved().items():
        if offset > own.next_of(level):
            own.delivered_elsewhere(level, offset, now_ms)
    if own.is_dirty:
        state.files.change(schedule.PATH, own.dump)


def _take_timers(state: BrokerState, answer: Command, now_ms: int) -> None:
    fields = answer.ext_fields
    if DONE_MS in fields:
        done_before, done_ms = int(fields[DONE_BEFORE]), int(fields[DONE_MS])
    else:  # Apache's slave: whole slots
        told = timer_checkpoint_from(answer.body)
        done_before = min(told.queue_offset, told.master_queue_offset)
        done_ms = told.read_ms
    if state.config.is_slave:
        state.timers.followed.delivered_elsewhere(done_before, done_ms)
    else:
        state.timers.take_back(done_before, done_ms, now_ms)


def _take_offsets(state: BrokerState, answer: Command) -> None:
    table = OffsetTable()
    table.load(answer.body.decode())
    own = state.offsets
    is_of_here = OF_SLAVE in answer.ext_fields
    if not is_of_here and own.version.counter > table.version.counter:
        return
    for group, topic, queue_id, offset in table.rows():
        queue = state.store.queue(topic, queue_id)
        known = own.get(group, topic, queue_id)
        if queue is None or offset > queue.end or (known is not None and known >= offset):
            continue
        if own.may_commit(group, topic, (queue_id,)):
            own.commit(group, topic, queue_id, offset)
            state.commits_at_slave.note(CommittedPlace(group, topic, queue_id), offset)
