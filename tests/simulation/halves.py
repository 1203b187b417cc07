"""The promise of a transaction: a half is unseen until it ends, ends once, and is asked for.

A half that nobody ends is put back by each check-back, its checks counted, and a producer is asked;
after the last check it is given up. The first half and its copies are one transaction.
"""

from typing import TYPE_CHECKING

import msgspec
from tests.simulation.facts import Entry, Violation
from tests.simulation.plan import HALF_TIMEOUT_MS, Plan

from reliable_mq.broker_core.delivery.half import LATE_QUEUE
from reliable_mq.broker_core.names import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import CheckTransactionHeader

if TYPE_CHECKING:
    from tests.simulation.model import Model


class _Transaction(msgspec.Struct, eq=False):
    """What the log has of a transaction. `op` is the first record that names it as ended."""

    halves: list[Entry]
    is_ended: bool = False  # whether somebody said so, stored or not
    commit: Entry | None = None
    op: Entry | None = None
    given_up: Entry | None = None


class Halves:
    """The transactions, by the log offsets of their halves, and of what was given up."""

    def __init__(self, model: "Model", plan: Plan) -> None:
        self._model = model
        self._interval_ms = plan.half_check_ms
        self._checks_max = plan.half_checks_max
        self._slack_ms = 2 * plan.tick_ms + 50
        self._of: dict[int, _Transaction] = {}
        self._pending: dict[str, _Transaction] = {}  # by unique key, those that may be checked
        self._unasked: list[Entry] = []  # copies for which a producer must be asked
        self._asked: set[int] = set()  # log offsets of copies
        self._undisturbed_ms: float | None = None

    def is_ended(self, half: Entry) -> bool:
        """Whether somebody said what becomes of a half."""
        return self._of[half.log_offset].is_ended

    def end(self, half: Entry) -> None:
        """Note that the broker was told so."""
        transaction = self._of[half.log_offset]
        transaction.is_ended = True
        self._pending.pop(half.unique_key, None)

    def reopen(self, half: Entry) -> None:
        """Note that the broker was told so, and refused."""
        transaction = self._of[half.log_offset]
        transaction.is_ended = False
        self._pending[half.unique_key] = transaction

    def appended(self, entry: Entry) -> None:
        """Note a record that a request made; a half is committed once."""
        if entry.topic == HALF_TOPIC and not entry.checks:
            transaction = self._of[entry.log_offset] = _Transaction([entry])
            self._pending[entry.unique_key] = transaction
        if entry.half_offset:
            transaction = self._of[entry.half_offset]
            if transaction.commit:
                raise Violation(f"a half is committed twice, as {entry}")
            transaction.commit = entry

    def recorded(self, entry: Entry, now_ms: int) -> bool:
        """Whether a record says what becomes of halves, or stands for one."""
        if entry.topic == OP_TOPIC:
            self._named(entry)
        elif entry.topic == HALF_TOPIC and entry.checks:
            self._put_back(entry, now_ms)
        elif entry.topic == GIVEN_UP_TOPIC:
            self._given_up(entry)
        else:
            return False
        return True

    def _named(self, op: Entry) -> None:
        topic = GIVEN_UP_TOPIC if op.queue_id == LATE_QUEUE else HALF_TOPIC
        halves = self._model.queues[topic, 0].entries
        for word in filter(None, op.body.decode().split(",")):
            half = halves[int(word)]
            transaction = self._of[half.log_offset]
            if not transaction.is_ended:
                raise Violation(f"{half} is said to have ended, nobody ended it")
            transaction.op = transaction.op or op

    def _put_back(self, copy: Entry, now_ms: int) -> None:
        transaction = self._pending.get(copy.unique_key)
        if transaction is None or transaction.given_up:
            raise Violation(f"{copy} is asked for, its transaction is over")
        last = transaction.halves[-1]
        if copy.checks != last.checks + 1 or copy.checks > self._checks_max:
            raise Violation(f"{copy} counts {copy.checks} checks, it had {last.checks}")
        if 0 <= now_ms - copy.born_time_ms <= HALF_TIMEOUT_MS:
            raise Violation(f"{copy} is asked for {now_ms - copy.born_time_ms} ms after its birth")
        if (copy.real_topic, copy.real_queue_id, copy.body) != (
            last.real_topic,
            last.real_queue_id,
            last.body,
        ):
            raise Violation(f"{copy} is not what it was, {last}")
        transaction.halves.append(copy)
        self._of[copy.log_offset] = transaction
        if self._model.tables.producers:
            self._unasked.append(copy)

    def _given_up(self, entry: Entry) -> None:
        transaction = self._pending.get(entry.unique_key)
        if transaction is None or transaction.given_up:
            raise Violation(f"{entry} is given up, its transaction is over")
        if transaction.halves[-1].checks < self._checks_max:
            raise Violation(f"{entry} is given up after {transaction.halves[-1].checks} checks")
        transaction.given_up = entry
        self._of[entry.log_offset] = transaction

    def asked(self, command: Command) -> None:
        """Note that a producer is asked: once for each copy, when that is stored."""
        header = CheckTransactionHeader.decode(command.ext_fields)
        copy = self._model.by_offset.get(header.commit_log_offset)
        if copy is None or not copy.checks or copy.queue_offset != header.tran_state_table_offset:
            raise Violation(f"a producer is asked for {header}, there is {copy}")
        if copy.number >= self._model.safe or copy.log_offset in self._asked:
            raise Violation(f"a producer is asked too soon, or twice, for {copy}")
        self._asked.add(copy.log_offset)

    def nobody_is_unasked(self, now_ms: int) -> None:
        """Check that somebody was asked for every copy that shows; who asks waits for a slave."""
        visible, copying = self._model.visible, self._model.copying
        while self._unasked and self._unasked[0].number < visible:
            if copying.may_wait(self._unasked[0], now_ms):
                return
            copy = self._unasked.pop(0)
            if copy.log_offset not in self._asked:
                raise Violation(f"there are producers, and none is asked for {copy}")

    def disturbed(self) -> None:
        """Note that the clock begins anew: nothing that was due before is late yet."""
        self._undisturbed_ms = None

    def nothing_is_late(self, now_ms: int) -> None:
        """Check that halves are asked for; called after a look at the clock.

        A round stops at a half that is young, those behind it come with a later one. After the
        clock was set back, such a half may be the first one for longer than usual.
        """
        if self._undisturbed_ms is None:
            self._undisturbed_ms = now_ms
        wait_ms = HALF_TIMEOUT_MS + 2 * self._interval_ms + self._slack_ms
        pending = self._pending.values() if self._interval_ms else ()
        stopped_ms = self._undisturbed_ms  # until then a round may stop before
        for transaction in sorted(pending, key=lambda each: each.halves[-1].queue_offset):
            last = transaction.halves[-1]
            if not transaction.given_up:
                stopped_ms = max(stopped_ms, last.born_time_ms + HALF_TIMEOUT_MS)
            since_ms = max(stopped_ms, last.shown_ms)
            is_due = not transaction.given_up and last.number < self._model.visible
            is_due = is_due and not self._model.is_gone(last)
            if is_due and since_ms + wait_ms < now_ms:
                raise Violation(f"{last} is late: nobody was asked, or it was not given up")

    def all_are_settled(self) -> None:
        """Check that every transaction ended, or was given up."""
        for transaction in self._pending.values() if self._interval_ms else ():
            if not transaction.given_up and not self._model.is_gone(transaction.halves[-1]):
                raise Violation(f"{transaction.halves[-1]} neither ended nor was given up")

    def safe_number(self, half: Entry) -> int | None:
        """Return the number of the record that keeps a half ended, None when none does."""
        transaction = self._of[half.log_offset]
        kept = [entry.number for entry in (transaction.commit, transaction.op) if entry]
        return min(kept, default=None)

    def forget(self, entry: Entry) -> None:
        """Note that a crash took a record."""
        transaction = self._of.pop(entry.log_offset, None)
        if transaction is not None and entry in transaction.halves:
            transaction.halves.remove(entry)
            self._asked.discard(entry.log_offset)
        for each in self._of.values():
            each.commit = None if each.commit is entry else each.commit
            each.op = None if each.op is entry else each.op
            each.given_up = None if each.given_up is entry else each.given_up

    def opened(self) -> None:
        """Begin another life: what was said and not stored is forgotten."""
        self._undisturbed_ms = None
        self._unasked.clear()
        self._pending.clear()
        for transaction in self._of.values():
            transaction.is_ended = bool(transaction.commit or transaction.op)
            if not transaction.is_ended:
                self._pending[transaction.halves[0].unique_key] = transaction
