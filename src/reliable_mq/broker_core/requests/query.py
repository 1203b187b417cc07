"""Queries for messages, by log offset or by message key.

Source: Apache RocketMQ 5.4.0 `QueryMessageProcessor`, `DefaultMessageStore.queryMessage`.
"""

from collections import deque
from itertools import chain
from typing import NamedTuple

from reliable_mq.access.policies import Action
from reliable_mq.broker_core.long_works import Steps
from reliable_mq.broker_core.requests.hidden import refuse_hidden
from reliable_mq.broker_core.requests.long_reply import long_reply
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.message_index import MessageIndex
from reliable_mq.broker_core.store.unit_reading import find_listed, read_listed
from reliable_mq.limits import QUERY_SIZE_MAX
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import QueryMessageHeader
from reliable_mq.wire.long_frame import LONG_SIZE_MIN, LongBody
from reliable_mq.wire.record_scan import head_at

_WAITING_MAX = 1_000  # queries that wait for the index
_LOOK_US = 20  # microseconds of work for a look at one record
_BYTES_READ_IN_US = 2_000
_LOOKS_MAX = 3  # attempts, as Apache does; each looks before the records of the last one


def view_message_by_id(state: BrokerState, request: Request) -> Command | None:
    """VIEW_MESSAGE_BY_ID: the stored record at a commit-log offset."""
    ext = request.command.ext_fields
    offset = int(ext["offset"])
    record = state.store.read_record(offset) if offset >= 0 else None
    if record is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {offset}"
        )
    if ext.get("topic", "").strip():  # else the sender may see everything
        refuse_hidden(state, request, record, Action.GET)
    if state.quotas.limit_pulls:
        state.quotas.take_pull("", request.user, request.now_ms)
        state.quotas.charge_pull("", request.user, 1, record.size)
    log, size = state.store.log, record.size
    is_long = size > LONG_SIZE_MIN
    body = LongBody(size, log.pieces(offset, size)) if is_long else log.read(offset, size)
    return long_reply(state, request, None, body)


class _Found(NamedTuple):
    body: bytes | LongBody
    end_offset: int
    end_time_ms: int
    messages: int = 0


def query_message(state: BrokerState, request: Request) -> Steps[Command | None] | None:
    """QUERY_MESSAGE: the records with a key, oldest first.

    The index is up to some seconds behind the log. A query waits until it has reached the end of
    the log, so that it finds every message that was acknowledged before.
    """
    ext = request.command.ext_fields
    header = QueryMessageHeader.decode(ext)
    count_max, kind = header.max_num, header.index_type or ""
    if count_max < 0:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"maxNum is {count_max}; it must not be negative"
        )
    if ext.get("_UNIQUE_KEY_QUERY", "").lower() == "true":
        count_max, kind = state.config.query_count_max, "U"
    if request.command.is_oneway:
        return None
    if state.quotas.limit_pulls:
        state.quotas.take_pull("", request.user, request.now_ms)
    if not state.store.is_indexed and not state.is_index_stuck:
        if len(state.waiting_queries) >= _WAITING_MAX:
            raise RequestRefused(ResponseCode.SYSTEM_BUSY, "too many queries wait; retry later")
        state.waiting_queries.append(request)
        return None
    return _answer(state, request, header, count_max, kind)


def _answer(
    state: BrokerState, request: Request, header: QueryMessageHeader, count_max: int, kind: str
) -> Steps[Command | None]:
    """Look for the records; a long answer is read from the log when it is written."""
    found = _Found(b"", 0, 0)
    if state.store.index:
        found = yield from _search(state, state.store.index, header, count_max, kind)
    if not found.body:
        raise RequestRefused(
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct",
            _reach(found),
        )
    if state.quotas.limit_pulls:
        state.quotas.charge_pull("", request.user, found.messages, len(found.body))
    return long_reply(state, request, _reach(found), found.body)


def forget_queries(state: BrokerState, connection: int) -> None:
    """Drop the queries of a closed connection that wait for the index."""
    waiting = state.waiting_queries
    if waiting:
        state.waiting_queries = deque(q for q in waiting if q.connection.id != connection)


def _reach(found: _Found) -> dict[str, str]:
    return {
        "indexLastUpdateTimestamp": str(found.end_time_ms),
        "indexLastUpdatePhyoffset": str(found.end_offset),
    }


def _search(
    state: BrokerState, index: MessageIndex, header: QueryMessageHeader, count_max: int, kind: str
) -> Steps[_Found]:
    """Return the records with a key; if all of them are removed, look for older ones."""
    end_ms = header.end_timestamp
    found = _Found(b"", 0, 0)
    for _ in range(_LOOKS_MAX):
        selected = index.select(
            header.topic, header.key, count_max, header.begin_timestamp, end_ms, kind
        )
        if not selected.offsets:
            break
        yield _LOOK_US
        body, count = yield from _bodies(
            state, selected.offsets, "" if state.guard is None else header.topic
        )
        found = _Found(body, selected.end_offset, selected.end_time_ms, count)
        oldest = read_listed(state.store.log, selected.offsets[0])
        end_ms = oldest.store_time_ms if oldest else end_ms
        if body or end_ms < header.begin_timestamp:
            break
    return found


def _bodies(
    state: BrokerState, offsets: list[int], topic: str
) -> Steps[tuple[bytes | LongBody, int]]:
    """Return the records one after another, and how many; beyond QUERY_SIZE_MAX, the newest ones.

    The index knows hashes, which a sender can choose. So with access control, records of other
    topics than `topic` are left out; "": no access control, as Apache.
    """
    log, is_deleted = state.store.log, state.store.deletions.is_deleted
    parts: list[memoryview] = []  # the bodies are large: they are not decoded
    places: list[tuple[int, int]] = []
    total = 0
    for offset in reversed(offsets):
        found = find_listed(log, offset)
        if found is None:
            continue
        head = head_at(found.buffer, 0)
        if topic in ("", head.topic) and not is_deleted(head.topic, head.queue_id, offset):
            total += found.size
            if total > QUERY_SIZE_MAX and places:
                total -= found.size
                break
            places.append((offset, found.size))
            if total <= LONG_SIZE_MIN:
                parts.append(found.buffer[: found.size])
        yield _LOOK_US + found.size // _BYTES_READ_IN_US
    if total <= LONG_SIZE_MIN:
        return b"".join(reversed(parts)), len(places)
    pieces = (log.pieces(offset, size) for offset, size in reversed(places))
    return LongBody(total, chain.from_iterable(pieces)), len(places)
