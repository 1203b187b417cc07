"""The tables of the first release.

Revision 0001, after none. Written by `python -m tests.app.first_migration`.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    Numeric,
    SmallInteger,
    String,
    Table,
    false,
    text,
)

from reliable_mq.database.sql_types import (
    MYSQL,
    PARTIAL_INDEXES,
    Body,
    GrowingNumber,
    LongText,
    UtcDateTime,
    only_on,
)
from reliable_mq.migrations.sql_steps import add_tables, partial

revision = "0001"
down_revision = None


def upgrade(prefix: str) -> None:
    """Create the tables."""
    metadata = MetaData()
    _alert(metadata, f"{prefix}alert")
    _audit(metadata, f"{prefix}audit")
    _business_key(metadata, f"{prefix}business_key")
    _confirmation(metadata, f"{prefix}confirmation")
    _consume_log(metadata, f"{prefix}consume_log")
    _duty(metadata, f"{prefix}duty")
    _escalation(metadata, f"{prefix}escalation")
    _idempotent_call(metadata, f"{prefix}idempotent_call")
    _identity(metadata, f"{prefix}identity")
    _message_stub(metadata, f"{prefix}message_stub")
    _notifier(metadata, f"{prefix}notifier")
    _process(metadata, f"{prefix}process")
    _reconcile_finding(metadata, f"{prefix}reconcile_finding")
    _reconcile_run(metadata, f"{prefix}reconcile_run")
    _resend_topic(metadata, f"{prefix}resend_topic")
    _retention(metadata, f"{prefix}retention")
    add_tables(metadata)


def _alert(metadata: MetaData, name: str) -> None:
    table = Table(
        name,
        metadata,
        Column("escalation_seq", BigInteger, primary_key=True, autoincrement=False),
        Column("notifier", String(64), primary_key=True),
        Column("state", SmallInteger, nullable=False, server_default="0"),
        Column("digest_id", String(32)),
        Column("told_date", UtcDateTime),
    )
    column = table.c
    Index(f"{name}_digest", column.digest_id)
    Index(f"{name}_state", column.state, column.notifier, column.escalation_seq)


def _audit(metadata: MetaData, name: str) -> None:
    table = Table(
        name,
        metadata,
        Column("seq", GrowingNumber, primary_key=True, autoincrement=True),
        Column("create_date", UtcDateTime, nullable=False),
        Column("actor", String(127), nullable=False),
        Column("action", String(32), nullable=False),
        Column("message_id", String(64), nullable=False),
        Column("run_id", String(32)),
        Column("changed", SmallInteger, nullable=False),
        Column("detail", LongText, nullable=False),
    )
    column = table.c
    Index(f"ix_{name}_message_id", column.message_id)


def _business_key(metadata: MetaData, name: str) -> None:
    table = Table(
        name,
        metadata,
        Column("consumer_group", String(127), primary_key=True),
        Column("key_digest", String(64), primary_key=True),
        Column("business_key", String(255), nullable=False),
        Column("message_id", String(64), nullable=False),
        Column("state", SmallInteger, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("owner", String(64)),
        Column("lease_until", UtcDateTime),
        Column("create_date", UtcDateTime, nullable=False),
        Column("consume_date", UtcDateTime),
        Column("in_doubt", Boolean, nullable=False, server_default=false()),
    )
    column = table.c
    Index(f"{name}_free", column.lease_until, **partial("state = 0", "owner IS NULL"))
    Index(f"{name}_message", column.message_id)


def _confirmation(metadata: MetaData, name: str) -> None:
    table = Table(
        name,
        metadata,
        Column("message_id", String(32), primary_key=True),
        Column("consumer_group", String(127), primary_key=True),
        Column("state", SmallInteger, nullable=False),
        Column("lease_until", UtcDateTime),
        Column("notices", Integer, nullable=False),
        Column("create_date", UtcDateTime, nullable=False),
        Column("update_date", UtcDateTime, nullable=False),
    )
    column = table.c
    Index(f"{name}_group", column.consumer_group)
    Index(f"{name}_updated", column.update_date)
    only_on(
        PARTIAL_INDEXES,
        Index(
            f"{name}_untimed",
            column.message_id,
            **partial(
                "length(message_id) != 32 OR "
                "substr(message_id, 13, 1) != '7' OR "
                "(substr(message_id, 17, 1) NOT IN ('8', '9', 'A', 'B')) OR "
                "message_id != upper(message_id)"
            ),
        ),
    )


def _consume_log(metadata: MetaData, name: str) -> None:
    table = Table(
        name,
        metadata,
        Column("consumer_group", String(127), primary_key=True),
        Column("message_id", String(64), primary_key=True),
        Column("topic", String(127), nullable=False),
        Column("broker_name", String(127), nullable=False),
        Column("queue_id", Integer, nullable=False),
        Column("offset", BigInteger, nullable=False),
        Column("state", SmallInteger, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("owner", String(64)),
        Column("lease_until", UtcDateTime),
        Column("create_date", UtcDateTime, nullable=False),
        Column("consume_date", UtcDateTime),
        Column("confirm_to", String(64)),
        Column("confirm_time", UtcDateTime),
        Column("note", String(1000)),
        Column("in_doubt", Boolean, nullable=False, server_default=false()),
        Column("duplicate_of", String(64)),
    )
    column = table.c
    Index(f"{name}_consumed", column.consume_date, **partial("state = 1"))
    Index(f"{name}_message", column.message_id)
    Index(f"{name}_untold", column.confirm_time, **partial("confirm_time IS NOT NULL"))
    only_on(
        PARTIAL_INDEXES,
        Index(f"{name}_received", column.message_id, **partial("state = 0")),
        Index(
            f"{name}_untimed",
            column.message_id,
            **partial(
                "length(message_id) != 32 OR "
                "substr(message_id, 13, 1) != '7' OR "
                "(substr(message_id, 17, 1) NOT IN ('8', '9', 'A', 'B')) OR "
                "message_id != upper(message_id)"
            ),
        ),
    )


def _duty(metadata: MetaData, name: str) -> None:
    Table(
        name,
        metadata,
        Column("duty", String(16), primary_key=True),
        Column("next_time", UtcDateTime, nullable=False),
    )


def _escalation(metadata: MetaData, name: str) -> None:
    table = Table(
        name,
        metadata,
        Column("seq", GrowingNumber, primary_key=True, autoincrement=True),
        Column("kind", String(32), nullable=False),
        Column("message_id", String(64), nullable=False),
        Column("consumer_group", String(127), nullable=False, server_default=""),
        Column("topic", String(127), nullable=False),
        Column("message_key", String(255), nullable=False, server_default=""),
        Column("reason", String(1000), nullable=False),
        Column("open_key", String(300), unique=True),
        Column("create_date", UtcDateTime, nullable=False),
        Column("close_date", UtcDateTime),
        Column("close_reason", String(32)),
    )
    column = table.c
    Index(f"ix_{name}_message_id", column.message_id)
    Index(f"{name}_closed", column.close_date, column.seq)


def _idempotent_call(metadata: MetaData, name: str) -> None:
    table = Table(
        name,
        metadata,
        Column("scope", String(127), primary_key=True),
        Column("key_digest", String(64), primary_key=True),
        Column("call_key", String(255), nullable=False),
        Column("fingerprint", String(64)),
        Column("state", SmallInteger, nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("owner", String(64)),
        Column("lease_until", UtcDateTime),
        Column("in_doubt", Boolean, nullable=False, server_default=false()),
        Column("result", Body),
        Column("create_date", UtcDateTime, nullable=False),
        Column("finish_date", UtcDateTime),
        Column("expire_date", UtcDateTime, nullable=False),
    )
    column = table.c
    Index(f"{name}_expired", column.expire_date)


def _identity(metadata: MetaData, name: str) -> None:
    Table(
        name,
        metadata,
        Column("number", SmallInteger, primary_key=True, autoincrement=False),
        Column("identity", String(16), nullable=False),
        Column("create_date", UtcDateTime, nullable=False),
    )


def _message_stub(metadata: MetaData, name: str) -> None:
    table = Table(
        name,
        metadata,
        Column("seq", GrowingNumber, primary_key=True, autoincrement=True),
        Column("message_id", String(32), nullable=False, unique=True),
        Column("topic", String(127), nullable=False),
        Column("tag", String(255), nullable=False, server_default=""),
        Column("message_key", String(255), nullable=False, server_default=""),
        Column("ordering_key", String(255), nullable=False, server_default=""),
        Column("content", Body, nullable=False),
        Column("content_type", String(127), nullable=False, server_default=""),
        Column("properties", LongText, nullable=False, server_default=text("('{}')")),
        Column("status", SmallInteger, nullable=False, server_default="0"),
        Column("count", Integer, nullable=False, server_default="0"),
        Column("resend_time", UtcDateTime),
        Column("given_up", Boolean, nullable=False, server_default=false()),
        Column("given_up_by", LongText, nullable=False, server_default=text("('')")),
        Column("missed", Boolean, nullable=False, server_default=false()),
        Column("broker_name", String(127)),
        Column("queue_id", Integer),
        Column("offset", BigInteger),
        Column("required_groups", LongText, nullable=False, server_default=text("('')")),
        Column("deliver_time", UtcDateTime),
        Column("create_date", UtcDateTime, nullable=False),
        Column("update_date", UtcDateTime, nullable=False),
        Column("note", String(1000)),
        Column("owner", String(64)),
        Column("lease_until", UtcDateTime),
        postgresql_with={"autovacuum_vacuum_scale_factor": 0.02},
    )
    column = table.c
    parked = "status = 0 AND (resend_time IS NULL OR given_up{}) OR (status NOT IN (0, 1, 2))"
    only_on(
        PARTIAL_INDEXES,
        Index(
            f"{name}_ordered",
            column.topic,
            column.ordering_key,
            column.broker_name,
            column.seq,
            **partial("status = 0", "ordering_key != ''"),
        ),
        Index(
            f"{name}_parked",
            column.update_date,
            **partial((parked.format(""), parked.format(" = 1"))),
        ),
        Index(
            f"{name}_sent",
            column.topic,
            column.resend_time,
            column.seq,
            **partial(
                "status = 0",
                "resend_time IS NOT NULL",
                ("NOT given_up", "given_up = 0"),
                "broker_name IS NOT NULL",
            ),
        ),
        Index(f"{name}_settled", column.update_date, **partial("status IN (1, 2)")),
        Index(
            f"{name}_suspect",
            column.topic,
            column.resend_time,
            column.seq,
            **partial(
                "status = 0",
                "resend_time IS NOT NULL",
                ("NOT given_up", "given_up = 0"),
                "broker_name IS NULL",
                "owner IS NOT NULL",
                "count > 0",
            ),
        ),
        Index(f"{name}_topic", column.topic, **partial("status IN (1, 2)")),
        Index(
            f"{name}_unowned",
            column.resend_time,
            column.seq,
            **partial(
                "status = 0",
                "resend_time IS NOT NULL",
                ("NOT given_up", "given_up = 0"),
                "broker_name IS NULL",
                "NOT (owner IS NOT NULL AND count > 0)",
                ("NOT missed", "missed = 0"),
                "owner IS NULL",
                "count = 0",
            ),
        ),
        Index(
            f"{name}_unsent",
            column.topic,
            column.resend_time,
            column.seq,
            **partial(
                "status = 0",
                "resend_time IS NOT NULL",
                ("NOT given_up", "given_up = 0"),
                "broker_name IS NULL",
                "NOT (owner IS NOT NULL AND count > 0)",
            ),
        ),
        Index(
            f"{name}_untimed",
            column.message_id,
            **partial(
                "length(message_id) != 32 OR "
                "substr(message_id, 13, 1) != '7' OR "
                "(substr(message_id, 17, 1) NOT IN ('8', '9', 'A', 'B')) OR "
                "message_id != upper(message_id)"
            ),
        ),
        Index(
            f"{name}_waiting",
            column.topic,
            column.create_date,
            **partial("status = 0", "resend_time IS NOT NULL", ("NOT given_up", "given_up = 0")),
        ),
    )
    only_on(
        MYSQL,
        Index(
            f"{name}_ordered",
            column.topic,
            column.ordering_key,
            column.status,
            column.broker_name,
            column.seq,
        ),
        Index(
            f"{name}_sent",
            column.status,
            column.given_up,
            column.topic,
            column.resend_time,
            column.seq,
        ),
        Index(f"{name}_settled", column.update_date),
        Index(
            f"{name}_unowned",
            column.status,
            column.given_up,
            column.broker_name,
            column.missed,
            column.owner,
            column.count,
            column.resend_time,
            column.seq,
        ),
        Index(
            f"{name}_unsent",
            column.status,
            column.given_up,
            column.broker_name,
            column.topic,
            column.resend_time,
            column.seq,
        ),
        Index(f"{name}_waiting", column.status, column.topic, column.create_date),
    )


def _notifier(metadata: MetaData, name: str) -> None:
    Table(
        name,
        metadata,
        Column("name", String(64), primary_key=True),
        Column("next_time", UtcDateTime, nullable=False),
        Column("digest_id", String(32)),
        Column("digest_time", UtcDateTime),
        Column("owner", String(64)),
        Column("lease_until", UtcDateTime),
        Column("failures", Integer, nullable=False, server_default="0"),
        Column("told_date", UtcDateTime),
        Column("note", String(1000)),
    )


def _process(metadata: MetaData, name: str) -> None:
    Table(
        name,
        metadata,
        Column("owner", String(64), primary_key=True),
        Column("application", String(127), nullable=False),
        Column("host", String(255), nullable=False),
        Column("pid", Integer, nullable=False),
        Column("package_version", String(32), nullable=False),
        Column("clock_ahead", Double, nullable=False),
        Column("handling", LongText, nullable=False),
        Column("start_date", UtcDateTime, nullable=False),
        Column("seen_date", UtcDateTime, nullable=False),
    )


def _reconcile_finding(metadata: MetaData, name: str) -> None:
    Table(
        name,
        metadata,
        Column("run_id", String(32), primary_key=True),
        Column("message_id", String(64), primary_key=True),
        Column("consumer_group", String(127), primary_key=True),
        Column("topic", String(255)),
        Column("verdict", String(32), nullable=False),
        Column("evidence", LongText, nullable=False),
        Column("create_date", UtcDateTime, nullable=False),
        Column("first_run_id", String(32)),
    )


def _reconcile_run(metadata: MetaData, name: str) -> None:
    Table(
        name,
        metadata,
        Column("run_id", String(32), primary_key=True),
        Column("as_of", UtcDateTime, nullable=False),
        Column("since", UtcDateTime),
        Column("until", UtcDateTime),
        Column("grace_seconds", Numeric(precision=12, scale=3), nullable=False),
        Column("store", LongText, nullable=False),
        Column("verdicts", LongText, nullable=False),
        Column("ledgers", LongText, nullable=False),
        Column("findings", BigInteger, nullable=False),
        Column("is_clean", Boolean, nullable=False),
        Column("finish_date", UtcDateTime, nullable=False),
        Column("kind", String(16), nullable=False, server_default="full"),
        Column("previous_run_id", String(32), unique=True),
        Column("read_to", LongText),
        Column("log_ends", LongText),
        Column("watermark", UtcDateTime),
        Column("state", LongText),
        Column("carried", BigInteger),
        Column("whole", LongText),
        Column("managed", LongText),
        Column("report", LongText),
    )


def _resend_topic(metadata: MetaData, name: str) -> None:
    Table(
        name,
        metadata,
        Column("topic", String(127), primary_key=True),
        Column("is_paused", Boolean, nullable=False, server_default=false()),
        Column("paused_until", UtcDateTime),
        Column("failures", Integer, nullable=False, server_default="0"),
        Column("probes", Integer, nullable=False, server_default="0"),
        Column("probe_time", UtcDateTime),
        Column("actor", String(127), nullable=False, server_default=""),
        Column("note", String(1000)),
        Column("update_date", UtcDateTime, nullable=False),
    )


def _retention(metadata: MetaData, name: str) -> None:
    Table(
        name,
        metadata,
        Column("duty", String(16), primary_key=True),
        Column("owner", String(64)),
        Column("lease_until", UtcDateTime),
        Column("stubs_removed_until", UtcDateTime, nullable=False),
        Column("logs_removed_until", UtcDateTime, nullable=False),
        Column("reconciled_until", UtcDateTime),
    )
