"""The copier: appends the records of a master's log to a slave's store, at the same places.

Receives whole records that are checked, and blanks. Appends their bytes as they are; the store
dispatches them like its own. So both logs have the same bytes, and both brokers the same queues.
Source: Apache RocketMQ `DefaultMessageStore.appendToCommitLog`, `ReputMessageService`.
"""

from collections.abc import Sequence
from itertools import repeat

from reliable_mq.broker_core.dispatch import TAGS_NAME, UNQUEUED, queue_tags_code
from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.broker_core.store.consume_queue import pack_unit
from reliable_mq.broker_core.store.lanes import Lane
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.errors import InvariantBroken, ReplicationError
from reliable_mq.wire.record import TRANSACTION_MASK
from reliable_mq.wire.record_scan import AlikeHeads, Heads, SizedHead, rows_of


class Copier:
    """Appends copies to a store that nobody else appends to."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._appender = store.appender

    def begin_at(self, offset: int) -> None:
        """Let an empty store begin at `offset` of the master's log: the begin of a segment."""
        self._store.begin_at(offset)

    def append(self, offset: int, data: bytes, heads: Heads) -> None:
        """Append records as they are; without `heads`: the blank that ends a segment.

        A queue continues at the message of a record, if that begins a file of the queue: then
        the master has deleted the messages before it.

        Raises:
            InvariantBroken: when the log does not end there. Nothing was appended then.
            ReplicationError: when messages of the queue of a record are missing. Only the records
                before it were appended then.
        """
        log = self._store.log
        if not heads:
            log.add_blank(data)
            return
        if log.end != offset or log.room_for(len(data)) != offset:
            raise InvariantBroken(f"S1: a copy for {offset} at the log's end {log.end}")
        if not (isinstance(heads, AlikeHeads) and self._add_to_queue(offset, data, heads)):
            self._add_each(offset, data, rows_of(heads))

    def _add_to_queue(self, offset: int, data: bytes, heads: AlikeHeads) -> bool:
        """Append records that are the next messages of one queue; return whether they are."""
        appender, size, count = self._appender, heads.size, len(heads.queue_ids)
        queue_id, first = heads.queue_ids[0], heads.queue_offsets[0]
        if heads.sys_flag & TRANSACTION_MASK in UNQUEUED or heads.queue_ids.count(queue_id) < count:
            return False
        lane = appender.lane(heads.topic, queue_id)
        if lane.next != first or heads.queue_offsets != tuple(range(first, first + count)):
            return False
        codes = self._codes_of(heads)
        arrivals = lane.arrivals or appender.open(lane, first)
        lane.next = first + count
        offsets = range(offset, offset + len(data), size)
        arrivals.units += map(pack_unit, offsets, repeat(size), codes)
        arrivals.tags_codes.update(codes)
        arrivals.log_end = offset + len(data)
        arrivals.last_log_offset = appender.last_record = arrivals.log_end - size
        arrivals.size += len(data)
        appender.last_time_ms = max(appender.last_time_ms, *heads.store_times_ms)
        self._store.log.add(data)
        return True

    def _codes_of(self, heads: AlikeHeads) -> list[int]:
        """Return the codes of their tags; see `queue_tags_code`."""
        topic, delays_ms = heads.topic, self._appender.delays_ms
        if topic != SCHEDULE_TOPIC and TAGS_NAME not in b"".join(heads.properties):
            return [0] * len(heads.properties)
        return [
            queue_tags_code(topic, properties, time_ms, delays_ms)
            for properties, time_ms in zip(heads.properties, heads.store_times_ms, strict=True)
        ]

    def _add_each(self, offset: int, data: bytes, heads: Sequence[SizedHead]) -> None:
        """Append records one by one, up to one whose queue lacks messages."""
        log, appender = self._store.log, self._appender
        lanes, delays_ms = appender.lanes, appender.delays_ms
        at, last, newest_ms = offset, appender.last_record, appender.last_time_ms
        try:
            for size, topic, queue_id, number, sys_flag, time_ms, properties in heads:
                if sys_flag & TRANSACTION_MASK not in UNQUEUED:
                    lane = lanes.get((topic, queue_id)) or appender.lane(topic, queue_id)
                    if lane.next != number:
                        self._join(lane, number, at)
                    lane.next = number + 1
                    code = 0
                    if TAGS_NAME in properties or topic == SCHEDULE_TOPIC:
                        code = queue_tags_code(topic, properties, time_ms, delays_ms)
                    arrivals = lane.arrivals or appender.open(lane, number)
                    arrivals.units.append(pack_unit(at, size, code))
                    arrivals.tags_codes.add(code)
                    arrivals.last_log_offset = at
                    arrivals.log_end = at + size
                    arrivals.size += size
                if time_ms > newest_ms:  # noqa: PLR1730 - a call of max() takes a seventh of the loop
                    newest_ms = time_ms
                last = at
                at += size
        finally:
            appender.last_record, appender.last_time_ms = last, newest_ms
            if at - offset < len(data):
                data = data[: at - offset]
                log.room_for(len(data))
            log.add(data)

    def _join(self, lane: Lane, number: int, offset: int) -> None:
        """Let the queue of a record end where its message begins."""
        store = self._store
        if not lane.next and (lane.topic, lane.queue_id) not in store.queues:
            lane.next = number  # its first message here
        elif number % store.units_of_file:
            raise ReplicationError(
                f"the record at offset {offset} is message {number} of queue {lane.queue_id} of "
                f"topic {lane.topic}; this slave has its messages up to {lane.next - 1}"
            )
        else:
            store.restart_queue(lane, number)
