"""The checkpoint of the timers: how much is delivered and taken up, durably.

     0 delivered before this time, ms      24 the master's queue offset, which is ours
     8 end of the synced timer log         32 version: state, time in ms, counter
    16 taken up before this queue offset   56 ours: the log offset behind the deliveries before 0
                                           all i64; 4096 bytes

Apache does not change the bytes after 56. Our field may be old after Apache's broker ran, but never
too new, so a search from there finds every delivery.
Source: Apache RocketMQ `TimerCheckpoint`.
"""

import msgspec

from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.field_file import load_fields, save_fields

PATH = "config/timercheck"


class TimerCheckpoint(msgspec.Struct, kw_only=True):
    """The fields of the file, in order."""

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    changed_ms: int = 0
    counter: int = 0
    delivered_end: int = 0


def load_timer_checkpoint(disk: Disk) -> TimerCheckpoint:
    """Return the checkpoint of a store; all fields are 0 without a file."""
    return load_fields(disk, PATH, TimerCheckpoint)


def save_timer_checkpoint(disk: Disk, checkpoint: TimerCheckpoint) -> None:
    """Write and sync the checkpoint. Everything that it claims must be synced before."""
    save_fields(disk, PATH, checkpoint)
