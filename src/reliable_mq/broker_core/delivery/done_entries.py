"""What a clean stop removes from the timer wheel: entries of unfinished slots that are done.

Apache's broker delivers a whole slot, so it would deliver them again. A stop may end in the middle.
So acknowledgements of popped messages go last, when their checkpoints are durably gone: a
checkpoint without its acknowledgement would bring its messages back.
"""

from collections.abc import Collection

from reliable_mq.broker_core.names import is_revive_topic
from reliable_mq.broker_core.store.consume_queue import QueueUnit
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.timer_log import DELETE, ROLL, TimerEntry
from reliable_mq.broker_core.store.timer_store import TimerStore
from reliable_mq.broker_core.store.unit_reading import read_unit
from reliable_mq.wire.pop_records import ACK, ACKS
from reliable_mq.wire.properties import REAL_TOPIC, TAGS


def leave_done(
    files: TimerStore,
    store: MessageStore,
    waiting: Collection[int],
    *,
    end_ms: int,
    slot_ms: int,
    now_ms: int,
) -> None:
    """Remove what is done from the slots that are not over, and save the progress.

    Args:
        files: the wheel and the timer log.
        store: has the messages.
        waiting: the entries that are needed.
        end_ms: when the first slot begins that was not looked at.
        slot_ms: duration of a slot, in milliseconds.
        now_ms: up to when everything is delivered.
    """

    def is_needed(position: int, entry: TimerEntry) -> bool:
        return position in waiting or entry.magic & (DELETE | ROLL) == DELETE

    def is_needed_first(position: int, entry: TimerEntry) -> bool:
        return is_needed(position, entry) or _acknowledges(store, entry)

    for is_kept in (is_needed_first, is_needed):
        files.begin_checkpoint(store, now_ms)()
        begin_ms = files.read_ms
        while begin_ms < end_ms:
            files.leave(begin_ms, is_kept)
            begin_ms = files.next_used(begin_ms + slot_ms, end_ms)
    files.begin_checkpoint(store, now_ms)()


def _acknowledges(store: MessageStore, entry: TimerEntry) -> bool:
    """Whether an entry is of acknowledgements of popped messages."""
    record = read_unit(store.log, QueueUnit(entry.commit_log_offset, entry.size, 0))
    if record is None:
        return False
    properties = record.property_map()
    return properties.get(TAGS) in (ACK, ACKS) and is_revive_topic(properties.get(REAL_TOPIC, ""))
