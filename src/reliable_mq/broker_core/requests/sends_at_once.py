"""Plain sends that come alone: their records are written, answered and dispatched without a turn.

Receives what `SendShapes` has recognised in one read, while nothing else waits. Returns the bytes
for the log, and what follows when they are written. Until then nothing is changed.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate

import msgspec

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.requests import known_sends
from reliable_mq.broker_core.requests.known_sends import NO_LANES
from reliable_mq.broker_core.state import BrokerState, PeerConnection
from reliable_mq.broker_core.store.consume_queue import pack_unit
from reliable_mq.broker_core.store.disk import DiskFile
from reliable_mq.broker_core.store.lanes import Arrivals, Lane
from reliable_mq.broker_core.store.marks import Dispatched
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.command import ONE_WAY_FLAG
from reliable_mq.wire.known_send import KnownSends
from reliable_mq.wire.record import BLANK_SIZE
from reliable_mq.wire.record_form import RecordForm


class PlacedSends(msgspec.Struct, frozen=True, gc=False):
    """Plain sends of a read, while nothing else waits: their records, and what follows.

    Attributes:
        segment, at: where the records belong: at the log's end.
        records: their bytes.
        dispatched: where the last one ends and begins, and their store time.
        arrivals: what each queue gets.
        answer: the replies, one after another; None: nobody wants them.
        count: how many sends there are.
        note: log offsets, form and unique keys, for `IndexNotes.add`; None: the index reads the
            log, which is cheaper for one message.
    """

    segment: DiskFile
    at: int
    records: bytes
    dispatched: Dispatched
    arrivals: Mapping[Lane, Arrivals]
    answer: Answer | None
    count: int = 1
    note: tuple[Sequence[int], RecordForm, Sequence[bytes]] | None = None


def place_alone(
    state: BrokerState, connection: PeerConnection, sends: KnownSends, now_ms: int
) -> PlacedSends | None:
    """Return where the sends of one read are stored; None: they need more, or others wait.

    Nothing is changed. Whatever is asked here is what `send_known` asks, and whether the end of a
    turn would have anything else to do.
    """
    store, log, answers, bodies = state.store, state.store.log, state.answers, sends.bodies
    offset = log.end
    if (
        store.dispatched != offset
        or answers.held
        or answers.ready
        or state.audit.lines
        or state.pulls.waiting
        or state.pops.waiting
        or state.notifications.waiting
        or state.pressure.refusal is not None
        or state.quotas.limit_sends
    ):
        return None
    if len(bodies) > 1:
        is_many = len(bodies) >= known_sends.FEW
        return _place_many(state, connection, sends, now_ms) if is_many else None
    shape, (body,) = sends.shape, bodies
    form = shape.form
    size = form.size + len(body)
    if len(body) > state.config.message_size_max or size + BLANK_SIZE > log.capacity_end - offset:
        return None
    queue, born_time, key, opaque = shape.pick((sends.values or sends.rows())[0])
    lane = state.topics.lanes_by_text.get(shape.header.topic, NO_LANES).get(queue)
    if lane is None or not lane.next:  # a queue begins with more than a record
        return None
    time_ms, number = max(store.appender.last_time_ms, now_ms), lane.next
    record = form.record_of(size, lane.queue_id, number, offset, int(born_time), time_ms, body, key)
    if len(record) != size:
        raise InvariantBroken(f"S1: a record of {len(record)} bytes in a room of {size}")
    answer = None
    if not shape.flag & ONE_WAY_FLAG:
        encode = state.send_reply.encode_text
        answer = connection.id, encode(shape.serialize_type, offset, queue, number, opaque)
    first, segment = log.segment_at(offset)
    end, code = offset + size, form.tags_code
    units, codes = [pack_unit(offset, size, code)], {code}
    arrivals = Arrivals(lane.topic, lane.queue_id, number, units, codes, offset, end, size)
    dispatched = Dispatched(end, offset, time_ms)
    return PlacedSends(segment, offset - first, record, dispatched, {lane: arrivals}, answer)


def _place_many(
    state: BrokerState, connection: PeerConnection, sends: KnownSends, now_ms: int
) -> PlacedSends | None:
    shape, bodies, store, log = sends.shape, sends.bodies, state.store, state.store.log
    form, begin, shared = shape.form, log.end, shape.form.size
    sizes = [shared + len(body) for body in bodies]
    total = sum(sizes)
    if (
        max(sizes) - shared > state.config.message_size_max
        or total + BLANK_SIZE > log.capacity_end - begin
    ):
        return None
    queues, born_times, keys, opaques = shape.pick(sends.by_place())
    known = state.topics.lanes_by_text.get(shape.header.topic, NO_LANES)
    offsets: Sequence[int] = range(begin, begin + total, sizes[0])
    if sizes.count(sizes[0]) < len(sizes):
        offsets = list(accumulate(sizes[:-1], initial=begin))
    code, numbers, queue_ids = form.tags_code, list[int](), list[int]()
    taken: dict[Lane, Arrivals] = {}
    for queue, offset, size in zip(queues, offsets, sizes, strict=True):
        lane = known.get(queue)
        if lane is None or not lane.next:
            return None
        end, arrivals = offset + size, taken.get(lane)
        if arrivals is None:
            numbers.append(lane.next)
            units = [pack_unit(offset, size, code)]
            taken[lane] = Arrivals(
                lane.topic, lane.queue_id, lane.next, units, {code}, offset, end, size
            )
        else:
            numbers.append(arrivals.first + len(arrivals.units))
            arrivals.units.append(pack_unit(offset, size, code))
            arrivals.last_log_offset, arrivals.log_end = offset, end
            arrivals.size += size
        queue_ids.append(lane.queue_id)
    time, time_ms = born_times[0], max(store.appender.last_time_ms, now_ms)
    is_same = born_times.count(time) == len(bodies)
    times = [int(time)] * len(bodies) if is_same else list(map(int, born_times))
    records = form.encode(sizes, queue_ids, numbers, offsets, times, time_ms, bodies, keys)
    if len(records) != total:
        raise InvariantBroken(f"S1: records of {len(records)} bytes in a room of {total}")
    answer = None
    if not shape.flag & ONE_WAY_FLAG:
        frames = state.send_reply.encode_many(
            shape.serialize_type, offsets, queues, numbers, opaques
        )
        answer = connection.id, b"".join(frames)
    first, segment = log.segment_at(begin)
    return PlacedSends(
        segment,
        begin - first,
        records,
        Dispatched(begin + total, offsets[-1], time_ms),
        taken,
        answer,
        len(bodies),
        (offsets, form, keys),
    )
