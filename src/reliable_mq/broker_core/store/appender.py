"""The appender: assigns places to messages, at the end of the log and of their queue.

Receives fields of messages. Returns records, places, and the units for each queue once the records
are stored. The parts that all records of a queue share are encoded once, in its lane.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, repeat

import msgspec

from reliable_mq.broker_core.dispatch import (
    TAGS_NAME,
    UNQUEUED,
    queue_tags_code,
    queue_tags_codes,
)
from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.broker_core.store.commit_log import CommitLog, LogBatch
from reliable_mq.broker_core.store.consume_queue import pack_unit
from reliable_mq.broker_core.store.lanes import Arrivals, Dispatch, Lane, LaneKey
from reliable_mq.broker_core.store.marks import Dispatched
from reliable_mq.errors import MessageRefused
from reliable_mq.limits import PROPERTIES_SIZE_MAX, RECORD_SIZE_MAX
from reliable_mq.wire.record import BLANK_SIZE, HOSTLESS_SIZE, TRANSACTION_MASK
from reliable_mq.wire.record_encode import encode_stored, record_size, record_sizes
from reliable_mq.wire.record_form import RecordForm
from reliable_mq.wire.record_run import RecordRun


class StoredMessage(msgspec.Struct, kw_only=True, gc=False):
    """A message to store. Times in milliseconds; hosts packed as in records."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    flag: int
    sys_flag: int
    born_time_ms: int
    born_host: bytes
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class AppendResult(msgspec.Struct, gc=False):
    """The place of a message. The message is durable when the log is durable up to `end`."""

    commit_log_offset: int
    queue_offset: int
    end: int


