"""Checks of rows that make no progress: due stubs without a scheduler, groups without a consumer.

Every query uses an index, or reads only unconfirmed stubs or the newest rows.
"""

from sqlalchemy import ColumnElement, func, not_, select

from reliable_mq.database.row_values import LogState
from reliable_mq.database.sql_stub_table import UNCONFIRMED, is_settled, parked_rows
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.doctor.check_context import CheckContext
from reliable_mq.doctor.finding import CheckFindings
from reliable_mq.outbox.stub import groups_of
from reliable_mq.resend.topic_gate import TopicGate, gate_of

_LOOKS_MISSED = 30
"""If a stub is due for this many intervals of the scheduler, no scheduler is running."""
_MISSED_SECONDS_MIN = 60.0
_IN_DOUBT_SECONDS = 3600.0
_FUTURE_SECONDS = 60.0
_NEWEST_ROWS = 100_000
_NOT_RECONCILED_SECONDS = 3 * 86_400.0
_VOID = "reliable-mq stub void ID --app MODULE:OBJECT for each"


def orphans(context: CheckContext, report: CheckFindings) -> None:
    """No stub and no attempt waits for a scheduler, a consumer or a topic that does not exist."""
    _overdue(context, report)
    _waiting_for_a_person(context, report)
    _of_no_status(context, report)
    _in_doubt(context, report)
    _from_the_future(context, report)
    _not_reconciled(context, report)
    _without_consumer_or_topic(context, report)
    if not report.findings:
        report.ok("no stub waits for a process or a group that does not exist")


def _overdue(context: CheckContext, report: CheckFindings) -> None:
    stub = context.database.stubs.c
    patience = max(_LOOKS_MISSED * context.settings.resend_interval_seconds, _MISSED_SECONDS_MIN)
    before = utc_datetime(context.now - patience)
    # The check `topics` reports stubs that are not sent because of their topic.
    shut = [
        name
        for name, row in context.topics.items()
        if gate_of(row, context.now) is not TopicGate.OPEN
    ]
    number, oldest = context.connection.execute(
        select(func.count(), func.min(stub.resend_time)).where(
            stub.status == UNCONFIRMED, stub.resend_time < before, stub.topic.not_in(shut)
        )
    ).one()
    if number:
        minutes = (context.now - oldest.timestamp()) / 60
        report.error(
            f"{number} stub(s) are due and nobody sends them, the oldest for {minutes:.0f} min",
            "run reliable-mq resend --app MODULE:OBJECT; if one runs, look at its log",
        )


def _waiting_for_a_person(context: CheckContext, report: CheckFindings) -> None:
    stub = context.database.stubs.c
    # The first condition is that of the index.
    held = parked_rows(context.database.stubs)
    parked = (held, stub.status == UNCONFIRMED, stub.resend_time.is_(None))
    escalation = context.database.escalations.c
    is_told = (
        select(escalation.message_id)
        .where(escalation.message_id == stub.message_id, escalation.close_date.is_(None))
        .exists()
    )
    # The package gives a stub up and escalates it in one transaction.
    if number := _count(context, *parked, not_(is_told)):
        report.error(
            f"{number} stub(s) have no time of a next send and no escalation: another program "
            "wrote into the table",
            "reliable-mq stub list --escalated --app MODULE:OBJECT, then stub retry or void; dead "
            "letters: reliable-mq dlq list --app MODULE:OBJECT, then dlq retry",
        )
    if number := _count(context, *parked, is_told):
        report.warn(
            f"{number} stub(s) wait for a person",
            "reliable-mq stub list --escalated --app MODULE:OBJECT, then stub retry or void; dead "
            "letters: reliable-mq dlq list --app MODULE:OBJECT, then dlq retry",
        )


