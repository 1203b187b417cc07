"""A pull that meets damage: a record that cannot be read is skipped and named, the rest is served.

A client takes a pull's records one after another, by the sizes that they tell: behind one that is
damaged it finds none. What no start has looked at is checked whole, bodies and all, and pulls that
find it sound cost little more. What was checked at the start, or came since, is checked by size and
magic only, as long as no damage is known: a body that is damaged while the broker runs is served as
it is, as Apache does, until the next start; reconciliation finds it.
"""

from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.properties import TAGS
from reliable_mq.wire.record import decode_record


def sound_records(
    store: MessageStore, queue: ConsumeQueue, begin: int, end: int, tags: frozenset[int] | None
) -> list[bytes]:
    """Return the wanted records between two offsets of a queue; name damage in the log, once.

    A unit that may be right is believed in what it says of the tag.
    """
    found: list[bytes] = []
    for number in range(begin, end):
        unit = queue.unit(number)
        is_tag_known = tags is None or store.reader.is_likely(queue, number, unit)
        if is_tag_known and tags is not None and unit.tags_code not in tags:
            continue
        record = store.reader.record(queue, number)
        if record and (is_tag_known or _tag_of(record) in (tags or ())):
            found.append(record)
    return found


def _tag_of(record: bytes) -> int:
    return tags_code(decode_record(record).property_map().get(TAGS, ""))