class Appender:
    """Appends messages to a log.

    Args:
        log: the log.
        store_host: this broker's address, packed as in records.
        delays_ms: the delay of each level, in milliseconds.

    Attributes:
        begun: queues that got their first message since the start.
    """

    def __init__(self, log: CommitLog, store_host: bytes, delays_ms: Mapping[int, int]) -> None:
        self._log, self._store_host, self.delays_ms = log, store_host, delays_ms
        self._own_size = HOSTLESS_SIZE + len(store_host)  # bytes that all records have
        self.lanes: dict[LaneKey, Lane] = {}
        self.last_time_ms, self.last_record = 0, -1
        self._open_lanes: list[Lane] = []
        self.begun = 0
        self.end_of: Callable[[LaneKey], int] = lambda _key: 0  # the store sets it

    def lane(self, topic: str, queue_id: int) -> Lane:
        """Return the lane of a queue; a new lane begins where the queue ends."""
        key = (topic, queue_id)
        if (lane := self.lanes.get(key)) is None:
            lane = self.lanes[key] = Lane(topic, queue_id, self.end_of(key))
        return lane

    def forget(self, topic: str) -> list[Lane]:
        """Drop the units of a topic's messages since the last `take_batch`.

        Return the lane of each queue of the topic that ever had a message.
        """
        lanes = [lane for lane in self.lanes.values() if lane.topic == topic and lane.next]
        for lane in lanes:
            lane.arrivals = None
        return lanes

    def append(self, message: StoredMessage, now_ms: int) -> AppendResult:
        """Assign a place to a message. The next `take_batch` returns its bytes.

        Raises:
            MessageRefused: when it breaks a limit of the format; nothing was changed then.
        """
        return self.append_fields(
            self.lane(message.topic, message.queue_id),
            message.body,
            message.properties,
            message.flag,
            message.sys_flag,
            message.born_time_ms,
            message.born_host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            now_ms,
        )

    def append_fields(
        self,
        lane: Lane,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_time_ms: int,
        born_host: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int,
        now_ms: int,
    ) -> AppendResult:
        """`append` of a message that is given as fields (the hot path of sends)."""
        log = self._log
        has_unit = sys_flag & TRANSACTION_MASK not in UNQUEUED
        queue_offset = lane.next if has_unit else 0
        time_ms = max(self.last_time_ms, now_ms)
        topic, properties_size = lane.topic_part, len(properties)
        size = self._own_size + len(topic) + len(born_host) + len(body) + properties_size
        if size > RECORD_SIZE_MAX or properties_size > PROPERTIES_SIZE_MAX:
            record_size(topic, body, properties, born_host, self._store_host)  # it raises
        offset = log.room_for(size)
        record = encode_stored(
            lane.magic,
            topic,
            size,
            body,
            properties,
            lane.queue_id,
            flag,
            queue_offset,
            offset,
            sys_flag,
            born_time_ms,
            born_host,
            time_ms,
            self._store_host,
            reconsume_times,
            prepared_transaction_offset,
        )
        log.add(record)
        self.last_time_ms = time_ms
        self.last_record = offset
        if has_unit:
            lane.next = queue_offset + 1
            code = 0
            if TAGS_NAME in properties or lane.topic == SCHEDULE_TOPIC:
                code = queue_tags_code(lane.topic, properties, time_ms, self.delays_ms)
            self._add_unit(lane, queue_offset, offset, size, code)
        return AppendResult(offset, queue_offset, offset + size)

    def append_one(
        self, lane: Lane, form: RecordForm, body: bytes, born_time_ms: int, key: bytes, now_ms: int
    ) -> tuple[int, int, int]:
        """`append_known` of one message; return its log offset, its queue offset and its end."""
        log, size, number = self._log, form.size + len(body), lane.next
        time_ms = max(self.last_time_ms, now_ms)
        offset = log.room_for(size)
        log.add(
            form.record_of(size, lane.queue_id, number, offset, born_time_ms, time_ms, body, key)
        )
        self.last_time_ms, self.last_record = time_ms, offset
        lane.next = number + 1
        self._add_unit(lane, number, offset, size, form.tags_code)
        return offset, number, offset + size

    def add_written(self, taken: Mapping[Lane, Arrivals], dispatched: Dispatched) -> None:
        """Note that records are written at the log's end; nothing else is under way.

        `taken` is what each queue gets, `dispatched` the last record.
        """
        self._log.end = self._log.written = dispatched.end
        self.last_time_ms, self.last_record = dispatched.time_ms, dispatched.last_record
        for lane, arrivals in taken.items():
            lane.next = arrivals.first + len(arrivals.units)

    def append_known(
        self,
        lanes: Sequence[Lane],
        form: RecordForm,
        bodies: Sequence[bytes],
        born_times_ms: Sequence[int],
        keys: Sequence[bytes],
        now_ms: int,
    ) -> tuple[Sequence[int], Sequence[int], int] | None:
        """`append` of messages whose records have one form, and units (the hot path of sends).

        Args:
            lanes, bodies, born_times_ms: queue, body and time of birth of each message.
            form: encodes the records. With its body, each must keep the limits of the format.
            keys: the unique key of each message, of the size that the form knows.
            now_ms: the time.

        Returns:
            The log offset and the queue offset of each message, and the log's end. None: not all
            of them fit into this file of the log; nothing was appended.
        """
        log, shared = self._log, form.size
        total = sum(sizes := [shared + len(body) for body in bodies])
        if not log.has_room_for(total):
            return None
        time_ms = self.last_time_ms = max(self.last_time_ms, now_ms)
        begin = log.room_for(total)
        offsets: Sequence[int] = range(begin, begin + total, sizes[0])
        if sizes.count(sizes[0]) < len(sizes):
            offsets = list(accumulate(sizes[:-1], initial=begin))
        numbers: list[int] = []
        for lane, offset, size in zip(lanes, offsets, sizes, strict=True):
            number = lane.next
            lane.next = number + 1
            numbers.append(number)
            if (arrivals := lane.arrivals) is None:
                self._add_unit(lane, number, offset, size, form.tags_code)
                continue
            arrivals.units.append(pack_unit(offset, size, form.tags_code))
            arrivals.tags_codes.add(form.tags_code)
            arrivals.last_log_offset, arrivals.log_end = offset, offset + size
            arrivals.size += size
        queue_ids = [lane.queue_id for lane in lanes]
        log.add(
            form.encode(sizes, queue_ids, numbers, offsets, born_times_ms, time_ms, bodies, keys)
        )
        self.last_record = offsets[-1]
        return offsets, numbers, begin + total

    def _add_unit(self, lane: Lane, number: int, offset: int, size: int, code: int) -> None:
        """Add the unit of message `number` of a queue, whose record is the log's last one."""
        unit, arrivals, end = pack_unit(offset, size, code), lane.arrivals, offset + size
        if arrivals is None:
            lane.arrivals = Arrivals(
                lane.topic, lane.queue_id, number, [unit], {code}, offset, end, size
            )
            self._open_lanes.append(lane)
            if not number:
                self.begun += 1
            return
        arrivals.units.append(unit)
        arrivals.tags_codes.add(code)
        arrivals.last_log_offset = offset
        arrivals.log_end = end
        arrivals.size += size

    def append_batch(
        self,
        like: StoredMessage,
        flags: Sequence[int],
        bodies: Sequence[bytes],
        properties: Sequence[bytes],
        now_ms: int,
        codes: Sequence[int] | None = None,
    ) -> tuple[AppendResult, list[int]]:
        """Append messages that share the fields of `like` except these, side by side in the log.

        Return the place of the first message with the end of the last one, and all log offsets.
        `codes` are those of their tags, if the caller knows them; see `queue_tags_codes`.

        Raises:
            MessageRefused: when a message breaks a limit of the format, or all together are longer
                than a file of the log; nothing was changed then.
        """
        lane = self.lane(like.topic, like.queue_id)
        store_host, topic = self._store_host, lane.topic_part
        sizes = record_sizes(topic, bodies, properties, like.born_host, store_host)
        total = sum(sizes)
        begin, time_ms = self._room_for_batch(total, now_ms)
        offsets = list(accumulate(sizes[:-1], initial=begin))
        first = lane.next
        run = RecordRun(
            lane.magic,
            topic,
            lane.queue_id,
            like.sys_flag,
            like.born_time_ms,
            like.born_host,
            time_ms,
            store_host,
            like.reconsume_times,
        )
        self._log.add(run.encode(sizes, offsets, first, flags, bodies, properties))
        if codes is None:
            codes = queue_tags_codes(lane.topic, properties, time_ms, self.delays_ms)
        self._add_units(lane, offsets, begin + total, map(pack_unit, offsets, sizes, codes), codes)
        return AppendResult(begin, first, begin + total), offsets

    def append_alike(
        self,
        lane: Lane,
        form: RecordForm,
        bodies: Sequence[bytes],
        born_time_ms: int,
        keys: Sequence[bytes],
        now_ms: int,
    ) -> tuple[AppendResult, Sequence[int]]:
        """`append_batch` of messages whose records have one form and one size."""
        size, count, first = form.size + len(bodies[0]), len(bodies), lane.next
        begin, time_ms = self._room_for_batch(size * count, now_ms)
        offsets = range(begin, end := begin + size * count, size)
        numbers = lane.queue_id, first
        self._log.add(form.encode_batch(*numbers, offsets, born_time_ms, time_ms, bodies, keys))
        units = map(pack_unit, offsets, repeat(size), repeat(form.tags_code))
        self._add_units(lane, offsets, end, units, (form.tags_code,))
        return AppendResult(begin, first, end), offsets

    def _room_for_batch(self, total: int, now_ms: int) -> tuple[int, int]:
        """Return the offset of records of so many bytes, side by side, and their store time."""
        if total + BLANK_SIZE > self._log.segment_size:
            raise MessageRefused(
                f"a batch of {total} bytes; a file of the log holds {self._log.segment_size}"
            )
        self.last_time_ms = max(now_ms, self.last_time_ms)
        return self._log.room_for(total), self.last_time_ms

    def _add_units(
        self,
        lane: Lane,
        offsets: Sequence[int],
        end: int,
        units: Iterable[bytes],
        codes: Iterable[int],
    ) -> None:
        """Add the units of the next messages of a queue, whose records are the log's last ones."""
        first = lane.next
        arrivals = lane.arrivals or self.open(lane, first)
        self.last_record, lane.next = offsets[-1], first + len(offsets)
        arrivals.units += units
        arrivals.tags_codes.update(codes)
        arrivals.last_log_offset, arrivals.log_end = offsets[-1], end
        arrivals.size += end - offsets[0]

    def open(self, lane: Lane, first: int) -> Arrivals:
        """Return what takes the units of a lane, from message `first` on, in this batch."""
        arrivals = Arrivals(lane.topic, lane.queue_id, first, [], set(), 0, 0, 0)
        lane.arrivals = arrivals
        self._open_lanes.append(lane)
        if not first:
            self.begun += 1
        return arrivals

    def take_batch(self) -> tuple[LogBatch, Dispatch] | None:
        """Return the batch since the last call, and the dispatch that is due when it is stored."""
        batch = self._log.take_batch()
        if batch is None:
            return None
        lanes, self._open_lanes = self._open_lanes, []
        arrivals = []
        for lane in lanes:
            if lane.arrivals is not None:
                arrivals.append(lane.arrivals)
                lane.arrivals = None
        return batch, Dispatch(batch.end, self.last_record, self.last_time_ms, arrivals)