def _of_no_status(context: CheckContext, report: CheckFindings) -> None:
    table = context.database.stubs
    stub = table.c
    newest = select(stub.status).order_by(stub.seq.desc()).limit(_NEWEST_ROWS).subquery()
    status = newest.c.status
    odd = (status != UNCONFIRMED, not_(is_settled(status)))
    found = context.connection.execute(
        select(status, func.count()).where(*odd).group_by(status).order_by(status)
    )
    for value, number in found:
        report.error(
            f"{number} stub(s) have the status {value}, which this package never writes: they "
            "are neither sent nor removed",
            "reliable-mq reconcile --app MODULE:OBJECT says what happened to each; UPDATE their "
            "status: 0 sends them, 2 gives them up",
        )


def _in_doubt(context: CheckContext, report: CheckFindings) -> None:
    log = context.database.logs.c
    before = utc_datetime(context.now - _IN_DOUBT_SECONDS)
    found = context.connection.execute(
        select(log.consumer_group, func.count())
        .where(
            log.state == LogState.RECEIVED.value, log.owner.is_not(None), log.lease_until < before
        )
        .group_by(log.consumer_group)
    )
    for group, number in found:
        report.error(
            f"{number} attempt(s) of group {group} have a lease that expired an hour ago or "
            "more, and no consumer has tried again",
            f"check whether a consumer of {group} runs; then "
            "reliable-mq reconcile --app MODULE:OBJECT --repair plan",
        )


def _from_the_future(context: CheckContext, report: CheckFindings) -> None:
    stub = context.database.stubs.c
    after = utc_datetime(context.now + _FUTURE_SECONDS)
    # New rows have the highest numbers. Of older rows, only unconfirmed ones count.
    columns = (stub.create_date, stub.status)
    newest = select(*columns).order_by(stub.seq.desc()).limit(_NEWEST_ROWS).subquery()
    settled = select(func.count()).where(
        newest.c.create_date > after, newest.c.status != UNCONFIRMED
    )
    number = _count(context, stub.status == UNCONFIRMED, stub.create_date > after)
    number += int(context.connection.execute(settled).scalar_one())
    if number:
        report.error(
            f"{number} stub(s) have a date in the future: a clock was ahead",
            "see the check of clocks; they are sent and consumed as usual, except a stub with the "
            "date infinity: it is escalated when its sends are used up",
        )


def _not_reconciled(context: CheckContext, report: CheckFindings) -> None:
    if context.settings.retention_waits_for_reconciliation == "no":
        return
    duty = context.database.retention_duties.c
    seen = context.connection.execute(select(func.max(duty.reconciled_until))).scalar()
    if seen is not None and context.now - seen.timestamp() > _NOT_RECONCILED_SECONDS:
        days = (context.now - seen.timestamp()) / 86_400
        report.warn(
            f"nothing was reconciled for {days:.0f} days, and retention waits for it",
            "run reliable-mq reconcile --app MODULE:OBJECT --increment, or with --forget, so that "
            "retention continues without it",
        )


def _without_consumer_or_topic(context: CheckContext, report: CheckFindings) -> None:
    cluster = context.cluster
    if cluster is None:
        return
    stub = context.database.stubs.c
    waiting: dict[str, int] = {}
    topics: dict[str, int] = {}
    for topic, groups, number in context.connection.execute(
        select(stub.topic, stub.required_groups, func.count())
        .where(stub.status == UNCONFIRMED)
        .group_by(stub.topic, stub.required_groups)
    ):
        topics[topic] = topics.get(topic, 0) + number
        for group in groups_of(groups):
            waiting[group] = waiting.get(group, 0) + number
    for group, number in sorted(waiting.items()):
        if group not in cluster.consumed:
            report.error(
                f"{number} stub(s) wait for group {group}, and no consumer of it is connected",
                f"run the consumers of {group}; if it is gone for good: {_VOID}",
            )
    for topic, number in sorted(topics.items()):
        if topic not in cluster.topics:
            report.warn(
                f"{number} stub(s) are for topic {topic}, which no broker has",
                f"the first send makes it; if it was deleted, create it, or: {_VOID}",
            )


def _count(context: CheckContext, *conditions: ColumnElement[bool]) -> int:
    table = context.database.stubs
    statement = select(func.count()).select_from(table).where(*conditions)
    return int(context.connection.execute(statement).scalar_one())
