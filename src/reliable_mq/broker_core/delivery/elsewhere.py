"""What a slave delivers to other masters while its own is away: delayed and timed messages.

Receives the progress of the absent master, as this slave knows it, and which messages were
accepted. Returns the messages that are due, and notes the progress. It does not know where they go.
A slave appends nothing to its log, so what is delivered is known by the progress only.

Invariant L11: a line counts as delivered only what other masters have accepted, in its order.
Source: Apache RocketMQ `ScheduleMessageService`, `TimerMessageStore`, `EscapeBridge`.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from reliable_mq.broker_core.delivery.schedule import DelaySchedule
from reliable_mq.broker_core.delivery.timed_elsewhere import TimedElsewhere
from reliable_mq.broker_core.names import is_retry_topic
from reliable_mq.broker_core.store.appender import StoredMessage
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import SendMessageHeaderV2
from reliable_mq.wire.properties import (
    DELAY,
    PRODUCER_GROUP,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    decode_properties,
    encode_properties,
)
from reliable_mq.wire.record import HOST_V6_FLAGS, TRANSACTION_MASK

WINDOW = 32
"""Messages of a line that are on their way at the same time. After a kill so many come again."""
TIMED = 0  # the line of the timed messages; others have the number of their delay level
_PAUSES = (0.1, 5.0)  # seconds until a message that nobody took is sent again: the least, the most
# The other master would let the message wait again.
_SPENT = frozenset({DELAY, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS, TRANSACTION_PREPARED})
_STORED = frozenset(
    {ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE}
)


class Elsewhere(NamedTuple):
    """One message for another master; `number` is its place in its line."""

    line: int
    number: int
    message: StoredMessage


class _Line:
    """The messages of a line that are handed out, in order, and whether they were accepted."""

    def __init__(self) -> None:
        self.given: dict[int, bool] = {}
        self.again: list[tuple[float, int]] = []  # a heap: when, and which
        self.waiting: dict[int, Elsewhere] = {}  # those of `again`
        self.failures = 0

    @property
    def has_room(self) -> bool:
        """Whether the line goes on: nothing of it failed, and not too much is on its way."""
        return not self.waiting and len(self.given) < WINDOW

    def accept(self, number: int) -> int | None:
        """Note an acceptance; return the last number before which all are, if that is new."""
        self.failures = 0
        self.given[number] = True
        last = None
        for first, is_accepted in list(self.given.items()):
            if not is_accepted:
                break
            del self.given[first]
            last = first
        return last

    def refuse(self, one: Elsewhere, now: float) -> None:
        """Have a message sent again after a while."""
        least, most = _PAUSES
        pause = min(least * 2.0 ** min(self.failures, 10), most)
        self.failures += 1
        self.waiting[one.number] = one
        heapq.heappush(self.again, (now + pause, one.number))

    def due_again(self, now: float) -> Iterator[Elsewhere]:
        """Yield the messages whose pause is over."""
        while self.again and self.again[0][0] <= now:
            yield self.waiting.pop(heapq.heappop(self.again)[1])


class DeliveriesElsewhere:
    """The deliveries of one slave, from the moment when it stands in until it no longer does.

    Args:
        store: it has the messages.
        schedule: the progress of the delay levels.
        timed: the timed messages.
    """

    def __init__(self, store: MessageStore, schedule: DelaySchedule, timed: TimedElsewhere) -> None:
        self._store = store
        self._schedule = schedule
        self._timed = timed
        self._lines = {line: _Line() for line in (TIMED, *schedule.delays_ms)}
        self._next = {level: schedule.next_of(level) for level in schedule.delays_ms}
        self.accepted = 0  # messages
        self.under_way = 0

    def invariants(self) -> None:
        """L11; see the head of the module."""
        for level, line in self._lines.items():
            if level != TIMED and line.given and min(line.given) <= self._schedule.next_of(level):
                raise InvariantBroken(f"L11: level {level} counts {min(line.given)} as delivered")

    def take(self, now_ms: int, now: float) -> list[Elsewhere]:
        """Return the messages to send now. Each must be `accepted` or `refused` later.

        Args:
            now_ms: the time.
            now: seconds of a monotonic clock.
        """
        found: list[Elsewhere] = []
        for number, line in self._lines.items():
            found += line.due_again(now)
            if line.has_room:
                taken = self._timed_due(line, now_ms) if number == TIMED else None
                found += self._delayed_due(number, line, now_ms) if taken is None else taken
        self.under_way += len(found)
        return found

    def _delayed_due(self, level: int, line: _Line, now_ms: int) -> Iterator[Elsewhere]:
        room = WINDOW - len(line.given)
        due = self._schedule.due(self._store, level, self._next[level], now_ms, room)
        for number, message in due:
            self._next[level] = number
            line.given[number] = False
            if message is None:
                self._note(level, line.accept(number), now_ms)
            else:
                yield Elsewhere(level, number, message)

    def _timed_due(self, line: _Line, now_ms: int) -> list[Elsewhere]:
        room = WINDOW - len(line.given)
        found = [Elsewhere(TIMED, *due) for due in self._timed.take(now_ms, room)]
        line.given.update((each.number, False) for each in found)
        if not line.given:
            self._timed.done(None, now_ms)
        return found

    def answered(self, one: Elsewhere, code: int, now_ms: int, now: float) -> bool:
        """Note the answer of another master; return whether it has the message."""
        self.under_way -= 1
        line = self._lines[one.line]
        if code not in _STORED:
            line.refuse(one, now)
            return False
        self.accepted += 1
        self._note(one.line, line.accept(one.number), now_ms)
        return True

    def _note(self, line: int, last: int | None, now_ms: int) -> None:
        if line == TIMED:
            given = self._lines[TIMED].given
            self._timed.done(next(iter(given), None), now_ms)
        elif last is not None:
            self._schedule.delivered_elsewhere(line, last, now_ms)


class TopicQueues(msgspec.Struct, frozen=True):
    """Queues of a topic at another master that take messages."""

    address: str
    count: int


def queue_for(
    places: list[TopicQueues], queue_id: int, skip: Callable[[str], bool]
) -> tuple[str, int] | None:
    """Return the address and the queue for a message of queue `queue_id`; None: there is none.

    Messages of one queue go to one queue, as long as the same masters are there.
    `skip`: whether a master does not answer at the moment.
    """
    open_ones = [each for each in places if not skip(each.address)] or places
    total = sum(each.count for each in open_ones)
    if not total:
        return None
    number = queue_id % total
    for each in open_ones:
        if number < each.count:
            return each.address, number
        number -= each.count
    return None


def send_of(message: StoredMessage, queue_id: int, producer_group: str) -> Command:
    """Return the request that sends a message to another master, as a client would.

    Its time of waiting is over. A message for another attempt of its consumers keeps its number of
    attempts, and is not moved to the dead letters for it.
    """
    properties = decode_properties(message.properties)
    kept = {name: value for name, value in properties.items() if name not in _SPENT}
    is_retry = is_retry_topic(message.topic)
    header = SendMessageHeaderV2(
        producer_group=properties.get(PRODUCER_GROUP) or producer_group,
        topic=message.topic,
        default_topic="",
        default_topic_queue_nums=0,
        queue_id=queue_id,
        sys_flag=message.sys_flag & ~(HOST_V6_FLAGS | TRANSACTION_MASK),
        born_timestamp=message.born_time_ms,
        flag=message.flag,
        properties=encode_properties(kept).decode(),
        reconsume_times=message.reconsume_times,
        unit_mode=False,
        max_reconsume_times=message.reconsume_times + 1 if is_retry else None,
        batch=False,
    )
    return request(RequestCode.SEND_MESSAGE_V2, header.to_ext(), message.body)
