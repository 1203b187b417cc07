"""What a broker says of its slaves, or of its master, to `mqadmin haStatus`.

Source: Apache RocketMQ `HARuntimeInfo`, `DefaultHAService.getRuntimeInfo`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec


class SlaveState(msgspec.Struct):
    """What a master knows of one slave. Times are seconds of a monotonic clock.

    Attributes:
        address: where it is, "host:port".
        next: the offset of the next transfer; -1: it has not reported yet.
        acknowledged: the offset up to which it has the log.
        heard: when it has reported last.
        sent: when it was sent something last.
        size_sent: bytes of the log that it was sent.
        rate: bytes that it was sent in the last second.
    """

    address: str
    next: int = -1
    acknowledged: int = 0
    heard: float = 0.0
    sent: float = 0.0
    size_sent: int = 0
    rate: int = 0


class MasterState(msgspec.Struct):
    """What a slave knows of its master. Times are milliseconds since the epoch.

    Attributes:
        address: the one that is followed; "": none is.
        end: where the master's log ended at its last transfer.
        heard_ms: when it has sent something last.
        reported_ms: when it was reported to last.
        size_received: bytes of the log that it has sent.
    """

    address: str = ""
    end: int = 0
    heard_ms: int = 0
    reported_ms: int = 0
    size_received: int = 0


_NO_MASTER = {
    "lastReadTimestamp": 0,
    "lastWriteTimestamp": 0,
    "masterFlushOffset": 0,
    "maxOffset": 0,
    "transferredByteInSecond": 0,
}


def is_in_sync(slave: SlaveState, log_end: int, gap_max: int) -> bool:
    """Whether a slave lacks less of the log than `gap_max` bytes."""
    return log_end - slave.acknowledged < gap_max


def status_of_master(slaves: Sequence[SlaveState], log_end: int, gap_max: int) -> dict[str, Any]:
    """Return the status of a master whose log ends at `log_end`."""
    rows = [
        {
            "addr": slave.address,
            "diff": log_end - slave.acknowledged,
            "inSync": is_in_sync(slave, log_end, gap_max),
            "slaveAckOffset": slave.acknowledged,
            "transferFromWhere": slave.next,
            "transferredByteInSecond": slave.rate,
        }
        for slave in slaves
    ]
    return {
        "haClientRuntimeInfo": _NO_MASTER,
        "haConnectionInfo": rows,
        "inSyncSlaveNums": sum(row["inSync"] is True for row in rows),
        "master": True,
        "masterCommitLogMaxOffset": log_end,
    }


def status_of_slave(master: MasterState, log_end: int) -> dict[str, Any]:
    """Return the status of a slave whose log ends at `log_end`."""
    return {
        "haClientRuntimeInfo": {
            "lastReadTimestamp": master.heard_ms,
            "lastWriteTimestamp": master.reported_ms,
            "masterAddr": master.address,
            "masterFlushOffset": master.end,
            "maxOffset": log_end,
            "transferredByteInSecond": 0,
        },
        "haConnectionInfo": [],
        "inSyncSlaveNums": 0,
        "master": False,
        "masterCommitLogMaxOffset": 0,
    }
