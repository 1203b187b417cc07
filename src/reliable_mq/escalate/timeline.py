"""The timeline of one message: entries from all ledgers, in the order of time. Pure.

Receives the rows and records of one message. Returns timeline entries. Where two ledgers disagree,
the timeline shows both.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from reliable_mq.client.consuming.settling import DEAD_LETTER_REASON
from reliable_mq.database.attempt_list import (
    AttemptEnd,
    EndedAttempt,
    attempts_of,
    is_full,
    listed_reason,
)
from reliable_mq.database.row_values import LogState, StubStatus, is_skipped
from reliable_mq.escalate.escalation import AlertState
from reliable_mq.escalate.stub_filter import status_text
from reliable_mq.message import ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from reliable_mq.plain_text import times

Row = Mapping[str, Any]
_ONE_TRANSACTION = timedelta(seconds=1)
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


class MessageHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one message in the tables of one database. A row maps column names to values.

    `alerts` has one row for each notifier and each escalation that is open or was sent. The row
    also has the notifier's `failures`, `notifier_note` and `next_time`. `state` is None while the
    notifier has not gathered the escalation.
    """

    stub: Row | None = None
    logs: Sequence[Row] = ()
    confirmations: Sequence[Row] = ()
    escalations: Sequence[Row] = ()
    alerts: Sequence[Row] = ()
    audits: Sequence[Row] = ()
    findings: Sequence[Row] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no table has a row of the message."""
        return not any(getattr(self, name) for name in self.__struct_fields__)


def merged(histories: Sequence[MessageHistory]) -> MessageHistory:
    """Merge the histories of one message from several databases. Only one of them has its stub."""
    stubs = [each.stub for each in histories if each.stub is not None]
    return MessageHistory(
        stub=stubs[0] if stubs else None,
        logs=[row for each in histories for row in each.logs],
        confirmations=[row for each in histories for row in each.confirmations],
        escalations=[row for each in histories for row in each.escalations],
        alerts=[row for each in histories for row in each.alerts],
        audits=[row for each in histories for row in each.audits],
        findings=[row for each in histories for row in each.findings],
    )


class TimelineEntry(msgspec.Struct, frozen=True):
    """Something that happened or will happen. `time` None: the time is unknown."""

    time: datetime | None
    ledger: str
    what: str


def timeline(
    history: MessageHistory,
    records: Sequence[ReceivedMessage] = (),
    more: Iterable[TimelineEntry] = (),
) -> list[TimelineEntry]:
    """Return the timeline of a message, in order. Entries without a known time come last.

    What happened in the same millisecond, as a broker counts, is in the order of cause and effect.

    Args:
        history: the rows of the databases.
        records: the broker's records: the message, and its copies in retry and dead-letter topics.
        more: entries of the broker that its records do not show.
    """
    found: list[TimelineEntry] = []
    if history.stub is not None:
        found += _of_stub(history.stub)
    rows = [*([] if history.stub is None else [history.stub]), *history.logs]
    sent_to = next((row.get("topic") or "" for row in rows), "")
    found += [_of_record(record, sent_to) for record in records]
    found += more
    for log in history.logs:
        found += _of_log(log)
    found += map(_of_confirmation, history.confirmations)
    found += map(_of_audit, history.audits)
    if history.stub is not None:
        found += _of_stub_state(history.stub)
    for escalation in history.escalations:
        found += _of_escalation(escalation)
    found += [moment for alert in history.alerts for moment in _of_alert(alert)]
    found += map(_of_finding, history.findings)
    confirmed = _confirmed_at(history)

    def order(moment: TimelineEntry) -> datetime:
        time = moment.time or _END_OF_TIME
        is_end = moment.ledger == "stub" and moment.what.startswith(StubStatus.CONFIRMED.name)
        time = max(time, confirmed) if is_end and confirmed is not None else time
        return time.replace(microsecond=time.microsecond // 1000 * 1000)

    return sorted(found, key=order)  # equal ones stay in the order of cause and effect


def _confirmed_at(history: MessageHistory) -> datetime | None:
    """Return when the last consumption was that let its transaction confirm the stub.

    Both are one transaction, and read its clock at two moments.
    """
    stub = history.stub
    if stub is None or stub["update_date"] is None:
        return None
    until = stub["update_date"] + _ONE_TRANSACTION
    times = [log["consume_date"] for log in history.logs if log["consume_date"] is not None]
    return max((time for time in times if time <= until), default=None)


def _of_stub(stub: Row) -> Iterator[TimelineEntry]:
    groups = f" for {stub['required_groups']}" if stub["required_groups"] else ""
    key = f", key {stub['message_key']}" if stub["message_key"] else ""
    yield TimelineEntry(
        stub["create_date"], "stub", f"committed: topic {stub['topic']}{key}{groups}"
    )
    if stub["deliver_time"] is not None:
        yield TimelineEntry(stub["deliver_time"], "stub", "delivery time of the message")


def _of_stub_state(stub: Row) -> Iterator[TimelineEntry]:
    sent = f"sent {times(stub['count'])}"
    if stub["count"] and stub["broker_name"] is None:
        sent = f"a send was tried {times(stub['count'])}, and no broker has acknowledged one"
    if not stub["count"] and stub["status"] == StubStatus.CONFIRMED:
        sent = "no send is noted here: dlq retry sent it, or the process died right after the send"
    if stub["broker_name"] is not None:
        place = f"{stub['broker_name']}, queue {stub['queue_id']}, offset {stub['offset']}"
        sent += f", acknowledged at {place}"
    is_settled = stub["status"] == StubStatus.CONFIRMED
    noted = f"{'; noted before' if is_settled else ''}: {stub['note']}" if stub["note"] else ""
    yield TimelineEntry(
        stub["update_date"], "stub", f"{status_text(stub['status'])}, {sent}{noted}"
    )
    if stub["status"] != StubStatus.UNCONFIRMED:
        return
    if stub["resend_time"] is None:
        why = "was given up by a consumer group" if stub["given_up"] else "has used up its sends"
        yield TimelineEntry(None, "stub", f"waits for a person: it {why}")
    else:
        yield TimelineEntry(stub["resend_time"], "stub", _next_step(stub))


def _next_step(stub: Row) -> str:
    """Return, as text, what the scheduler does with a stub when it is due."""
    due, is_free = stub["deliver_time"], stub["owner"] is None and stub["broker_name"] is None
    if due is not None and is_free and stub["resend_time"] < due:
        return "to be sent, and to wait at the broker for its time; until then it waits here"
    return "to be checked again by the resend scheduler"


def _of_log(log: Row) -> Iterator[TimelineEntry]:
    ledger, attempt = f"log of {log['consumer_group']}", log["attempt"]
    counted = _counted(attempt, in_doubt=bool(log.get("in_doubt")))
    listed, failure = attempts_of(log.get("failures")), log.get("failure")
    if failure and any(each.reason == listed_reason(failure) for each in listed):
        failure = None  # its own entry says it; a process of an older release lists nothing
    is_consumed, skipped = log["consume_date"] is not None, is_skipped(log)
    if not is_consumed or log["create_date"] < log["consume_date"]:
        yield TimelineEntry(log["create_date"], ledger, "first received")
    for each in listed:
        yield TimelineEntry(each.time, ledger, _ended(each))
    if listed and is_full(log["failures"]):
        what = "the list of attempts is full: later ones may be missing in it"
        yield TimelineEntry(listed[-1].time, ledger, what)
    if skipped:
        yield TimelineEntry(log["consume_date"], ledger, _skipped(log))
        return
    if is_consumed:
        earlier = f"; an earlier one failed: {failure}" if failure else ""
        yield TimelineEntry(log["consume_date"], ledger, f"consumed, {counted}{earlier}")
        return
    at = log["lease_until"]
    if log["owner"] is not None:
        what = f"{counted} is running, or its process died: its lease ends at this time"
    elif log["note"]:
        what = f"{counted} was the last one: {log['note']}"
    else:
        is_uncounted = not attempt and (failure or listed)
        ended = "no attempt counted yet" if is_uncounted else f"{counted} failed"
        again = "may be tried again" if at is None else "not tried again before this time"
        what = f"{ended}{f': {failure}' if failure else ''}; {again}"
        if at is not None:  # an attempt that does not count leaves the time as it was
            at = max([at, *(each.time for each in listed if each.time is not None)])
    yield TimelineEntry(at, ledger, what)


def _skipped(log: Row) -> str:
    """Return that a person let a group skip the message, with the name and the reason."""
    number = log["attempt"]
    attempts = f"after attempts 1 to {number}" if number > 1 else "after attempt 1"
    if not number:
        attempts = "before an attempt counted"
    elif log.get("in_doubt"):
        which = "one of them" if number > 1 else "which"
        attempts += f", {which} is in doubt: its effect elsewhere may have happened"
    elif number > 1:
        attempts += ": none of them had an effect in this database"
    return f"{log['note'] or 'skipped by a person'} ({attempts}); the handler has no effect"


def _ended(attempt: EndedAttempt) -> str:
    """Return how an attempt without an effect ended."""
    reason = f": {attempt.reason}" if attempt.reason else ""
    match attempt.end:
        case AttemptEnd.FAILED:
            return f"attempt {attempt.number} failed{reason}"
        case AttemptEnd.POSTPONED:
            return f"attempt {attempt.number} was postponed and does not count{reason}"
        case AttemptEnd.REJECTED:
            return f"attempt {attempt.number} rejected the message{reason}"
        case AttemptEnd.IN_DOUBT:
            return f"attempt {attempt.number} is in doubt{reason}"
        case AttemptEnd.GIVEN_UP:
            return f"given up, the handler was not called again{reason}"
        case None:
            return attempt.reason


def _counted(attempt: int, *, in_doubt: bool) -> str:
    """Return an attempt by its number, and what is known of the earlier ones."""
    if attempt <= 1:
        return f"attempt {attempt}"
    earlier = "attempt 1" if attempt == 2 else f"attempts 1 to {attempt - 1}"
    if not in_doubt:
        return f"attempt {attempt} ({earlier} had no effect in this database)"
    doubtful = "attempt 1 is" if attempt == 2 else f"one of {earlier} is"
    return f"attempt {attempt} ({doubtful} in doubt: its effect elsewhere may have happened)"


def _of_confirmation(notice: Row) -> TimelineEntry:
    group = notice["consumer_group"]
    if notice["state"] == LogState.CONSUMED:
        return TimelineEntry(
            notice["update_date"], "notice", f"from the database of {group}: consumed"
        )
    what = f"from the database of {group}: an attempt failed"
    return TimelineEntry(notice["update_date"], "notice", what)


def _group_of(retry_topic: str, sent_to: str) -> str:
    """Return the consumer group of a retry topic; that of one topic ends with the topic's name."""
    name = retry_topic.removeprefix(RETRY_PREFIX)
    for end in (f"_{sent_to}", f"+{sent_to}"):
        if sent_to and name.endswith(end):
            return name.removesuffix(end)
    return name


