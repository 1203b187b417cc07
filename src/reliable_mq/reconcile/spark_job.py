"""The job: three ledgers, one shuffle by message id, one verdict per message and consumer group.

Receives a session and where the ledgers are; hands on a DataFrame of verdicts with their evidence.
Everything known of a message meets in one row (`_messages`), is spread over its consumer groups
(`_by_group`), becomes facts (`_facts`), and the decision table does the rest.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from reliable_mq.message import NOTICE_TOPIC_PREFIX
from reliable_mq.reconcile import sql_ledger
from reliable_mq.reconcile.spark_ledgers_source import LEDGERS_FORMAT
from reliable_mq.reconcile.verdict import FACTS, FINDINGS, sql_case

MOVING_SECONDS_MAX = 5.0  # how far the clocks of database, broker and this machine may differ


@dataclass(frozen=True)
class Ledgers:
    """Where the ledgers are, and what was read of them beforehand because it is small.

    `progress`: (group, topic) -> queue id -> committed offset. `queue_begins`: the first message
    that a queue still has. `managed`: the topics for which a stub was ever written. `told_groups`:
    see `sql_ledger.told_groups`.
    """

    urls: Sequence[str]
    prefix: str
    store: str
    window: sql_ledger.IdWindow
    progress: Mapping[tuple[str, str], Mapping[int, int]]
    queue_begins: Mapping[tuple[str, int], int]
    managed: Sequence[str]
    told_groups: Sequence[str] = ()


@dataclass(frozen=True)
class Moment:
    """When the ledgers were read, and what is too young to be judged."""

    as_of: datetime
    grace: timedelta
    since: datetime | None = None
    until: datetime | None = None

    @property
    def moving_since(self) -> datetime:
        """What changed at or after this moment may have changed between two ledgers' reading."""
        return self.as_of - min(self.grace, timedelta(seconds=MOVING_SECONDS_MAX))


def verdicts(
    spark: SparkSession, ledgers: Ledgers, moment: Moment
) -> tuple[DataFrame, Observation]:
    """Return one row per message and consumer group of the union of the ledgers."""
    events, counted = _events(spark, ledgers)
    rows = _by_group(_in_window(_messages(events), moment))
    rows = _with_places(spark, rows, ledgers)
    # One step for all columns that do not build on each other: Spark analyzes the plan at each.
    facts = _facts(ledgers, moment)
    rows = rows.withColumns({f"fact_{name}": fact for name, fact in facts.items()})
    rows = rows.withColumn("verdict", f.expr(sql_case()))
    rows = rows.withColumn("finding", f.col("verdict").isin([str(v) for v in FINDINGS]))
    return rows.select(*_evidence()), counted


def _events(spark: SparkSession, ledgers: Ledgers) -> tuple[DataFrame, Observation]:
    """Return the ledgers in one column shape: (message_id, stub | log | record)."""
    reader = spark.read.format(LEDGERS_FORMAT).option("path", ledgers.store)
    reader = reader.option("urls", json.dumps(list(ledgers.urls)))
    reader = reader.option("toldGroups", json.dumps(list(ledgers.told_groups)))
    reader = reader.option("prefix", ledgers.prefix)
    if ledgers.window.low is not None:
        reader = reader.option("idFrom", ledgers.window.low)
    if ledgers.window.high is not None:
        reader = reader.option("idTo", ledgers.window.high)
    counted = Observation()
    role, is_damaged = f.col("record.role"), f.col("record.role") == "damaged"
    # Notices between databases are no messages of the application's.
    topic = f.coalesce("record.topic", "log.topic", f.lit(""))
    events = reader.load().where(~topic.startswith(NOTICE_TOPIC_PREFIX))
    events = events.observe(
        counted,
        f.count("stub").alias("stubs"),
        f.count("log").alias("consume_logs"),
        f.count_if(role == "first").alias("first_deliveries"),
        f.count_if(~role.isin("first", "system", "damaged")).alias("other_copies"),
        f.count_if(is_damaged).alias("damaged_stretches"),
        f.coalesce(f.sum(f.when(is_damaged, f.col("record.size"))), f.lit(0)).alias(
            "damaged_bytes"
        ),
        f.min(f.when(is_damaged, f.col("record.commit_log_offset"))).alias("damaged_from"),
    )
    is_known = f.coalesce(~role.isin("system", "damaged"), f.lit(True))
    return events.where(is_known), counted


def _messages(events: DataFrame) -> DataFrame:
    """Bring everything that is known of a message into one row."""
    messages = events.groupBy("message_id").agg(
        f.first("stub", ignorenulls=True).alias("stub"),
        f.collect_list("log").alias("logs"),
        f.array_sort(f.collect_list("record")).alias("records"),
    )
    # A message id of ours begins with its milliseconds (message.new_message_id, UUIDv7).
    is_ours = f.col("message_id").rlike("^(?i)[0-9A-F]{12}7[0-9A-F]{3}[89AB][0-9A-F]{15}$")
    id_time = f.timestamp_millis(f.conv(f.substring("message_id", 1, 12), 16, 10).cast("bigint"))
    other_time = f.least(
        f.expr("stub.create_date"),
        f.expr("array_min(logs.create_date)"),
        f.expr("array_min(records.born_time)"),
    )
    return messages.withColumn("message_time", f.when(is_ours, id_time).otherwise(other_time))


