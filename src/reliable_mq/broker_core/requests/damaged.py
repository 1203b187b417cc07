"""A pull of damaged records: unreadable records are skipped and logged, all others are served.

A client finds the records of a pull by their size fields, so it would find none after a damaged
one. Records that no start has checked are checked completely, with their bodies; sound ones cost
little more. Records that were checked at the start, or came later, are checked only by size and
magic while no damage is known. So a body that is damaged while the broker runs is served until the
next start, as Apache does. Reconciliation finds it.
"""

from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.properties import TAGS
from reliable_mq.wire.record import decode_record


def sound_records(
    store: MessageStore, queue: ConsumeQueue, begin: int, end: int, tags: frozenset[int] | None
) -> list[bytes]:
    """Return the wanted records between two queue offsets; log each damage once.

    The tag hash of a unit is trusted if the unit is plausible.
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
