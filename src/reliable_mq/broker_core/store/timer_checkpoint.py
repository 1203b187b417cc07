"""The checkpoint of the timers: how much is delivered and taken up, durably.

     0 delivered before this time, ms      24 the master's queue offset, which is ours
     8 end of the synced timer log         32 version: state, time in ms, counter
    16 taken up before this queue offset   56 ours: the log offset behind the deliveries before 0
    64 ours: a queue offset                72 ours: a time; see `done_before`
    80 ours: a time; see `late_ms`         all i64; 4096 bytes

Apache does not change the bytes after 56. Our field may be old after Apache's broker ran, but never
too new, so a search from there finds every delivery.
Source: Apache RocketMQ `TimerCheckpoint`.
"""

import struct

import msgspec

from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.field_file import load_fields, save_fields

PATH = "config/timercheck"
_WIRE = struct.Struct(">7q")  # what a slave gets; before RocketMQ 5.1 the first four
_OLD_WIRE = struct.Struct(">4q")


class TimerCheckpoint(msgspec.Struct, kw_only=True):
    """The fields of the file, in order.

    A slave has no timers of its own, and notes what its master has done: messages before the queue
    offset `done_before` that were due at `done_ms` or earlier are delivered. No message in a later
    slot than its own is due after `late_ms`.
    """

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    changed_ms: int = 0
    counter: int = 0
    delivered_end: int = 0
    done_before: int = 0
    done_ms: int = 0
    late_ms: int = 0

    def to_wire(self) -> bytes:
        """Return the body of a reply to GET_TIMER_CHECK_POINT."""
        return _WIRE.pack(*msgspec.structs.astuple(self)[:7])


def timer_checkpoint_from(body: bytes) -> TimerCheckpoint:
    """Return the checkpoint in a reply to GET_TIMER_CHECK_POINT.

    Raises:
        ValueError: when it has no sensible one.
    """
    form = _WIRE if len(body) >= _WIRE.size else _OLD_WIRE
    if len(body) < form.size:
        raise ValueError(f"a checkpoint of timers has {len(body)} bytes")
    fields = form.unpack_from(body)
    read_ms, log_end, queue_offset, master_queue_offset = fields[:4]
    if min(read_ms, queue_offset, master_queue_offset) < 0:
        raise ValueError(f"a checkpoint of timers with {read_ms}, {master_queue_offset}")
    return TimerCheckpoint(
        read_ms=read_ms,
        log_end=log_end,
        queue_offset=queue_offset,
        master_queue_offset=master_queue_offset,
        counter=fields[-1] if form is _WIRE else 0,
    )


def load_timer_checkpoint(disk: Disk) -> TimerCheckpoint:
    """Return the checkpoint of a store; all fields are 0 without a file."""
    return load_fields(disk, PATH, TimerCheckpoint)


def save_timer_checkpoint(disk: Disk, checkpoint: TimerCheckpoint) -> None:
    """Write and sync the checkpoint. Everything that it claims must be synced before."""
    save_fields(disk, PATH, checkpoint)
