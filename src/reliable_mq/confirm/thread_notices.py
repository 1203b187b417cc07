"""Sends notices to other databases about the messages that consumer groups here have handled.

Receives notices that consumers committed, and searches the consume log for owed ones. Sends them,
many messages in each notice. A notice that could not be sent stays owed: its row says when any
process may try again.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from reliable_mq.confirm.notice import IDS_MAX, SECONDS_MAX, Notice
from reliable_mq.confirm.sql_owed_notices import OwedNotice
from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.message import CONTENT_TYPE, Message, SendResult, SendStatus
from reliable_mq.outbox.composing import fresh_message_id
from reliable_mq.outbox.payload import encode_payload
from reliable_mq.outbox.relay import StubSender

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.1
"""Seconds that a notice waits for others: each notice is a transaction in the other database."""
LOOK_SECONDS = 5.0
"""Seconds between searches for notices that a crash or an absent broker left behind."""
SOON_SECONDS = 0.2
_NOTE_LENGTH_MAX = 500


NoticeGroup = tuple[str, str, list[OwedNotice]]
"""(topic, consumer group, the messages in one notice)"""


class OwedNotices(Protocol):
    """What the sender of notices needs from the consume log; see `confirm.sql_owed_notices`."""

    def claim(self, now: float, limit: int) -> list[OwedNotice]: ...

    def record_acknowledged(self, owed: Sequence[OwedNotice]) -> None: ...


class NoticeCounts(msgspec.Struct, frozen=True):
    """Counts of one run: messages whose notice was sent, messages whose notice was not sent."""

    sent: int = 0
    failed: int = 0
    is_full: bool = False


class Notices:
    """Sends owed notices, and records the broker's acknowledgements.

    Invariant E1: a notice is settled only after the broker has stored it.

    Args:
        debts: the owed notices in the consume log.
        sender: sends messages.
        batch: the most messages that are claimed at once. Default 500.
    """

    def __init__(self, debts: OwedNotices, sender: StubSender, *, batch: int = IDS_MAX) -> None:
        self._owed_notices = debts
        self._sender = sender
        self._batch = batch
        self._in_hand: list[OwedNotice] = []
        #: Why a notice of the last run was not sent; "" before the first error.
        self.last_error = ""

    def accept(self, owed: Sequence[OwedNotice]) -> None:
        """Add committed notices; for a while, no other process sends them."""
        self._in_hand += owed

    def run_once(self, now: float, *, looks: bool) -> NoticeCounts:
        """Send accepted notices and, if `looks`, owed ones that any process may send now.

        Raises what the database raises; notices that were not settled are sent again.
        """
        owed, self._in_hand = self._in_hand, []
        found = self._owed_notices.claim(now, self._batch) if looks else []
        groups = _grouped_notices([*owed, *found])
        sent = self._send(groups, now) if groups else []
        if sent:
            self._owed_notices.record_acknowledged(sent)
        failed = sum(len(some) for _, _, some in groups) - len(sent)
        return NoticeCounts(len(sent), failed, len(found) == self._batch)

    def _send(self, groups: Sequence[NoticeGroup], now: float) -> list[OwedNotice]:
        messages = [_message(topic, group, some, now) for topic, group, some in groups]
        results: Sequence[SendResult | Exception]
        try:
            results = self._sender.send_many(messages)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing was acknowledged
            results = [error] * len(messages)
        sent = []
        for (_, _, some), result in zip(groups, results, strict=True):
            if isinstance(result, SendResult) and result.status is SendStatus.SEND_OK:
                sent += some
            else:
                self.last_error = str(getattr(result, "status", result))
        return sent


def _grouped_notices(owed: Sequence[OwedNotice]) -> list[NoticeGroup]:
    """Group owed notices by topic and group, with at most `IDS_MAX` messages in one."""
    by_address: dict[tuple[str, str], dict[str, OwedNotice]] = {}
    for each in owed:
        some = by_address.setdefault((each.topic, each.group), {})
        if not (each.message_id in some and some[each.message_id].is_consumed):
            some[each.message_id] = each
    return [
        (topic, group, whole[at : at + IDS_MAX])
        for (topic, group), some in by_address.items()
        for whole in [list(some.values())]
        for at in range(0, len(whole), IDS_MAX)
    ]


def _message(topic: str, group: str, owed: Sequence[OwedNotice], now: float) -> Message:
    failed = [each for each in owed if not each.is_consumed]
    notice = Notice(
        group=group,
        consumed=tuple(each.message_id for each in owed if each.is_consumed),
        failed={
            each.message_id: min(max(0.0, (each.retry_at or now) - now), SECONDS_MAX)
            for each in failed
            if each.note is None
        },
        given_up={
            each.message_id: each.note[:_NOTE_LENGTH_MAX]
            for each in failed
            if each.note is not None
        },
    )
    body, content_type = encode_payload(notice)
    return Message(
        topic=topic,
        body=body,
        message_id=fresh_message_id(now, os.urandom),
        properties={CONTENT_TYPE: content_type},
    )


class NoticeThread:
    """Runs `Notices` in a daemon thread.

    Invariant: only this thread touches the notices; `accept_committed` and `look_soon` never wait.

    Args:
        notices: the notices to run.
        clock: returns the time for the rows, in seconds since the epoch; may wait.
        name: the database's name, for the log.
    """

    def __init__(
        self, notices: Notices, clock: Callable[[], float] = time.time, name: str = ""
    ) -> None:
        self._notices = notices
        self._clock = clock
        self._inbox: queue.SimpleQueue[Sequence[OwedNotice]] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, name=f"reliable-mq-notices-{name}", daemon=True
        )
        self._look_at = 0.0
        self._closing_by: float | None = None
        self._faults = FaultLog(log, f"notices of database {name}")

    def start(self) -> None:
        """Start the thread; it searches at once for notices that are owed."""
        self._thread.start()

    def accept_committed(self, owed: Sequence[OwedNotice]) -> None:
        """Hand over committed notices."""
        self._inbox.put(owed)

    def look_soon(self) -> None:
        """Search for owed notices soon."""
        self._look_at = min(self._look_at, time.monotonic() + SOON_SECONDS)
        self._inbox.put(())

    def close(self, timeout: float = 5.0) -> None:
        """Send accepted notices for at most `timeout` seconds, then stop; the rest stays owed."""
        self._closing_by = time.monotonic() + timeout
        self._inbox.put(())
        if self._thread.is_alive():
            self._thread.join(timeout + 1.0)

    def _run(self) -> None:
        while True:
            has_more = self._take()
            if self._closing_by is not None and time.monotonic() >= self._closing_by:
                return
            looks = time.monotonic() >= self._look_at
            if has_more or looks:
                self._work(looks)
            if self._closing_by is not None and self._inbox.empty():
                return

    def _take(self) -> bool:
        """Wait for something to do; return whether notices were handed over."""
        has_more = False
        until = self._look_at
        while True:
            wait = max(0.0, until - time.monotonic())
            try:
                owed = self._inbox.get(timeout=0.0 if self._closing_by is not None else wait)
            except queue.Empty:
                return has_more
            self._notices.accept(owed)
            if owed and not has_more:
                has_more = True
                until = min(until, time.monotonic() + GATHER_SECONDS)
            elif not owed:
                until = min(until, self._look_at)

    def _work(self, looks: bool) -> None:
        if looks:
            self._look_at = time.monotonic() + LOOK_SECONDS
        try:
            counts = self._notices.run_once(self._clock(), looks=looks)
        except Exception as error:  # noqa: BLE001 - the fault log reports it
            self._faults.log_fault(error)
            return
        if counts.is_full:
            self._look_at = 0.0
        if counts.failed:
            line = f"{counts.failed} notice(s) could not be sent, they will be sent again"
            self._faults.log_line("unsent", f"{line}: {self._notices.last_error}")
        elif counts.sent and self._faults.is_failing:
            self._faults.note_success()
