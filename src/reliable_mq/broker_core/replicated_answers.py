"""The replies of a synchronous master: those to stored messages wait for slaves, too.

Receives how far the log is stored, and how far enough slaves have it. A reply that waits too long
leaves with FLUSH_SLAVE_TIMEOUT, and without enough slaves with SLAVE_NOT_AVAILABLE. The message is
stored in both cases, and clients know these codes.
Source: Apache RocketMQ `GroupTransferService`, `CommitLog.handleDiskFlushAndHA`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from reliable_mq.broker_core.answers import Answer, Answers
from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import decode_command
from reliable_mq.wire.frame import FrameReader
from reliable_mq.wire.long_frame import AnyFrame


def answers_of(config: BrokerConfig) -> Answers:
    """Return the replies of a broker with these settings."""
    return ReplicatedAnswers(config.slave_timeout_ms) if config.waits_for_slaves else Answers()


class ReplicatedAnswers(Answers):
    """The replies of a broker with `brokerRole=SYNC_MASTER`.

    Invariant K8: a reply with SUCCESS leaves only when enough slaves have acknowledged the log up
    to its offset.

    Attributes:
        on_acknowledged: called before replies with SUCCESS leave, with the log offset up to which
            they do.

    Args:
        timeout_ms: how long a reply waits for slaves after its record is stored (`slaveTimeout`).
    """

    def __init__(self, timeout_ms: int) -> None:
        super().__init__()
        self._timeout_ms = timeout_ms
        self._stored = 0
        self._acknowledged = 0
        self._looks: deque[tuple[int, int]] = deque()  # how far the log was stored, and when
        self.has_slaves = False
        self.on_acknowledged: Callable[[int], None] = lambda _offset: None

    def invariants(self) -> None:
        """S2 and K8: nothing is released that is not stored, and the looks are in order."""
        super().invariants()
        if self.released > self._stored:
            raise InvariantBroken(f"K8: {self.released} is released, {self._stored} is stored")
        if any(first >= second for (first, _), (second, _) in pairwise(self._looks)):
            raise InvariantBroken("K8: the looks at the log are out of order")

    def release(self, end: int) -> int:
        """See `Answers`; only what slaves have acknowledged is released."""
        self._stored = max(self._stored, end)
        if not self.has_slaves:
            return self._give_up(self._stored, ResponseCode.SLAVE_NOT_AVAILABLE)
        return self._acknowledge_up_to(min(self._stored, self._acknowledged))

    def _acknowledge_up_to(self, end: int) -> int:
        """Release replies with SUCCESS, after this was noted."""
        if end > self.released:
            self.on_acknowledged(end)
        return super().release(end)

    def acknowledge(self, offset: int, *, has_slaves: bool) -> None:
        """Note how far enough slaves have the log, and whether so many are connected."""
        self._acknowledged = max(self._acknowledged, offset)
        self.has_slaves = has_slaves
        self.release(self._stored)

    def expire(self, now_ms: int) -> None:
        """Give up the replies that have waited too long; call it at each tick."""
        looks = self._looks
        if self._stored > self.released and (not looks or looks[-1][0] < self._stored):
            looks.append((self._stored, now_ms))
        end = 0
        while looks and (looks[0][0] <= self.released or self._is_over(looks[0][1], now_ms)):
            end = looks.popleft()[0]
        if end > self.released:
            self._give_up(end, ResponseCode.FLUSH_SLAVE_TIMEOUT)

    def late(self, connection: int, end: int, frame: bytes) -> None:
        """See `Answers`; a reply whose turn was given up says so, too."""
        known = len(self.ready)
        super().late(connection, end, frame)
        self._tell(known, end)

    def _withhold(self, log_end: int) -> None:
        known = len(self.ready)
        super()._withhold(log_end)
        self._tell(known, log_end)

    def _tell(self, known: int, end: int) -> None:
        """Let what became ready behind `known` say that slaves lack the log up to `end`."""
        if len(self.ready) == known:
            return
        if end <= self._acknowledged:
            self.on_acknowledged(end)
        else:
            no_slave, is_late = ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT
            code = is_late if self.has_slaves else no_slave
            self.ready[known:] = with_code(self.ready[known:], code)

    def _is_over(self, since_ms: int, now_ms: int) -> bool:
        """Whether a wait has ended; also if the clock was set back."""
        return not since_ms <= now_ms < since_ms + self._timeout_ms

    def _give_up(self, end: int, code: ResponseCode) -> int:
        """Release replies up to `end`; those that slaves have not acknowledged say so."""
        count = self._acknowledge_up_to(min(end, self._acknowledged))
        known = len(self.ready)
        count += super().release(end)
        self.ready[known:] = with_code(self.ready[known:], code)
        return count


def with_code(answers: Sequence[Answer], code: ResponseCode) -> list[Answer]:
    """Return replies in which those to stored messages have another code than SUCCESS."""
    return [(connection, _changed(frame, code)) for connection, frame in answers]


def _changed(frame: AnyFrame, code: ResponseCode) -> AnyFrame:
    if not isinstance(frame, bytes):  # it has messages, and waits for no slave
        return frame
    (cut,) = FrameReader().feed(frame)
    answer = decode_command(cut)
    if answer.code != ResponseCode.SUCCESS or "msgId" not in answer.ext_fields:
        return frame
    answer.code = code
    return encode_answer(answer)
