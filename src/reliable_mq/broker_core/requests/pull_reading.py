"""Pulls that are not the usual one: some messages are not wanted, are gone, large or damaged.

Records that are neighbours in the log are read together. Around damage each record is looked at.
Source: Apache RocketMQ `DefaultMessageStore.getMessage`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from reliable_mq.broker_core.filter.sql92 import Filter
from reliable_mq.broker_core.groups import GroupConfig
from reliable_mq.broker_core.requests.damaged import sound_records
from reliable_mq.broker_core.requests.filtered_pull import scan
from reliable_mq.broker_core.requests.offsets import is_young
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, QueueUnit
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.long_frame import LONG_SIZE_MIN, LongBody
from reliable_mq.wire.record import RECORD_SIZE_MIN, is_message
from reliable_mq.wire.record_scan import claimed_size_at, holds_records, is_record_size

FOUND = "FOUND"
# Units scanned for one pull: Apache's maxFilterMessageSize, 16,000 bytes. Apache scans more if the
# client asks for more; here no client may block the others with a large number.
_SCAN_MAX = 800


class Found(NamedTuple):
    """The messages that a pull finds, or why there are none; and where the next pull begins."""

    code: ResponseCode
    status: str
    next_offset: int
    body: bytes | LongBody = b""
    messages: int = 0  # messages in the body
    work: int = 0  # microseconds besides what `scan_cost` knows


def read(
    state: BrokerState,
    queue: ConsumeQueue,
    header: PullMessageHeader,
    tags: frozenset[int] | None,
) -> Found:
    """Read records of the queue; neighbours in the log are read in one piece.

    The first record is returned whatever its size. Then the limits of number and size apply.
    """
    log = state.store.log
    log_start = log.start
    config = state.config
    count_max = max(1, min(header.max_msg_nums, config.pull_count_max))
    size_max = min(header.max_msg_bytes or config.pull_size_max, config.pull_size_max)
    units = queue.units(header.queue_offset, count_max)
    if not units:
        return Found(ResponseCode.PULL_NOT_FOUND, "OFFSET_FOUND_NULL", header.queue_offset)
    next_offset = header.queue_offset
    spans: list[tuple[int, int]] = []
    begin = end = total = count = last = 0
    numbers: list[int] = []
    status = "NO_MATCHED_MESSAGE"
    is_odd, known_until = False, log_start
    wanted = units if tags is None else _more_units(queue, header.queue_offset, units, count_max)
    for unit in wanted:
        if unit.commit_log_offset < known_until or not is_record_size(unit.size):
            is_odd = True  # it is expired, or it or its predecessor is damaged
        known_until = unit.commit_log_offset + unit.size
        if tags is None or unit.tags_code in tags:
            if count == count_max or (count and total + unit.size > size_max):
                break
            if unit.commit_log_offset < log_start:
                status = "MESSAGE_WAS_REMOVING"
            else:
                if unit.commit_log_offset != end:
                    if end > begin:
                        spans.append((begin, end))
                    begin = unit.commit_log_offset
                end = unit.commit_log_offset + unit.size
                total += unit.size
                count += 1
                numbers.append(next_offset)
                last = unit.size
        next_offset += 1
    if is_odd:
        return _around_damage(state, queue, header.queue_offset, next_offset, tags, status)
    if not count:
        return Found(ResponseCode.PULL_RETRY_IMMEDIATELY, status, next_offset)
    spans.append((begin, end))
    body = _sound_body(log, spans, last, header.queue_id, numbers)
    if body is None:
        return _around_damage(state, queue, header.queue_offset, next_offset, tags, status)
    return Found(ResponseCode.SUCCESS, FOUND, next_offset, body, count)


def _sound_body(
    log: CommitLog, spans: list[tuple[int, int]], last: int, queue_id: int, numbers: list[int]
) -> bytes | LongBody | None:
    """Return the records between log offsets; None if there may be damage.

    Of one long record only the head is read here. `last` is the size of the last record, `numbers`
    are the queue offsets.
    """
    if not all(log.damage.is_excluded(*span) for span in spans):
        return None
    if len(numbers) == 1 and last > LONG_SIZE_MIN:
        begin = spans[0][0]
        head = log.read(begin, RECORD_SIZE_MIN)
        if claimed_size_at(memoryview(head), 0, begin) != last:
            return None
        body: bytes | LongBody = LongBody(last, log.pieces(begin, last))
        return body if is_message(head, queue_id, numbers[0]) else None
    body = b"".join([log.read(begin, end - begin) for begin, end in spans])
    is_sound = (
        holds_records(body, len(numbers))
        and is_message(body, queue_id, numbers[0])
        and is_message(body[-last:], queue_id, numbers[-1])
    )
    return body if is_sound else None


def _around_damage(
    state: BrokerState,
    queue: ConsumeQueue,
    begin: int,
    end: int,
    tags: frozenset[int] | None,
    status: str,
) -> Found:
    """Read again, record by record, between two offsets of the queue."""
    records = sound_records(state.store, queue, begin, end, tags)
    if not records:
        return Found(ResponseCode.PULL_RETRY_IMMEDIATELY, status, end)
    return Found(ResponseCode.SUCCESS, FOUND, end, b"".join(records), len(records))


def read_filtered(
    state: BrokerState, queue: ConsumeQueue, header: PullMessageHeader, wanted: Filter
) -> Found:
    config = state.config
    count_max = max(1, min(header.max_msg_nums, config.pull_count_max))
    next_offset, records, status, work = scan(
        state.store,
        queue,
        wanted,
        header.queue_offset,
        scan_max=max(_SCAN_MAX, count_max),
        count_max=count_max,
        size_max=min(header.max_msg_bytes or config.pull_size_max, config.pull_size_max),
    )
    if not records:
        return Found(ResponseCode.PULL_RETRY_IMMEDIATELY, status, next_offset, work=work)
    body, count = b"".join(records), len(records)
    return Found(ResponseCode.SUCCESS, FOUND, next_offset, body, count, work)


def _more_units(
    queue: ConsumeQueue, offset: int, units: list[QueueUnit], count_max: int
) -> Iterator[QueueUnit]:
    """Yield the units, and the following ones up to the scan limit: most may not be wanted."""
    end = offset + max(_SCAN_MAX, count_max)
    while units:
        yield from units
        offset += len(units)
        units = queue.units(offset, min(2 * len(units), end - offset))


def broker_to_read(
    state: BrokerState, queue: ConsumeQueue | None, found: Found, group: GroupConfig | None
) -> int:
    """Return the id of the broker from which a group must read next, if slaves may be read.

    A group that reads messages which are probably not in memory gets the broker in its settings.
    """
    group = group or GroupConfig()
    last = found.next_offset - 1
    is_read = found.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
    is_slow = (
        is_read
        and queue is not None
        and queue.first <= last < queue.end
        and not is_young(state, queue.unit(last).commit_log_offset)
    )
    return group.which_broker_when_consume_slowly if is_slow else group.broker_id
