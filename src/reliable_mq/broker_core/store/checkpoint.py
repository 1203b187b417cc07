"""The checkpoint: the time up to which the files are known to be on the medium.

    0 commit log, store time of the last synced message     24 master's flushed offset
    8 consume queues, the same                              32 confirmed offset
    16 index files, the same                                all i64, milliseconds; 4096 bytes

After a crash, recovery begins before the older of the first two times, less three seconds.
Source: Apache RocketMQ `StoreCheckpoint`.
"""

import msgspec

from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.field_file import load_fields, save_fields

PATH = "checkpoint"
_SAFETY_MS = 3000


class Checkpoint(msgspec.Struct, kw_only=True):
    """The times, in milliseconds since the epoch, and two offsets of replication."""

    commit_log_time_ms: int = 0
    consume_queue_time_ms: int = 0
    index_time_ms: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0

    @property
    def safe_time_ms(self) -> int:
        """Messages stored before this time are in the log and in their consume queues."""
        oldest = min(self.commit_log_time_ms, self.consume_queue_time_ms)
        return max(0, oldest - _SAFETY_MS)


def load_checkpoint(disk: Disk) -> Checkpoint:
    """Return the checkpoint of a store; all fields are 0 without a file."""
    return load_fields(disk, PATH, Checkpoint)


def save_checkpoint(disk: Disk, checkpoint: Checkpoint) -> None:
    """Write and sync the checkpoint. Everything that it claims must be synced before."""
    save_fields(disk, PATH, checkpoint)
