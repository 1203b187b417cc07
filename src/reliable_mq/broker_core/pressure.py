"""Whether sends are refused now, and in which words: a full disk, or a log that does not keep up.

Receives what the disk and the sends that wait say, a few times a second; hands on a refusal that a
send looks at once. Reads are never refused here.
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
_RETRY_MS = 500  # between two tries to give the log its next file
_TABLES_SIZE = 1024 * 1024  # bytes: with less left, a configuration file may find no room
# So many sends go into the log together, however slow it is: they are no queue.
_TOGETHER = 64


class PressureLimits(NamedTuple):
    """Under Apache's names: waitTimeMillsInSendQueue, osPageCacheBusyTimeOutMills,
    sendThreadPoolQueueCapacity. Times in milliseconds."""

    wait_ms: int
    stuck_ms: int
    waiting_max: int


class Pressure:
    """Why sends are refused: `refusal` is None, or the code and remark of the answer."""

    def __init__(self, limits: PressureLimits) -> None:
        self.limits = limits
        self.refusal: tuple[ResponseCode, str] | None = None
        self._used = 0.0
        self._is_full = False
        self._has_bytes = True
        self._has_room = True
        self._retry_ms = 0  # until when the log is without its next file; 0: it is not
        self.refused = 0  # how many sends, since the start
        self.waiting = 0  # how many sends wait for the log
        self._released = 0
        self._since_ms = 0
        self.wait_ms = 0  # how long the log has not moved while sends wait

    @property
    def is_disk_full(self) -> bool:
        """Whether nothing is to be written for want of room."""
        return self._is_full or not self._has_room or self._retry_ms > 0

    def note_disk(self, used: float, *, is_full: bool, free_size: int = _TABLES_SIZE) -> None:
        """Note how full the disk is, whether that is too full for messages, and the bytes left."""
        self._used = used
        self._is_full = is_full
        self._has_bytes = free_size >= _TABLES_SIZE
        self._judge()

    def change_limits(self, limits: PressureLimits, *, is_full: bool) -> None:
        """Go on with other limits, and with whether the disk is too full by the rules of now."""
        self.limits = limits
        self._is_full = is_full
        self._judge()

    def note_room(self, *, has_room: bool) -> None:
        """Note whether the system had room for the last write."""
        self._has_room = has_room
        self._judge()

    def note_no_file(self, now_ms: int) -> None:
        """Note that there was no room for the log's next file; a little later it is tried again."""
        self._retry_ms = now_ms + _RETRY_MS
        self._judge()

    def note_sends(self, waiting: int, released: int, now_ms: int) -> None:
        """Note how many sends wait for the log, and up to where it has let sends go."""
        is_new = not waiting or not self.waiting or released != self._released
        if is_new or now_ms < self._since_ms:
            self._since_ms = now_ms
        if not now_ms < self._retry_ms <= now_ms + _RETRY_MS:  # later says: the clock went back
            self._retry_ms = 0
        self._released = released
        self.waiting = waiting
        self.wait_ms = now_ms - self._since_ms
        self._judge()

    def check(self) -> None:
        """Refuse a send that cannot be stored now.

        Raises:
            Refused: when it cannot.
        """
        if self.refusal is not None:
            self.refused += 1
            raise RequestRefused(*self.refusal)

    def check_tables(self) -> None:
        """Refuse what changes a table whose file would find no room: it would wait for its answer.

        Above a mark of the retention messages are refused, and tables still have room.

        Raises:
            Refused: when there is none.
        """
        if not self._has_room or self._retry_ms > 0 or not self._has_bytes:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "the broker's disk is full, nothing was changed: make room and ask again",
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
            self.refusal = (
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]system busy, start flow control for a while",
            )
        elif wait_ms >= limits.wait_ms and waiting > _TOGETHER:
            self.refusal = _busy("TIMEOUT_CLEAN_QUEUE", wait_ms, waiting)


def _busy(reason: str, wait_ms: int, waiting: int) -> tuple[ResponseCode, str]:
    return ResponseCode.SYSTEM_BUSY, _BUSY.format(reason, wait_ms, waiting)
