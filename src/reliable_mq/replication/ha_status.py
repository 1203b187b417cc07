"""What a broker says of its slaves, or of its master, to `mqadmin haStatus`.

Source: Apache RocketMQ `HARuntimeInfo`, `DefaultHAService.getRuntimeInfo`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from reliable_mq.replication.ha_frames import HINT_BEATS, Transfer


class TransferRate(msgspec.Struct):
    """Counts bytes: all of them, and how many there were in the last whole second."""

    total: int = 0
    _second: int = 0
    _size: int = 0  # of this second
    _last: int = 0

    def add(self, size: int, now: float) -> None:
        """Count bytes at a time, in seconds of a monotonic clock."""
        self._turn_to(int(now))
        self._size += size
        self.total += size

    def in_last_second(self, now: float) -> int:
        """Return the bytes of the last whole second."""
        self._turn_to(int(now))
        return self._last

    def _turn_to(self, second: int) -> None:
        if second != self._second:
            self._last = self._size if second == self._second + 1 else 0
            self._second, self._size = second, 0


class SlaveState(msgspec.Struct):
    """What a master knows of one slave. Times are seconds of a monotonic clock.

    Attributes:
        address: where it is, "host:port".
        next: the offset of the next transfer; -1: it has not reported yet.
        acknowledged: the offset up to which it has the log, as it says.
        has_only_asked: whether its next report must confirm that; see `proven` and `doubt_others`.
        heard: when it has reported last.
        sent: when it was sent something last.
        rate: of the log that it is sent.
        broker_id: its number at the controller; 0: there is no controller.
        is_learner: whether the controller never elects it.
    """

    address: str
    next: int = -1
    acknowledged: int = 0
    has_only_asked: bool = False
    heard: float = 0.0
    sent: float = 0.0
    rate: TransferRate = msgspec.field(default_factory=TransferRate)
    broker_id: int = 0
    is_learner: bool = False

    @property
    def proven(self) -> int:
        """The offset up to which its reports count as acknowledgements.

        The first one only says where the copy begins: the slave's log may differ before.
        """
        return 0 if self.has_only_asked else self.acknowledged


def doubt_others(slaves: Sequence[SlaveState], new: SlaveState) -> None:
    """Let no other connection from a new slave's host count until it reports again.

    One of them may be the same slave's: it broke, and nobody has told the master.
    """
    host = new.address.rpartition(":")[0]
    for each in slaves:
        if each is not new and each.address.rpartition(":")[0] == host:
            each.has_only_asked = True


class MasterState(msgspec.Struct):
    """What a slave knows of its master. Times are milliseconds since the epoch.

    Attributes:
        address: the one that is followed; "": none is.
        end: where the master's log ended, by its last transfer or answer.
        newest_ms: when the newest record that has arrived was stored; 0: none has.
        heard_ms: when it has sent something last.
        reported_ms: when it was reported to last.
        rate: of the log that it sends.
    """

    address: str = ""
    end: int = 0
    newest_ms: int = 0
    heard_ms: int = 0
    reported_ms: int = 0
    rate: TransferRate = msgspec.field(default_factory=TransferRate)
    _beats: int = 0  # heartbeats since the last bytes of the log

    def take(self, found: Sequence[Transfer], now: float, now_ms: int) -> bool:
        """Note what has arrived; return whether a hint is in it: see `ha_frames`.

        Args:
            found: the transfers.
            now: see `TransferRate`.
            now_ms: milliseconds since the epoch.
        """
        self.heard_ms, has_hint = now_ms, False
        for offset, part in found:
            self.end = max(self.end, offset + len(part))
            self.rate.add(len(part), now)
            self._beats = 0 if part else self._beats + 1
            if self._beats == HINT_BEATS:
                self._beats, has_hint = 0, True
        return has_hint


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


def status_of_master(
    slaves: Sequence[SlaveState], log_end: int, gap_max: int, now: float
) -> dict[str, Any]:
    """Return the status of a master whose log ends at `log_end`; `now`: see `TransferRate`."""
    rows = [
        {
            "addr": slave.address,
            "diff": max(0, log_end - slave.acknowledged),  # an empty slave reports 1
            "inSync": is_in_sync(slave, log_end, gap_max),
            "slaveAckOffset": slave.acknowledged,
            "transferFromWhere": slave.next,
            "transferredByteInSecond": slave.rate.in_last_second(now),
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


def status_of_slave(master: MasterState, log_end: int, now: float) -> dict[str, Any]:
    """Return the status of a slave whose log ends at `log_end`; `now`: see `TransferRate`."""
    return {
        "haClientRuntimeInfo": {
            "lastReadTimestamp": master.heard_ms,
            "lastWriteTimestamp": master.reported_ms,
            "masterAddr": master.address,
            "masterFlushOffset": master.end,
            "maxOffset": log_end,
            "transferredByteInSecond": master.rate.in_last_second(now),
        },
        "haConnectionInfo": [],
        "inSyncSlaveNums": 0,
        "master": False,
        "masterCommitLogMaxOffset": 0,
    }
