"""What waits at brokers: halves whose transaction has not ended, and messages that wait for a time.

Receives the administration of a cluster. Reads the brokers' own topics as any reader may: a broker
of ours or of Apache has them. Reads a bounded number of the newest messages of each queue, and
keeps no bodies.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from reliable_mq.broker_core.names import (
    HALF_TOPIC,
    OFFSET_SEPARATOR,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    SETTLED_TAG,
    TIMER_TOPIC,
    TRANSACTION_GROUP,
    is_system_topic,
)
from reliable_mq.client.administering.thread_admin import Admin
from reliable_mq.client.administering.topics import QueueStatus
from reliable_mq.errors import NoRoute, NotFound, ReliableMQError
from reliable_mq.limits import DELAY_LEVEL_SECONDS
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.names import RETRY_PREFIX
from reliable_mq.wire.properties import (
    PRODUCER_GROUP,
    REAL_TOPIC,
    RETRY_TOPIC,
    TIMER_DELETED_KEY,
    TIMER_OUT_MS,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_FIRST_OFFSET,
)

HALVES_MAX, OPS_MAX = 1_000, 2_000
"""So many halves of a broker are read from the first that waits, and records of settled ones."""
TIMERS_MAX, LEVEL_MAX = 500, 200
"""So many of the newest messages of a timer queue, and of a delay level."""
_PAGE = 32
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class WaitingHalf(NamedTuple):
    """A half whose transaction has not ended. `checks`: how often its producer was asked."""

    message: ReceivedMessage
    topic: str
    group: str
    stored: datetime
    checks: int


class WaitingTimer(NamedTuple):
    """A message that waits for a time. `group`: for its next attempt; "": it is a new message."""

    message: ReceivedMessage
    topic: str
    group: str
    due: datetime
    where: str


class WaitingRows(NamedTuple):
    """What was found. `notes`: what was not read. `failures`: why brokers did not answer."""

    rows: list[WaitingHalf] | list[WaitingTimer]
    notes: tuple[str, ...]
    failures: Mapping[str, ReliableMQError]


def waiting_halves(admin: Admin) -> WaitingRows:
    """Return the halves whose transaction has not ended, the oldest first.

    Raises:
        Unavailable, RemoteError, ProtocolError: no broker answers.
    """
    queues, failures = _queues(admin, HALF_TOPIC)
    saved = _saved(admin)
    found: list[WaitingHalf] = []
    notes: list[str] = []
    for each in queues:
        if each.queue.queue_id:
            continue
        begin = max(each.first, saved.get(each.queue, 0))
        messages = _forward(admin, each.queue, begin, min(each.end, begin + HALVES_MAX))
        halves = [_without_body(message) for message in messages]
        ops_of = MessageQueue(OP_TOPIC, each.queue.broker_name, 0)
        first_op = saved.get(ops_of, 0)
        settled = set(_settled(_forward(admin, ops_of, first_op, first_op + OPS_MAX)))
        found += _pending(halves, settled)
        if each.end > begin + HALVES_MAX:
            notes.append(
                f"{each.queue.broker_name}: of {each.end - begin:,} halves, the first"
                f" {HALVES_MAX:,} were read"
            )
    return WaitingRows(sorted(found, key=lambda half: half.stored), tuple(notes), failures)


def _pending(halves: Iterable[ReceivedMessage], settled: set[int]) -> list[WaitingHalf]:
    """Return halves that are not settled. A copy of a check-back replaces the half before it."""
    known: dict[tuple[str, int], ReceivedMessage] = {}
    for half in halves:
        who = (half.message_id, half.born_time_ms)
        known.pop(who, None)
        first = half.properties.get(TRANSACTION_FIRST_OFFSET, "")
        if half.queue_offset not in settled and not (first.isdecimal() and int(first) in settled):
            known[who] = half
    return [
        WaitingHalf(
            *(half, half.properties.get(REAL_TOPIC, half.topic)),
            half.properties.get(PRODUCER_GROUP, ""),
            _time(half.store_time_ms),
            _number(half.properties.get(TRANSACTION_CHECK_TIMES, "")),
        )
        for half in known.values()
    ]


def _settled(ops: Iterable[ReceivedMessage]) -> Iterator[int]:
    for op in ops:
        if op.tag == SETTLED_TAG:
            words = op.body.decode("ascii", "replace").split(OFFSET_SEPARATOR)
            yield from (int(word) for word in words if word.isdecimal() and len(word) < 19)


def waiting_timers(admin: Admin, now: datetime) -> WaitingRows:
    """Return the messages that wait at brokers for a time, the next one first.

    Raises:
        Unavailable, RemoteError, ProtocolError: no broker answers.
    """
    found: list[WaitingTimer] = []
    notes: list[str] = []
    queues, failures = _queues(admin, TIMER_TOPIC)
    for each in queues:
        found += _timed(_backward(admin, each, TIMERS_MAX), now)
        if each.end - each.first > TIMERS_MAX:
            notes.append(
                f"{each.queue.broker_name}: the newest {TIMERS_MAX:,} timed messages were looked at"
            )
    queues, more = _queues(admin, SCHEDULE_TOPIC)
    for each in queues:
        if each.queue.queue_id >= len(DELAY_LEVEL_SECONDS):
            continue
        wait = timedelta(seconds=DELAY_LEVEL_SECONDS[each.queue.queue_id])
        waiting = list(_delayed(_backward(admin, each, LEVEL_MAX), wait, now))
        found += waiting
        if len(waiting) >= LEVEL_MAX:
            notes.append(
                f"{each.queue.broker_name}: the newest {LEVEL_MAX} of delay level"
                f" {each.queue.queue_id + 1} were looked at"
            )
    return WaitingRows(
        sorted(found, key=lambda timer: timer.due), tuple(notes), {**failures, **more}
    )


def _timed(messages: Iterable[ReceivedMessage], now: datetime) -> Iterator[WaitingTimer]:
    recalled: set[str] = set()
    for message in messages:
        properties = message.properties
        if TIMER_DELETED_KEY in properties:
            recalled.add(properties[TIMER_DELETED_KEY].rpartition("+")[2])
            continue
        out = properties.get(TIMER_OUT_MS, "")
        topic = properties.get(REAL_TOPIC, "")
        if not (out.isdecimal() and len(out) < 15) or is_system_topic(topic):
            continue
        due = _time(int(out))
        if due > now and message.message_id not in recalled:
            yield _timer(message, due, "timer")


def _delayed(
    messages: Iterable[ReceivedMessage], wait: timedelta, now: datetime
) -> Iterator[WaitingTimer]:
    """Yield those that wait; they are in order of time, the newest first."""
    for message in messages:
        due = _time(message.store_time_ms) + wait
        if due <= now:
            return
        yield _timer(message, due, f"delay level {message.queue.queue_id + 1}")


def _timer(message: ReceivedMessage, due: datetime, what: str) -> WaitingTimer:
    topic = message.properties.get(REAL_TOPIC, "")
    group = topic.removeprefix(RETRY_PREFIX) if topic.startswith(RETRY_PREFIX) else ""
    own = message.properties.get(RETRY_TOPIC, "") if group else topic
    where = f"{message.queue.broker_name}, {what}"
    return WaitingTimer(_without_body(message), own, group, due, where)


def _without_body(message: ReceivedMessage) -> ReceivedMessage:
    """Return a message as a list needs it: thousands of bodies are too much for a page."""
    return msgspec.structs.replace(message, body=b"")


def _queues(admin: Admin, topic: str) -> tuple[list[QueueStatus], dict[str, ReliableMQError]]:
    """Return the queues of a topic that have messages, and why brokers did not answer."""
    try:
        answers = admin.topics.status(topic)
    except (NoRoute, NotFound):  # no broker has ever had such a message
        return [], {}
    return [each for each in answers.value.queues if each.end > each.first], dict(answers.failures)


def _saved(admin: Admin) -> dict[MessageQueue, int]:
    """Return how far brokers have looked at halves, by queue."""
    found: dict[MessageQueue, int] = {}
    for topic in (HALF_TOPIC, OP_TOPIC):
        try:
            rows = admin.offsets.progress(TRANSACTION_GROUP, topic).value.queues
        except (NoRoute, NotFound):
            continue
        found |= {row.queue: row.committed for row in rows}
    return found


def _forward(admin: Admin, queue: MessageQueue, begin: int, end: int) -> Iterator[ReceivedMessage]:
    """Yield the messages of a queue from `begin` to before `end`."""
    while begin < end:
        try:
            page = admin.messages.at(queue, begin, min(_PAGE, end - begin))
        except (NoRoute, NotFound):
            return
        if not page:
            return
        yield from page
        begin = page[-1].queue_offset + 1


def _backward(admin: Admin, status: QueueStatus, most: int) -> Iterator[ReceivedMessage]:
    """Yield at most the newest messages of a queue, the newest first."""
    end, first = status.end, max(status.first, status.end - most)
    while end > first:
        begin = max(first, end - _PAGE)
        page = admin.messages.at(status.queue, begin, end - begin)
        yield from (each for each in reversed(page) if each.queue_offset < end)
        end = begin


def _time(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _number(word: str) -> int:
    return int(word) if word.isdecimal() and len(word) < 9 else 0
