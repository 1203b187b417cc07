"""Batches of one client whose messages differ only in body and unique key.

Receives such a batch. Stores exactly what `append_batch` stores for its messages, and looks at the
properties of one message instead of all. Knows no topic rules: the batch was checked before.
"""

from collections.abc import Sequence
from functools import lru_cache

from reliable_mq.broker_core.dispatch import queue_tags_code
from reliable_mq.broker_core.names import SCHEDULE_TOPIC
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.appender import AppendResult, StoredMessage
from reliable_mq.errors import MessageRefused
from reliable_mq.limits import RECORD_SIZE_MAX
from reliable_mq.wire.batch_body import AlikeBatch
from reliable_mq.wire.popped_record import may_have_pop_properties
from reliable_mq.wire.properties import PROPERTY_SEPARATOR
from reliable_mq.wire.record_form import RecordForm

_END = PROPERTY_SEPARATOR.encode()
_REMEMBERED_SIZE_MAX = 1024  # bytes of properties
_FORMS_MAX = 128


def append_alike(
    state: BrokerState, like: StoredMessage, batch: AlikeBatch, now_ms: int
) -> tuple[AppendResult, Sequence[int]] | None:
    """Store the messages of a batch that differ only in body and unique key.

    Return the place of the first message with the end of the last one, and all log offsets. None:
    each of them must be looked at; nothing was stored then.
    """
    if len(batch.before) + len(batch.behind) > _REMEMBERED_SIZE_MAX:
        return None
    form = _form(
        like.topic,
        batch.flag,
        like.sys_flag,
        like.born_host,
        state.host,
        like.reconsume_times,
        (batch.before, batch.behind),
        len(batch.keys[0]),
    )
    if form is None or form.size + len(batch.bodies[0]) > RECORD_SIZE_MAX:
        return None
    appender, index = state.store.appender, state.store.index
    lane = appender.lane(like.topic, like.queue_id)
    place, offsets = appender.append_alike(
        lane, form, batch.bodies, like.born_time_ms, batch.keys, now_ms
    )
    if index is not None:
        index.notes.add(offsets, place.end, form, batch.keys, appender.last_time_ms)
    return place, offsets


@lru_cache(maxsize=_FORMS_MAX)
def _form(
    topic: str,
    flag: int,
    sys_flag: int,
    born_host: bytes,
    store_host: bytes,
    reconsume_times: int,
    properties: tuple[bytes, bytes],
    key_size: int,
) -> RecordForm | None:
    """Return how records of messages with these properties around a unique key are written.

    None: something is to be decided about each of them.
    """
    before, behind = properties
    if topic == SCHEDULE_TOPIC or not behind.endswith(_END):
        return None
    if may_have_pop_properties(before) or may_have_pop_properties(behind):
        return None
    code = queue_tags_code(topic, before + b"0" * key_size + behind, 0, {})
    try:
        return RecordForm(
            topic.encode(),
            flag,
            sys_flag,
            born_host,
            store_host,
            reconsume_times,
            properties,
            key_size,
            code,
        )
    except MessageRefused:
        return None