def _in_window(messages: DataFrame, moment: Moment) -> DataFrame:
    if moment.since is not None:
        messages = messages.where(f.col("message_time") >= f.lit(moment.since))
    if moment.until is not None:
        messages = messages.where(f.col("message_time") < f.lit(moment.until))
    return messages


def _by_group(messages: DataFrame) -> DataFrame:
    """Spread each message over the consumer groups that anything says about it.

    A stub that requires no group, and a message that no group is known for, have one row of the
    group "".
    """
    required = "filter(split(coalesce(stub.required_groups, ''), ','), g -> g <> '')"
    known = (
        "array_distinct(array_compact(concat("
        "if(stub is not null and size(required) = 0, array(''), required),"
        " logs.consumer_group, records.consumer_group)))"
    )
    rows = (
        messages.withColumns(
            {
                "required": f.expr(required),
                "firsts": f.expr("filter(records, r -> r.role = 'first')"),
                "delays": f.expr("filter(records, r -> r.role = 'delayed')"),
            }
        )
        .withColumn("known", f.expr(known))
        .withColumn(
            "consumer_group",
            f.explode(f.expr("if(size(known) = 0, array(''), known)")),
        )
    )
    texts = {
        # A group that moved to another database may have a log in both.
        "log": "coalesce("
        "get(filter(logs, l -> l.consumer_group = consumer_group AND l.state = 1), 0),"
        " get(filter(logs, l -> l.consumer_group = consumer_group), 0))",
        "copies": "filter(records, r -> r.consumer_group = consumer_group)",
        "topic": "coalesce(stub.topic, get(records, 0).topic, get(logs, 0).topic)",
        "retry_topic": "concat('%RETRY%', consumer_group)",
    }
    return rows.withColumns({name: f.expr(text) for name, text in texts.items()})


def _with_places(spark: SparkSession, rows: DataFrame, ledgers: Ledgers) -> DataFrame:
    """Add the groups' committed offsets and the queues' first offsets, by queue id."""
    offsets = "map<int,bigint>"
    progress = [(group, topic, dict(queues)) for (group, topic), queues in ledgers.progress.items()]
    begins: dict[str, dict[int, int]] = {}
    for (topic, queue_id), begin in ledgers.queue_begins.items():
        begins.setdefault(topic, {})[queue_id] = begin
    main = spark.createDataFrame(progress, f"consumer_group string, topic string, done {offsets}")
    retry = main.toDF("consumer_group", "retry_topic", "retry_done")
    first = spark.createDataFrame(list(begins.items()), f"topic string, begins {offsets}")
    return (
        rows.join(f.broadcast(main), ["consumer_group", "topic"], "left")
        .join(f.broadcast(retry), ["consumer_group", "retry_topic"], "left")
        .join(f.broadcast(first), ["topic"], "left")
    )


def _timestamp(moment: datetime) -> str:
    return f"timestamp'{moment:%Y-%m-%d %H:%M:%S.%f}+00:00'"


