"""Checks of topics: closed, because their sends fail, or paused by a person."""

from sqlalchemy import func, select

from reliable_mq.database.sql_stub_table import waiting_rows
from reliable_mq.doctor.check_context import CheckContext
from reliable_mq.doctor.finding import CheckFindings
from reliable_mq.resend.topic_gate import TopicGate, TopicRow, gate_of, gate_text

_PROBE_MISSED_SECONDS = 60.0
"""If a probe is overdue by so many seconds, no scheduler runs: one probes four times as often."""

_WITHOUT_SLAVE = ("SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT")


def topics(context: CheckContext, report: CheckFindings) -> None:
    """Every topic of the outbox can be sent to."""
    for row in context.topics.values():
        gate = gate_of(row, context.now)
        if gate is TopicGate.PAUSED:
            report.warn(
                f"{gate_text(row, context.now)}; {_waiting(context, row.topic)} stub(s) wait",
                f"to send again: reliable-mq pause {row.topic} --end --app MODULE:OBJECT",
            )
        elif row.is_closed:
            waiting = _waiting(context, row.topic)
            said = f"{gate_text(row, context.now)}; {waiting} stub(s) wait"
            if waiting:
                report.error(said, _remedy(row, context.now))
            else:
                report.warn(
                    said,
                    "nothing waits: the next message that arrives opens it; reliable-mq pause "
                    f"{row.topic} --end --app MODULE:OBJECT opens it now",
                )
    if not report.findings:
        report.ok("no topic is closed or paused")


def _remedy(row: TopicRow, now: float) -> str:
    if row.probe_time is not None and row.probe_time < now - _PROBE_MISSED_SECONDS:
        return (
            "nobody probes it: run reliable-mq resend --app MODULE:OBJECT; if one runs, see its log"
        )
    if any(each in row.note for each in _WITHOUT_SLAVE):
        return (
            "start the slaves of its broker: it is a SYNC_MASTER with too few of them, see the "
            "check replicas; the first message that slaves have opens the topic"
        )
    return (
        "repair its broker: the first message that arrives opens the topic, and all waiting stubs "
        f"are then due; reliable-mq pause {row.topic} --end --app MODULE:OBJECT opens it now"
    )


def _waiting(context: CheckContext, topic: str) -> int:
    table = context.database.stubs
    statement = (
        select(func.count())
        .select_from(table)
        .where(waiting_rows(table), table.c.topic == topic, table.c.broker_name.is_(None))
    )
    return int(context.connection.execute(statement).scalar_one())
