"""A promoted store goes on with what was in flight at its master: its log says whether it did."""

from tests.simulation.disk_log import survivors
from tests.simulation.facts import Violation, ends_ms_of
from tests.simulation.popped import BROKER
from tests.simulation.watched_disk import WatchedDisk

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.names import is_revive_topic
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.wire.pop_handle import popped_topic
from reliable_mq.wire.pop_records import (
    ACK,
    ACKS,
    CHECKPOINT,
    CheckpointKey,
    PopCheckpoint,
    decode_acks,
    decode_checkpoint,
)
from reliable_mq.wire.properties import POP_CK_OFFSET, REAL_TOPIC, TAGS

_WAIT_MS = 9_000  # longer than any message is hidden
_STEP_MS = 50


def all_come_back(core: BrokerCore, disk: WatchedDisk, now_ms: int, kept_from: int) -> None:
    """Let a broker that nobody asks go on until nothing may be in flight, and check its log.

    Args:
        core: the broker that was promoted.
        disk: its disk.
        now_ms: the time at which it begins.
        kept_from: where the log of its former master began. The master brought nothing back whose
            record it had deleted, but the slave may have that record still.
    """
    for time_ms in range(now_ms, now_ms + _WAIT_MS, _STEP_MS):
        core.tick(time_ms)
        _write(core, disk)
    _check(core, kept_from)


def _write(core: BrokerCore, disk: WatchedDisk) -> None:
    """Make everything durable that the broker hands out."""
    while True:
        turn = core.take_turn()
        if not (turn.batch or turn.files):
            return
        if turn.batch:
            CommitLog.write_batch(turn.batch)
            CommitLog.sync(turn.batch)
        for path, text in turn.files.items():
            disk.write_text(path, text)
        if turn.batch:
            core.stored(turn.batch.end, durable=True)
        if turn.files:
            core.saved()


def _check(core: BrokerCore, kept_from: int) -> None:
    open_: dict[tuple[CheckpointKey, int], PopCheckpoint] = {}
    places: dict[tuple[int, int], tuple[CheckpointKey, int]] = {}
    ended: set[tuple[CheckpointKey, int]] = set()
    too_late: set[tuple[CheckpointKey, int]] = set()  # acknowledged when they may have been back
    for record in survivors(core.state.store.log):
        properties = record.property_map()
        tag = properties.get(TAGS, "")
        if POP_CK_OFFSET in properties:
            place, _, index = properties[POP_CK_OFFSET].partition(" ")
            message = places.get((int(place), int(index)))
            if message is None:  # its checkpoint has expired
                continue
            if message in ended:
                raise Violation(f"the promoted store brings {message} back, which has ended")
            if record.store_time_ms < open_[message].revive_ms:
                raise Violation(f"the promoted store brings {message} back early")
            ended.add(message)
        elif is_revive_topic(properties.get(REAL_TOPIC, "")) and tag == CHECKPOINT:
            popped = decode_checkpoint(record.body)
            for number, offset in enumerate(popped.offsets):
                message = popped.key, offset
                open_[message] = popped
                places[record.commit_log_offset, number] = message
        elif is_revive_topic(properties.get(REAL_TOPIC, "")) and tag in (ACK, ACKS):
            acks = decode_acks(record.body, BROKER)
            for message in ((acks.key, offset) for offset in acks.offsets):
                checkpoint = open_.get(message)
                ends_ms = ends_ms_of(properties)  # another one is of a pop that was lost
                is_in_time = checkpoint and record.store_time_ms < checkpoint.revive_ms == ends_ms
                (ended if is_in_time else too_late).add(message)
    for key, offset in open_.keys() - ended - too_late:
        if _has(core, key, offset, kept_from) and _knows(core, key):
            raise Violation(f"the promoted store never brings {offset} of {key} back")


def _has(core: BrokerCore, key: CheckpointKey, offset: int, kept_from: int) -> bool:
    """Whether the store has a message, and its former master had it, too."""
    queue = core.state.store.queue(key.topic, key.queue_id)
    if queue is None or not queue.first <= offset < queue.end:
        return False
    return queue.unit(offset).commit_log_offset >= kept_from


def _knows(core: BrokerCore, key: CheckpointKey) -> bool:
    """Whether the store has the topic and the group in its tables.

    A slave that is parted from its master has messages of a topic before it could ask for it. Once
    promoted, it takes the topic for a deleted one.
    """
    state = core.state
    is_known = popped_topic(key.topic, key.group) in state.topics.by_name
    return is_known and key.group in state.groups.by_name
