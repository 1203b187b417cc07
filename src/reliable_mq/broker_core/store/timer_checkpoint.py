"""How far the timers have come, as of what is on the medium.

     0 delivered before this time, ms      24 the master's queue offset, which is ours
     8 end of the synced timer log         32 version: state, time in ms, counter
    16 taken up before this queue offset   56 ours: the log offset behind the deliveries before 0
                                           all i64; 4096 bytes

Apache leaves the bytes behind 56 as they are. What stands there may be old after its broker ran,
but never ahead, so that a search from there finds every delivery.
Source: Apache RocketMQ `TimerCheckpoint`.
"""

import msgspec

from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.field_file import load_fields, save_fields

PATH = "config/timercheck"


class TimerCheckpoint(msgspec.Struct, kw_only=True):
    """The fields of the file, in its order."""

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    changed_ms: int = 0
    counter: int = 0
    delivered_end: int = 0


def load_timer_checkpoint(disk: Disk) -> TimerCheckpoint:
    """Return the checkpoint of a store; all zero when there is none."""
    return load_fields(disk, PATH, TimerCheckpoint)


def save_timer_checkpoint(disk: Disk, checkpoint: TimerCheckpoint) -> None:
    """Write the checkpoint and sync it. What it claims must be synced before."""
    save_fields(disk, PATH, checkpoint)
