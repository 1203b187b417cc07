"""Backpressure: whether sends are refused now, and why: a full disk, or a log that is too slow.

Receives the state of the disk and the number of waiting sends, several times per second. Keeps the
refusal ready, so that a check of a send is cheap. Reads are never refused here.
Source: Apache RocketMQ `SendMessageProcessor`, `BrokerFastFailure`, `NettyRemotingAbstract`.
"""

from typing import NamedTuple

from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.wire.codes import ResponseCode

_DISK_FULL = (
    "service not available now. It may be caused by one of the following reasons: the broker's "
    "disk is full [{}], messages are put to the slave, message store has been shut down, etc."
)
_BUSY = "[{}]broker busy, start flow control for a while, period in queue: {}ms, size of queue: {}"
OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
_RETRY_MS = 500  # between two attempts to create the log's next file
_TABLES_SIZE = 1024 * 1024  # free bytes; with less, a configuration file may not fit
# So many sends are appended together even if the log is slow; they do not count as a backlog.
_TOGETHER = 64


class PressureLimits(NamedTuple):
    """Limits under Apache's names: waitTimeMillsInSendQueue, osPageCacheBusyTimeOutMills,
    sendThreadPoolQueueCapacity. Times in milliseconds."""

    wait_ms: int
    stuck_ms: int
    waiting_max: int


class Pressure:
    """Decides whether sends are refused: `refusal` is None, or the code and remark of the reply."""

    def __init__(self, limits: PressureLimits) -> None:
        self.limits = limits
        self.refusal: tuple[ResponseCode, str] | None = None
        self._used = 0.0
        self._is_full = False
        self._has_bytes = True
        self._has_room = True
        self._retry_ms = 0  # when to retry the log's next file; 0: the log has its file
        self.refused = 0  # sends refused since the start
        self.waiting = 0  # sends that wait for the log
        self._released = 0
        self._since_ms = 0
        self.wait_ms = 0  # how long the log has made no progress while sends wait

    @property
    def is_disk_full(self) -> bool:
        """Whether there is no room to write messages."""
        return self._is_full or not self._has_room or self._retry_ms > 0

    def note_disk(self, used: float, *, is_full: bool, free_size: int = _TABLES_SIZE) -> None:
        """Note the used share of the disk, whether it is too full for messages, and free bytes."""
        self._used = used
        self._is_full = is_full
        self._has_bytes = free_size >= _TABLES_SIZE
        self._judge()

    def change_limits(self, limits: PressureLimits, *, is_full: bool) -> None:
        """Set new limits, and whether the disk is too full under the new retention rules."""
        self.limits = limits
        self._is_full = is_full
        self._judge()

    def note_room(self, *, has_room: bool) -> None:
        """Note whether the last write had room."""
        self._has_room = has_room
        self._judge()

    def note_no_file(self, now_ms: int) -> None:
        """Note that there was no room for the log's next file; retry after a short time."""
        self._retry_ms = now_ms + _RETRY_MS
        self._judge()

    def note_sends(self, waiting: int, released: int, now_ms: int) -> None:
        """Note how many sends wait, and the log offset up to which sends are answered."""
        is_new = not waiting or not self.waiting or released != self._released
        if is_new or now_ms < self._since_ms:
            self._since_ms = now_ms
        if not now_ms < self._retry_ms <= now_ms + _RETRY_MS:  # a later time: the clock went back
            self._retry_ms = 0
        self._released = released
        self.waiting = waiting
        self.wait_ms = now_ms - self._since_ms
        self._judge()

    def check(self) -> None:
        """Refuse a send that cannot be stored now.

        Raises:
            RequestRefused: when sends are refused now.
        """
        if self.refusal is not None:
            self.refused += 1
            raise RequestRefused(*self.refusal)

    def check_tables(self) -> None:
        """Refuse a table change if its file may not fit on the disk: its reply would never leave.

        When only the retention limit refuses messages, tables still have room.

        Raises:
            RequestRefused: when there is no room for tables.
        """
        if not self._has_room or self._retry_ms > 0 or not self._has_bytes:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "the broker's disk is full and nothing was changed: free some space and retry",
            )

    def _judge(self) -> None:
        limits, wait_ms, waiting = self.limits, self.wait_ms, self.waiting
        self.refusal = None
        if self.is_disk_full:
            share = f"{self._used if self._is_full else 1.0:5.2f}"
            shares = f"CL: {share} CQ: {share} INDEX: {share}"
            self.refusal = ResponseCode.SERVICE_NOT_AVAILABLE, _DISK_FULL.format(shares)
        elif wait_ms >= limits.stuck_ms:
            self.refusal = _busy("PCBUSY_CLEAN_QUEUE", wait_ms, waiting)
        elif waiting >= limits.waiting_max:
            self.refusal = ResponseCode.SYSTEM_BUSY, OVERLOAD
        elif wait_ms >= limits.wait_ms and waiting > _TOGETHER:
            self.refusal = _busy("TIMEOUT_CLEAN_QUEUE", wait_ms, waiting)


def _busy(reason: str, wait_ms: int, waiting: int) -> tuple[ResponseCode, str]:
    return ResponseCode.SYSTEM_BUSY, _BUSY.format(reason, wait_ms, waiting)
