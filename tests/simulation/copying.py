"""The promise of a synchronous master: SEND_OK says that a slave has the message, too.

Without a slave, or when it takes too long, the answer says so; the message is stored all the same.
"""

from collections.abc import Callable

from tests.simulation.facts import Entry
from tests.simulation.plan import Plan

from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command

_NO_SLAVE = (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)


class Copying:
    """What a master's answers say of its slave; nothing unless it waits for one."""

    def __init__(self, plan: Plan) -> None:
        self._timeout_ms = plan.slave_timeout_ms
        self._slack_ms = 3 * plan.tick_ms
        self.on_copied: Callable[[Entry], None] = lambda _entry: None
        self.ok_count = self.stored_count = 0  # answers that say SEND_OK, and the others

    def answered(self, last: Entry, reply: Command) -> None:
        """Judge the answer to what stored a message; what it says of slaves is taken from it."""
        if not self._timeout_ms or "msgId" not in reply.ext_fields:
            return
        if reply.code in _NO_SLAVE:
            reply.code = ResponseCode.SUCCESS
            self.stored_count += 1
        elif not reply.code:
            self.ok_count += 1
            self.on_copied(last)

    def clock_was_set(self, change_ms: float) -> None:
        """Note that the clock jumped: who waits may wait for so much longer."""
        self._slack_ms += abs(change_ms)

    def may_wait(self, last: Entry, now_ms: int) -> bool:
        """Whether an answer may still wait for a slave that was stored some time ago."""
        if not self._timeout_ms:
            return False
        return now_ms - last.shown_ms <= self._timeout_ms + self._slack_ms
