"""Pulls with a property filter: the broker reads each record to decide whether it matches.

Source: Apache RocketMQ `DefaultMessageStore.getMessage`, `ExpressionMessageFilter`,
`PullRequestHoldService.notifyMessageArriving`.
"""

from typing import NamedTuple

from reliable_mq.broker_core.delivery.long_poll import WaitingPull, Wanted
from reliable_mq.broker_core.filter.sql92 import Filter
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue, QueueUnit
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.errors import InvariantBroken, RecordError
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.record import RECORD_HEAD_SIZE_MAX, decode_record, is_message
from reliable_mq.wire.record_head import body_end_in, properties_behind_body
from reliable_mq.wire.record_scan import holds_records, is_record_size

log = limited_log(__name__)

_UNITS_AT_ONCE = 100
_WAKE_SCAN_MAX = 800  # the same limit as for a pull
# Cost limits of one scan: filter parts to evaluate, and bytes of records to read.
_PARTS_MAX = 10_000
_RECORD_COST = 20  # microseconds per record; each part of the filter adds one
_UNITS_FOR_COST = 3  # units that are compared by tag hash in one microsecond
_READ_SIZE_MAX = 8 * 1024 * 1024
_JUDGED_SIZE_MAX = 64 * 1024  # bytes that are counted for one record at most
_SEARCH_WORK_MAX = 10_000  # microseconds of CONTAINS in one scan
_SEARCHED_IN_US = 64  # characters, at worst: "aab" in "aaaa…"


class FilterResult(NamedTuple):
    """The records that a filter accepts. `status` is the reason if there are none.

    `work`: microseconds that CONTAINS may have taken, at worst.
    """

    next_offset: int
    records: list[bytes]
    status: str
    work: int


def scan(
    store: MessageStore,
    queue: ConsumeQueue,
    wanted: Filter,
    begin: int,
    *,
    scan_max: int,
    count_max: int,
    size_max: int,
) -> FilterResult:
    """Return the accepted records from a queue offset on, and the offset of the next pull.

    The first record is returned whatever its size. Then the limits of number and size apply, also
    to records that are not accepted. A large filter, or large records, reduce the number of
    scanned records, and so do CONTAINS in long properties.
    """
    offset, end, total = begin, begin + min(scan_max, 1 + _PARTS_MAX // wanted.parts), 0
    to_read, work = _READ_SIZE_MAX, 0
    known_until = store.log.start
    records: list[bytes] = []
    status = "NO_MATCHED_MESSAGE"
    while units := queue.units(offset, min(_UNITS_AT_ONCE, end - offset)):
        for unit in units:
            if records and (len(records) == count_max or total + unit.size > size_max):
                return FilterResult(offset, records, status, work)
            if to_read <= 0 or work >= _SEARCH_WORK_MAX:
                return FilterResult(offset, records, status, work)
            to_read -= min(unit.size, _JUDGED_SIZE_MAX)
            if unit.commit_log_offset < store.log.start:
                status = "MESSAGE_WAS_REMOVING"
            is_next = unit.commit_log_offset >= known_until and is_record_size(unit.size)
            record, size = (_plain if is_next else _sought)(store, queue, offset, unit, wanted)
            work += wanted.searches * size // _SEARCHED_IN_US
            if record:
                records.append(record)
                total += len(record)
            known_until = unit.commit_log_offset + unit.size
            offset += 1
    return FilterResult(offset, records, status, work)


def _plain(
    store: MessageStore, queue: ConsumeQueue, number: int, unit: QueueUnit, wanted: Filter
) -> tuple[bytes | None, int]:
    """Return a record if its properties match, and the size of its properties.

    Its body, which may be large, is read only for a match.
    """
    commit_log = store.log
    begin, size = unit.commit_log_offset, unit.size
    try:
        head = commit_log.read(begin, min(RECORD_HEAD_SIZE_MAX, size))
        body_end = body_end_in(head)
        tail = commit_log.read(begin + body_end, max(0, size - body_end))
        if is_message(head, queue.queue_id, number):
            if not wanted.matches(properties_behind_body(head, tail)):
                return None, len(tail)
            record = commit_log.read(begin, size)
            if holds_records(record, 1) and commit_log.damage.is_excluded(begin, begin + size):
                return record, len(tail)
    except RecordError:
        pass  # not a record; `_sought` logs the damage
    return _sought(store, queue, number, unit, wanted)


def _sought(
    store: MessageStore, queue: ConsumeQueue, number: int, _unit: QueueUnit, wanted: Filter
) -> tuple[bytes | None, int]:
    """Return the record of a message if it is readable and matches, even if its unit is wrong."""
    record = store.reader.record(queue, number)
    found = decode_record(record) if record else None
    if found is None:
        return None, 0
    is_wanted = wanted.matches(found.property_map())
    return record if is_wanted else None, len(found.properties)


def scan_cost(wanted: Wanted, count: int) -> int:
    """Return how many microseconds it takes to scan `count` messages."""
    if isinstance(wanted, Filter):
        return count * (_RECORD_COST + wanted.parts)
    return 0 if wanted is None else count // _UNITS_FOR_COST


class PullDecision(NamedTuple):
    """Whether a pull must be answered now, and the cost of this decision in microseconds."""

    is_wanted: bool
    cost: int


_FREE = PullDecision(is_wanted=True, cost=0)


def judge_new(state: BrokerState, pull: WaitingPull) -> PullDecision:
    """Return whether a ready pull with a filter accepts one of the new messages.

    If it accepts none, its filter does not see these messages again.
    """
    wanted, store = pull.wanted, state.store
    if not isinstance(wanted, Filter):
        raise InvariantBroken(f"the pull of {pull.address} has no filter that could judge")
    queue = store.queue(pull.header.topic, pull.header.queue_id)
    if queue is None:
        return _FREE
    begin = max(pull.judged, queue.first)
    try:
        found = scan(store, queue, wanted, begin, scan_max=_WAKE_SCAN_MAX, count_max=1, size_max=0)
    except InvariantBroken:
        raise
    except Exception:  # noqa: BLE001 - it is logged
        broker_events.FILTER_FAILED.log(log, traceback_of=True, client=pull.address)
        return _FREE  # the pull will meet the same error, and report it to the client
    pull.judged = found.next_offset
    cost = scan_cost(wanted, found.next_offset - begin) + found.work
    return PullDecision(bool(found.records) or found.next_offset < queue.end, cost)