def _facts(ledgers: Ledgers, moment: Moment) -> dict[str, Column]:
    """Return one expression for each fact of the decision table."""
    late = _timestamp(moment.as_of - moment.grace)
    due = "r.due_time"
    position = "coalesce(stub.offset, log.offset)"
    queue = "coalesce(stub.queue_id, log.queue_id)"
    retried = "coalesce(array_max(filter(copies, c -> c.role = 'retry').reconsume_times), 0)"
    last_offset = "coalesce(try_element_at(firsts, -1).commit_log_offset, -1)"
    texts = {
        "stub": "CASE stub.status WHEN 0 THEN 'unconfirmed' WHEN 1 THEN 'confirmed'"
        " WHEN 2 THEN 'voided' ELSE 'none' END",
        "group": "CASE WHEN array_contains(required, consumer_group) THEN 'required'"
        " WHEN consumer_group = '' THEN 'ack' ELSE 'extra' END",
        "position": "if(stub.offset IS NULL, 'unknown', 'known')",
        "record": "CASE WHEN exists(concat(firsts, delays), r -> r.content_crc <> stub.content_crc)"
        " THEN 'differs' WHEN size(firsts) > 0 THEN 'present'"
        f" WHEN exists(delays, r -> {due} >= {late}) THEN 'delayed'"
        " WHEN size(delays) > 0 THEN 'overdue'"
        f" WHEN {position} < begins[{queue}] THEN 'expired' ELSE 'absent' END",
        "progress": "if(size(firsts) > 0 AND forall(firsts,"
        " r -> coalesce(done[r.queue_id], 0) > r.queue_offset), 'passed', 'behind')",
        "retry": "CASE WHEN exists(copies, c -> c.role = 'dead'"
        f" AND c.commit_log_offset > {last_offset}) THEN 'dead'"
        " WHEN exists(copies, c -> c.role = 'retry'"
        " AND c.queue_offset >= coalesce(retry_done[c.queue_id], 0)) THEN 'waiting'"
        " WHEN exists(copies, r -> r.role = 'retry delayed'"
        f" AND r.reconsume_times > {retried} AND {due} >= {late}) THEN 'waiting'"
        " ELSE 'none' END",
        "log": "CASE WHEN log IS NULL THEN 'none' WHEN log.state = 1 THEN 'consumed'"
        f" WHEN log.owner IS NOT NULL AND log.lease_until > {_timestamp(moment.as_of)}"
        " THEN 'live' ELSE 'dead' END",
        "everyone": "if(size(required) > 0 AND forall(required, g -> exists(logs,"
        " l -> l.consumer_group = g AND l.state = 1)), 'yes', 'no')",
        "age": "if(greatest(coalesce(stub.create_date, message_time), stub.deliver_time)"
        f" > {late} OR coalesce(greatest(stub.update_date, array_max(logs.create_date),"
        " array_max(logs.consume_date), array_max(records.store_time))"
        f" >= {_timestamp(moment.moving_since)}, false)"
        # From another database the confirmation takes its time.
        f" OR exists(logs, l -> l.confirm_to IS NOT NULL AND l.consume_date > {late}),"
        " 'fresh', 'old')",
    }
    facts = {name: f.expr(text) for name, text in texts.items()}
    managed = f.col("topic").isin(list(ledgers.managed))
    facts["topic"] = f.when(managed, f.lit("managed")).otherwise(f.lit("unmanaged"))
    assert facts.keys() == FACTS.keys()
    return facts


def _evidence() -> list[Column]:
    """Return the columns of the result: the verdict, and all that it rests on."""
    texts = {
        "stub_seq": "stub.seq",
        "stub_status": "stub.status",
        "stub_count": "stub.count",
        "stub_resend_time": "stub.resend_time",
        "stub_create_date": "stub.create_date",
        "stub_update_date": "stub.update_date",
        "stub_broker_name": "stub.broker_name",
        "stub_queue_id": "stub.queue_id",
        "stub_offset": "stub.offset",
        "stub_content_size": "stub.content_size",
        "stub_content_crc": "stub.content_crc",
        "stub_note": "stub.note",
        "message_key": "stub.message_key",
        "ordering_key": "stub.ordering_key",
        "record_copies": "size(firsts)",
        "record_queue_id": "coalesce(get(firsts, 0), get(delays, 0)).queue_id",
        "record_queue_offset": "coalesce(get(firsts, 0), get(delays, 0)).queue_offset",
        "record_commit_log_offset": "coalesce(get(firsts, 0), get(delays, 0)).commit_log_offset",
        "record_size": "coalesce(get(firsts, 0), get(delays, 0)).size",
        "record_content_crc": "coalesce(get(firsts, 0), get(delays, 0)).content_crc",
        "record_store_time": "coalesce(get(firsts, 0), get(delays, 0)).store_time",
        "other_commit_log_offsets": "slice(transform(firsts, r -> r.commit_log_offset), 2, 20)",
        "differing_commit_log_offset": "get(filter(concat(firsts, delays),"
        " r -> r.content_crc <> stub.content_crc), 0).commit_log_offset",
        "differing_content_crc": "get(filter(concat(firsts, delays),"
        " r -> r.content_crc <> stub.content_crc), 0).content_crc",
        "is_lead": "consumer_group = coalesce(get(known, 0), '')",
        "progress": "done[coalesce(get(firsts, 0).queue_id, stub.queue_id)]",
        "queue_begin": "begins[coalesce(get(firsts, 0).queue_id, stub.queue_id)]",
        "retries": "coalesce(array_max(copies.reconsume_times), 0)",
        "dead_letter_offset": "get(filter(copies, c -> c.role = 'dead'), 0).commit_log_offset",
        "dead_letter_reason": "get(filter(copies, c -> c.role = 'dead'), 0).reason",
        "log_state": "log.state",
        "log_attempt": "log.attempt",
        "log_owner": "log.owner",
        "log_lease_until": "log.lease_until",
        "log_create_date": "log.create_date",
        "log_consume_date": "log.consume_date",
        "log_broker_name": "log.broker_name",
        "stored_ms": "unix_millis(get(firsts, 0).store_time) - unix_millis(stub.create_date)",
        "consumed_ms": "unix_millis(log.consume_date) - unix_millis(stub.create_date)",
    }
    columns = ("message_id", "consumer_group", "topic", "verdict", "finding", "message_time")
    return [
        *(f.col(name) for name in columns),
        *(f.expr(text).alias(name) for name, text in texts.items()),
        *(f.col(f"fact_{name}") for name in FACTS),
    ]
