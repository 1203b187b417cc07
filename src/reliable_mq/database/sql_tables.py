"""All our tables, of one beginning of their names.

Receives that beginning; hands on tables that belong to no database yet. To describe them takes ten
milliseconds, so a process does it once, however many databases it opens. Nobody changes them.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from sqlalchemy import MetaData, Table

from reliable_mq.database.sql_confirmation_table import confirmation_table
from reliable_mq.database.sql_consume_log_table import consume_log_table
from reliable_mq.database.sql_identity import identity_table
from reliable_mq.database.sql_key_tables import business_key_table, idempotent_call_table
from reliable_mq.database.sql_people_tables import (
    alert_table,
    audit_table,
    duty_table,
    escalation_table,
    notifier_table,
)
from reliable_mq.database.sql_periodic_tables import periodic_table, periodic_tick_table
from reliable_mq.database.sql_processes import process_table
from reliable_mq.database.sql_run_tables import finding_table, run_table
from reliable_mq.database.sql_scheduling_tables import resend_topic_table, retention_table
from reliable_mq.database.sql_stub_table import message_stub_table
from reliable_mq.database.sql_types import COMMAND_WORDS
from reliable_mq.database.sql_watched_time import watched_time_table


class OurTables(NamedTuple):
    """The tables of one database, and what holds them together."""

    metadata: MetaData
    stubs: Table
    logs: Table
    confirmations: Table
    identity: Table
    keys: Table
    calls: Table
    resend_topics: Table
    retention_duties: Table
    watched_time: Table
    escalations: Table
    alerts: Table
    notifiers: Table
    duties: Table
    audit: Table
    periodic: Table
    periodic_ticks: Table
    runs: Table
    findings: Table
    processes: Table


@cache
def our_tables(
    prefix: str, *, by_day: bool, command_words: Callable[[str], str] = str
) -> OurTables:
    """Return the tables.

    Args:
        prefix: the beginning of their names.
        by_day: whether stubs and consume logs are partitioned by day.
        command_words: writes the commands of an error text as their users type them. Default:
            as they are.
    """
    metadata = MetaData(info={COMMAND_WORDS: command_words})
    return OurTables(
        metadata=metadata,
        stubs=message_stub_table(metadata, prefix, by_day=by_day),
        logs=consume_log_table(metadata, prefix, by_day=by_day),
        confirmations=confirmation_table(metadata, prefix),
        identity=identity_table(metadata, prefix),
        keys=business_key_table(metadata, prefix),
        calls=idempotent_call_table(metadata, prefix),
        resend_topics=resend_topic_table(metadata, prefix),
        retention_duties=retention_table(metadata, prefix),
        watched_time=watched_time_table(metadata, prefix),
        escalations=escalation_table(metadata, prefix),
        alerts=alert_table(metadata, prefix),
        notifiers=notifier_table(metadata, prefix),
        duties=duty_table(metadata, prefix),
        audit=audit_table(metadata, prefix),
        periodic=periodic_table(metadata, prefix),
        periodic_ticks=periodic_tick_table(metadata, prefix),
        runs=run_table(metadata, prefix),
        findings=finding_table(metadata, prefix),
        processes=process_table(metadata, prefix),
    )