def _of_record(record: ReceivedMessage, sent_to: str) -> TimelineEntry:
    topic, place = record.queue.topic, f"{record.queue.broker_name}, queue {record.queue.queue_id}"
    what = f"stored in {topic}: {place}, offset {record.queue_offset}"
    if topic.startswith(DEAD_LETTER_PREFIX):
        reason = record.properties.get(DEAD_LETTER_REASON, "no reason was given")
        what = f"dead letter of {topic.removeprefix(DEAD_LETTER_PREFIX)}: {reason}"
    elif topic.startswith(RETRY_PREFIX):
        group, failed = _group_of(topic, sent_to), record.reconsume_times
        what = f"to be delivered to {group} again"
        what += f" after failed attempt {failed}" if failed else ""
    time = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=record.store_time_ms)
    return TimelineEntry(time, "broker", what)


def _of_escalation(escalation: Row) -> Iterator[TimelineEntry]:
    group = f" of {escalation['consumer_group']}" if escalation["consumer_group"] else ""
    what = f"{escalation['kind']}{group}: {escalation['reason']}"
    yield TimelineEntry(escalation["create_date"], "escalation", what)
    if escalation["close_date"] is not None:
        closed = f"closed by {escalation['close_reason']}: {escalation['kind']}{group}"
        yield TimelineEntry(escalation["close_date"], "escalation", closed)


def _of_alert(alert: Row) -> Iterator[TimelineEntry]:
    name, state = alert["notifier"], alert["state"]
    if state == AlertState.TOLD:
        yield TimelineEntry(
            alert["told_date"], "alert", f"sent by {name}, digest {alert['digest_id']}"
        )
    else:
        what = f"not sent by {name} yet"
        if alert["failures"]:
            what += f", {alert['failures']} tries failed: {alert['notifier_note']}"
        yield TimelineEntry(alert["next_time"], "alert", what)


def _of_audit(audit: Row) -> TimelineEntry:
    changed = "" if audit["changed"] else " (nothing was changed)"
    detail = audit["detail"]
    said = (detail.get("outcome"), detail.get("unclear"), detail.get("why"))
    why = "; ".join(str(each) for each in said if each)
    what = f"{audit['action']} by {audit['actor']}{changed}{': ' if why else ''}{why}"
    return TimelineEntry(audit["create_date"], "audit", what)


def _of_finding(finding: Row) -> TimelineEntry:
    group = f" for {finding['consumer_group']}" if finding["consumer_group"] else ""
    what = f"found {finding['verdict']}{group}, in run {finding['run_id']}"
    return TimelineEntry(finding["create_date"], "reconcile", what)
