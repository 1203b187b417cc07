"""Which topics are not sent to: closed, because nothing arrives there, or paused by a person."""

from sqlalchemy import func, select

from reliable_mq.database.sql_stub_table import waiting_rows
from reliable_mq.doctor.check_context import CheckContext
from reliable_mq.doctor.finding import CheckFindings
from reliable_mq.resend.topic_gate import TopicGate, TopicRow, gate_of, gate_text

_PROBE_MISSED_SECONDS = 60.0
"""A scheduler that is alive probes a closed topic within a quarter of this."""


def topics(context: CheckContext, told: CheckFindings) -> None:
    """Every topic of the outbox can be sent to."""
    for row in context.topics.values():
        gate = gate_of(row, context.now)
        if gate is TopicGate.PAUSED:
            told.warn(
                f"{gate_text(row, context.now)}; {_waiting(context, row.topic)} stub(s) wait",
                f"to send again: reliable-mq pause {row.topic} --end --app MODULE:OBJECT",
            )
        elif row.is_closed:
            told.error(
                f"{gate_text(row, context.now)}; {_waiting(context, row.topic)} stub(s) wait",
                _remedy(row, context.now),
            )
    if not told.findings:
        told.ok("no topic is closed or paused")


def _remedy(row: TopicRow, now: float) -> str:
    if row.probe_time is not None and row.probe_time < now - _PROBE_MISSED_SECONDS:
        return "nobody probes it: run reliable-mq resend MODULE:OBJECT; if one runs, see its log"
    return (
        "let its broker take messages: the first that arrives opens the topic, and all that waits "
        f"is due at once; reliable-mq pause {row.topic} --end --app MODULE:OBJECT opens it"
    )


def _waiting(context: CheckContext, topic: str) -> int:
    table = context.database.stubs
    statement = (
        select(func.count())
        .select_from(table)
        .where(waiting_rows(table), table.c.topic == topic, table.c.broker_name.is_(None))
    )
    return int(context.connection.execute(statement).scalar_one())
