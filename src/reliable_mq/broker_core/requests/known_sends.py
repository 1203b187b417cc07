"""Sends of a known shape: their records are written as columns, without a look at each header.

Receives what `SendShapes` has recognised. Stores exactly what `send_message` would store for each
of them, and answers the same. Whatever the broker has to decide about a message is left to that.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from reliable_mq.broker_core.dispatch import queue_tags_code
from reliable_mq.broker_core.names import topic_fault
from reliable_mq.broker_core.requests.send import is_plain, plain_lane
from reliable_mq.broker_core.state import BrokerState, PeerConnection
from reliable_mq.broker_core.store.lanes import Lane
from reliable_mq.errors import StoreError
from reliable_mq.wire.command import ONE_WAY_FLAG, REPLY_FLAG
from reliable_mq.wire.known_send import KnownSends
from reliable_mq.wire.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, UNIQ_KEY
from reliable_mq.wire.record_form import RecordForm

_UNIQ_KEY = f"{UNIQ_KEY}{NAME_VALUE_SEPARATOR}"
NO_LANES: Mapping[bytes, Lane] = {}
FEW = 4  # fewer sends cost less one by one than as columns


def send_known(
    state: BrokerState, connection: PeerConnection, sends: KnownSends, now_ms: int
) -> int:
    """Store sends of a known shape up to one that needs more; return how many were stored.

    Nothing is done with the others.
    """
    bodies = sends.bodies
    if (
        state.pressure.refusal is not None
        or state.quotas.limit_sends
        or max(map(len, bodies)) > state.config.message_size_max
        or (state.guard is not None and state.guard.sender_of_known(sends, connection.host) is None)
    ):
        return 0
    if len(bodies) < FEW or not _send_columns(state, connection, sends, now_ms):
        return _send_few(state, connection, sends, now_ms)
    return len(bodies)


def _send_few(
    state: BrokerState, connection: PeerConnection, sends: KnownSends, now_ms: int
) -> int:
    """Store some sends one by one; return how many."""
    shape, topic, bodies, count = sends.shape, sends.shape.header.topic, sends.bodies, 0
    lanes = state.topics.lanes_by_text.get(topic, NO_LANES)
    form, append = shape.form, state.store.appender.append_one
    for values in sends.rows():
        queue, time, key, opaque = shape.pick(values)
        lane = lanes.get(queue) or _lane(state, topic, queue)
        if lane is None:
            break
        try:
            offset, number, end = append(lane, form, bodies[count], int(time), key, now_ms)
        except (OSError, StoreError):  # nothing was stored; `send_message` finds that, and tells it
            break
        if not shape.flag & ONE_WAY_FLAG:
            encode = state.send_reply.encode_text
            frame = encode(shape.serialize_type, offset, queue, number, opaque)
            state.answers.when_stored(connection.id, end, frame)
        count += 1
    return count


def _send_columns(
    state: BrokerState, connection: PeerConnection, sends: KnownSends, now_ms: int
) -> bool:
    """Store all sends together; return False, and do nothing, if they must be looked at alone."""
    shape, bodies = sends.shape, sends.bodies
    queues, born_times, keys, opaques = shape.pick(sends.by_place())
    lanes = _lanes(state, shape.header.topic, queues)
    if lanes is None:
        return False
    time = born_times[0]
    is_same = born_times.count(time) == len(bodies)
    times = [int(time)] * len(bodies) if is_same else list(map(int, born_times))
    append = state.store.appender.append_known
    appended = append(lanes, shape.form, bodies, times, keys, now_ms)
    if appended is None:
        return False
    offsets, numbers, end = appended
    if state.store.index is not None:
        time_ms = state.store.appender.last_time_ms
        state.store.index.notes.add(offsets, end, shape.form, keys, time_ms)
    if not shape.flag & ONE_WAY_FLAG:
        frames = state.send_reply.encode_many(
            shape.serialize_type, offsets, queues, numbers, opaques
        )
        state.answers.all_when_stored(connection.id, end, frames)
    return True


def _lanes(state: BrokerState, topic: str, queues: Sequence[bytes]) -> list[Lane] | None:
    """Return the lanes of queues, whose numbers stand as in a frame; None: one is not plain."""
    known = state.topics.lanes_by_text.get(topic, NO_LANES)
    lanes = list(map(known.get, queues))
    if None in lanes:
        lanes = [known.get(queue) or _lane(state, topic, queue) for queue in queues]
    return None if None in lanes else cast("list[Lane]", lanes)


def _lane(state: BrokerState, topic: str, queue: bytes) -> Lane | None:
    """Return, and cache, the lane of a queue; None: it is not plain."""
    lane = plain_lane(state, topic, int(queue))
    if lane is not None:
        state.topics.lanes_by_text.setdefault(topic, {})[queue] = lane
    return lane


def plain_form(state: BrokerState, host: bytes, sends: KnownSends) -> RecordForm | None:
    """Return how the records of sends of a shape from a packed host are written.

    None: `send_message` decides more about them, whatever their queue and their unique key. Or
    access control has not admitted any such send yet: nobody unknown makes a broker remember much.
    """
    shape = sends.shape
    header, (before, after) = shape.header, shape.properties
    properties = (header.properties or "").encode()
    if before != _UNIQ_KEY and not before.endswith(PROPERTY_SEPARATOR + _UNIQ_KEY):
        return None  # it stands within another property, perhaps the tag
    if header.batch or shape.flag & REPLY_FLAG or topic_fault(header.topic):
        return None
    if not is_plain(state, header.sys_flag, properties):
        return None
    if state.guard is not None and state.guard.sender_of_known(sends, host) is None:
        return None
    # The broker's own properties, its address and the peer's stay as long as the connection.
    parts = before.encode(), after.encode() + state.broker_properties
    return RecordForm(
        header.topic.encode(),
        header.flag,
        header.sys_flag,
        host,
        state.host,
        header.reconsume_times or 0,
        parts,
        len(properties) - len(before.encode()) - len(after.encode()),
        queue_tags_code(header.topic, properties, 0, {}),
    )
