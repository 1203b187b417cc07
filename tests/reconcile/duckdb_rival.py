"""A reconciliation in plain SQL by DuckDB, over exported ledgers: a second opinion on every row.

Written from docs/explanation/reconciliation.md and the glossary, without a look at how the product
finds its facts; it shares no expression with it, not even the decision table. Each view is a
sentence of the documentation. It is in no hurry.
"""

from datetime import datetime, timedelta
from pathlib import Path

import duckdb

MOVING = timedelta(seconds=5)
"""What changed so shortly before the judgement may be in one ledger and not yet in the other."""

# Notices between databases are no messages of the application and get no verdict.
LEDGERS = """
-- Of several rows that speak of the same message (and group) that one counts that proves most, then
-- the oldest. A tombstone stands for a half message that was rolled back: it never had a content.
CREATE TABLE stub AS
    SELECT DISTINCT ON (message_id) message_id, topic, status, required_groups, broker_name,
        queue_id, "offset", content_crc, message_digest, deliver_time, create_date, update_date,
        string_split(given_up_by, ',') AS given_up_by,
        status = 2 AND content_size = 0 AS is_tombstone,
        CASE WHEN required_groups = '' THEN [] ELSE string_split(required_groups, ',') END
            AS required
    FROM read_parquet('{folder}/stubs/*.parquet') WHERE NOT starts_with(topic, 'rmq_notices_')
    ORDER BY message_id, status = 1 DESC, create_date;
CREATE TABLE every_log AS
    SELECT message_id, consumer_group, topic, queue_id, "offset", state, owner, lease_until,
        create_date, consume_date, duplicate_of
    FROM read_parquet('{folder}/consume_logs/*.parquet')
    WHERE NOT starts_with(topic, 'rmq_notices_');
CREATE TABLE own_log AS
    SELECT DISTINCT ON (message_id, consumer_group) * EXCLUDE (duplicate_of) FROM every_log
    ORDER BY message_id, consumer_group, state DESC, create_date;
-- Consumed twice, in two databases. The same row in two of them, to the microsecond, is a table
-- that was copied; a message whose business key had its effect before had none of its own.
CREATE TABLE doubled AS
    SELECT message_id, consumer_group FROM every_log WHERE state = 1 AND duplicate_of IS NULL
    GROUP BY ALL HAVING count(DISTINCT (create_date, consume_date)) > 1;
CREATE TABLE record AS
    SELECT message_id, role, topic, consumer_group, queue_topic, queue_id, queue_offset,
        commit_log_offset, content_crc, message_digest, store_time, born_time, due_time,
        reconsume_times
    FROM read_parquet('{folder}/records/*.parquet')
    WHERE message_id IS NOT NULL AND role NOT IN ('system', 'damaged')
        AND NOT starts_with(topic, 'rmq_notices_');
CREATE TABLE progress AS SELECT * FROM read_parquet('{folder}/progress/*.parquet');
CREATE TABLE queue_begin AS SELECT * FROM read_parquet('{folder}/queue_begins/*.parquet');
-- When the first record that the log still has was stored.
CREATE TABLE oldest AS
    SELECT arg_min(store_time, commit_log_offset) AS since
    FROM read_parquet('{folder}/records/*.parquet');
-- A topic is managed when a stub was ever written for it.
CREATE TABLE managed AS SELECT DISTINCT topic FROM stub;
-- A group whose consume logs lie in none of the databases is judged by what it told the database
-- of the stub; of every other group only its own consume log counts.
CREATE TABLE log AS
    SELECT * FROM own_log
    UNION ALL BY NAME
    SELECT message_id, consumer_group, state, lease_until, create_date,
        CASE WHEN state = 1 THEN update_date END AS consume_date
    FROM read_parquet('{folder}/confirmations/*.parquet')
    WHERE consumer_group NOT IN (SELECT consumer_group FROM own_log)
        AND message_id IN (SELECT message_id FROM stub);
"""

# Every message and consumer group of the union of the ledgers. A stub that requires no group has a
# row of the group '', and so has a message without a stub that no group has touched.
PAIRS = """
CREATE TABLE pair AS
    WITH touched AS (
        SELECT message_id, unnest(required) AS consumer_group FROM stub
        UNION SELECT message_id, consumer_group FROM log
        UNION SELECT message_id, consumer_group FROM record WHERE consumer_group IS NOT NULL
    )
    SELECT message_id, consumer_group FROM touched
    UNION SELECT message_id, '' FROM stub WHERE required_groups = ''
    UNION SELECT message_id, '' FROM record
        WHERE message_id NOT IN (SELECT message_id FROM touched)
            AND message_id NOT IN (SELECT message_id FROM stub);
"""

# Of each message: its first deliveries and the copies that a delay queue holds; its age. That is
# counted from the stub, later if it is to be delivered later; without a stub from the time in the
# id, and without one there from its first trace in any ledger.
MESSAGES = """
CREATE TABLE born AS
    SELECT message_id, coalesce(
        greatest(s.create_date, coalesce(s.deliver_time, s.create_date)),
        CASE WHEN regexp_full_match(message_id, '[0-9A-F]{{12}}7[0-9A-F]{{3}}[89AB][0-9A-F]{{15}}')
            THEN to_timestamp(('0x' || message_id[1:12])::BIGINT / 1000) END,
        first_trace) AS born
    FROM (
        SELECT message_id, min(seen) AS first_trace FROM (
            SELECT message_id, create_date AS seen FROM stub
            UNION ALL SELECT message_id, create_date FROM log
            UNION ALL SELECT message_id, born_time FROM record
        ) trace GROUP BY message_id
    ) traced LEFT JOIN stub s USING (message_id);
-- What a record holds is what the stub says, or another message of that id.
CREATE TABLE compared AS
    SELECT r.*, coalesce(r.content_crc <> s.content_crc OR r.message_digest <> s.message_digest,
        false) AS is_other
    FROM record r JOIN stub s USING (message_id) WHERE role IN ('first', 'delayed');
CREATE TABLE pairing AS
    SELECT message_id, bool_or(is_other) AS has_other, bool_or(NOT is_other) AS has_right
    FROM compared GROUP BY message_id;
-- The consume log says which delivery the effect is of. A retry is numbered in its own queue.
CREATE TABLE suppressed AS
    SELECT l.message_id, l.consumer_group FROM log l JOIN pairing p USING (message_id)
    WHERE l.state = 1 AND p.has_other AND p.has_right
        AND (l.message_id, l.topic, l.queue_id, l."offset") IN
            (SELECT (message_id, topic, queue_id, queue_offset) FROM compared WHERE is_other)
        AND (l.message_id, l.topic, l.queue_id, l."offset") NOT IN
            (SELECT (message_id, topic, queue_id, queue_offset) FROM record
             WHERE consumer_group IS NOT NULL);
CREATE TABLE message AS
    SELECT message_id,
        count(*) FILTER (role = 'first') > 0 AS is_stored,
        max(store_time) FILTER (role = 'first') AS last_stored,
        max(commit_log_offset) FILTER (role = 'first') AS last_place,
        count(*) FILTER (role = 'delayed') > 0 AS is_delayed,
        count(*) FILTER (role = 'stranded') > 0 AS has_stranded,
        max(due_time) FILTER (role = 'delayed') AS due,
        any_value(record.topic) AS topic
    FROM record LEFT JOIN stub USING (message_id) GROUP BY message_id;
"""

# The verdict by what is known of a message and group: the decision table, written a second time.
# `test_verdict` holds it against the product's for every combination of facts.
VERDICT = """CASE
    WHEN is_doubled THEN 'duplicate effect'
    WHEN is_suppressed THEN 'suppressed'
    WHEN status = 2 THEN CASE
        WHEN is_consumed THEN 'voided but consumed'
        WHEN NOT is_tombstone OR NOT is_stored AND NOT is_delayed THEN 'voided'
        WHEN is_young THEN 'in flight'
        ELSE 'orphan' END
    WHEN NOT has_stub THEN CASE
        WHEN NOT is_managed THEN 'unmanaged'
        WHEN is_young OR is_unread THEN 'in flight'
        WHEN NOT is_stored AND NOT is_delayed AND NOT is_stranded AND is_expired THEN 'expired'
        ELSE 'orphan' END
    WHEN is_unread THEN CASE WHEN is_consumed AND status = 1 THEN 'settled' ELSE 'in flight' END
    WHEN differs THEN 'content differs'
    WHEN is_forged THEN 'forged'
    WHEN is_consumed THEN CASE
        WHEN status = 1 OR NOT is_required OR NOT everyone THEN 'settled'
        WHEN is_young THEN 'in flight'
        ELSE 'consumed, not confirmed' END
    WHEN has_group AND is_dead THEN 'dead-lettered'
    WHEN NOT has_group AND status = 1
        AND (is_stored OR is_delayed OR is_stranded OR is_expired) THEN 'settled'
    WHEN is_young OR has_group AND is_at_work THEN 'in flight'
    WHEN has_group AND waits THEN 'waiting'
    WHEN status = 1 AND is_required THEN 'confirmed without a log'
    WHEN NOT is_stored AND NOT is_delayed AND NOT is_stranded AND NOT is_expired THEN
        CASE WHEN is_acknowledged OR status = 1 THEN 'lost by the broker' ELSE 'not sent' END
    WHEN NOT is_stored AND NOT is_delayed AND NOT is_stranded THEN 'expired'
    WHEN NOT has_group THEN 'sent, not marked'
    WHEN is_stranded THEN 'stranded'
    WHEN is_delayed AND is_overdue THEN 'stuck'
    WHEN is_stored AND has_passed THEN CASE WHEN was_begun THEN 'stuck' ELSE 'not consumed' END
    WHEN is_required AND NOT is_acknowledged THEN 'sent, not marked'
    ELSE 'waiting' END"""

JUDGEMENT = """
CREATE TABLE judged AS
WITH
-- How far the group is: behind, as long as one copy of the message lies before its offset.
reached AS (
    SELECT p.message_id, p.consumer_group,
        bool_and(coalesce(g."offset" > r.queue_offset, false)) AS has_passed
    FROM pair p JOIN record r ON r.message_id = p.message_id AND r.role = 'first'
    LEFT JOIN progress g ON g.consumer_group = p.consumer_group AND g.topic = r.queue_topic
        AND g.queue_id = r.queue_id
    GROUP BY ALL
),
-- What becomes of failed attempts. A delayed copy waits until it is due, or has become a retry; a
-- retry until the group has passed it. What was given up and sent again since, to all or to the
-- group, is not given up; the stub knows who gave it up, also when the dead letter is gone.
copies AS (
    SELECT p.message_id, p.consumer_group,
        max(r.commit_log_offset) FILTER (r.role = 'dead') AS last_dead,
        max(r.commit_log_offset) FILTER (r.role <> 'dead') AS last_attempt,
        bool_or(r.role = 'retry delayed' AND r.due_time + {grace} >= {as_of}
                AND r.commit_log_offset > coalesce(d.place, -1)
            OR r.role = 'retry' AND coalesce(g."offset" <= r.queue_offset, true)) AS waits
    FROM pair p JOIN record r ON r.message_id = p.message_id AND r.consumer_group = p.consumer_group
    LEFT JOIN progress g ON g.consumer_group = p.consumer_group AND g.topic = r.queue_topic
        AND g.queue_id = r.queue_id
    LEFT JOIN (SELECT message_id, consumer_group, reconsume_times, max(commit_log_offset) AS place
        FROM record WHERE role = 'retry' GROUP BY ALL) d
        ON d.message_id = p.message_id AND d.consumer_group = p.consumer_group
        AND d.reconsume_times = r.reconsume_times
    GROUP BY ALL
),
effects AS (
    SELECT message_id, consumer_group, bool_or(state = 1) AS is_consumed,
        bool_or(state = 0 AND owner IS NOT NULL AND lease_until > {as_of}) AS is_at_work,
        any_value(topic) AS topic, any_value(queue_id) AS queue_id, any_value("offset") AS "offset"
    FROM log GROUP BY ALL
),
complete AS (
    SELECT s.message_id, bool_and(coalesce(e.is_consumed, false)) AS everyone
    FROM (SELECT message_id, unnest(required) AS consumer_group FROM stub) s
    LEFT JOIN effects e USING (message_id, consumer_group) GROUP BY ALL
),
-- Where stub or consume log know it to be is before the first message that its queue still has.
-- The stub of a delayed message knows a place in a delay queue only: it was due before the log
-- begins, unless a consume log knows where it came from.
placed AS (
    SELECT p.message_id, p.consumer_group, coalesce(s.topic, e.topic) AS topic,
        s.broker_name IS NOT NULL AND s.deliver_time IS NULL AS is_by_stub,
        s.broker_name IS NOT NULL AND e.message_id IS NULL AND s.deliver_time < since AS was_due,
        s.queue_id AS sent_queue, s."offset" AS sent, e.queue_id AS read_queue, e."offset" AS read
    FROM pair p LEFT JOIN stub s USING (message_id)
    LEFT JOIN effects e USING (message_id, consumer_group), oldest
),
expired AS (
    SELECT message_id, consumer_group FROM placed WHERE was_due
    UNION SELECT message_id, consumer_group FROM placed p JOIN queue_begin q ON q.topic = p.topic
        AND q.queue_id = CASE WHEN is_by_stub THEN sent_queue ELSE read_queue END
        AND q."offset" > CASE WHEN is_by_stub THEN sent ELSE read END
),
moved AS (
    SELECT message_id, update_date AS moved_at FROM stub
    UNION ALL SELECT message_id, coalesce(consume_date, create_date) FROM log
    UNION ALL SELECT message_id, store_time FROM record
),
young AS (
    SELECT message_id FROM born WHERE born > {as_of} - {grace}
    UNION SELECT message_id FROM moved WHERE moved_at > {as_of} - {moving}
),
known AS (
    SELECT p.message_id, p.consumer_group, s.status, s.message_id IS NOT NULL AS has_stub,
        coalesce(s.is_tombstone, false) AS is_tombstone, d.message_id IS NOT NULL AS is_doubled,
        p.consumer_group <> '' AS has_group,
        list_contains(s.required, p.consumer_group) AS is_required,
        s.broker_name IS NOT NULL AS is_acknowledged,
        coalesce(m.is_stored, false) AS is_stored,
        coalesce(i.has_other AND NOT i.has_right, false) AS differs,
        coalesce(i.has_other AND i.has_right, false) AS is_forged,
        u.message_id IS NOT NULL AS is_suppressed,
        NOT coalesce(m.is_stored, false) AND coalesce(m.is_delayed, false) AS is_delayed,
        coalesce(m.due + {grace} < {as_of}, false) AS is_overdue,
        -- The log holds it, and no queue lists it: its topic was deleted.
        NOT coalesce(m.is_stored OR m.is_delayed, false) AND coalesce(m.has_stranded, false)
            AS is_stranded,
        x.message_id IS NOT NULL AS is_expired,
        false AS is_unread, -- an export has the logs of all brokers
        coalesce(r.has_passed, false) AS has_passed,
        coalesce(c.last_dead > greatest(coalesce(m.last_place, -1), coalesce(c.last_attempt, -1)),
            false) OR coalesce(list_contains(s.given_up_by, p.consumer_group), false) AS is_dead,
        coalesce(c.waits, false) AS waits,
        coalesce(e.is_consumed, false) AS is_consumed,
        coalesce(e.is_at_work, false) AS is_at_work,
        e.message_id IS NOT NULL AS was_begun,
        coalesce(a.everyone, false) AS everyone,
        y.message_id IS NOT NULL AS is_young,
        coalesce(s.topic, e.topic, m.topic) IN (SELECT topic FROM managed) AS is_managed
    FROM pair p
    LEFT JOIN stub s USING (message_id)
    LEFT JOIN message m USING (message_id)
    LEFT JOIN reached r USING (message_id, consumer_group)
    LEFT JOIN copies c USING (message_id, consumer_group)
    LEFT JOIN effects e USING (message_id, consumer_group)
    LEFT JOIN complete a USING (message_id)
    LEFT JOIN expired x USING (message_id, consumer_group)
    LEFT JOIN young y USING (message_id)
    LEFT JOIN doubled d USING (message_id, consumer_group)
    LEFT JOIN pairing i USING (message_id)
    LEFT JOIN suppressed u USING (message_id, consumer_group)
)
SELECT message_id, consumer_group, {verdict} AS verdict
FROM known
"""


def judge(
    connection: duckdb.DuckDBPyConnection, folder: Path, as_of: datetime, grace: timedelta
) -> None:
    """Make the table `judged` of message_id, consumer_group and verdict.

    Args:
        connection: an empty database.
        folder: an export of ledgers.
        as_of: the moment of the judgement.
        grace: what is younger is in flight.
    """
    values = {
        "folder": str(folder),
        "verdict": VERDICT,
        "as_of": f"TIMESTAMPTZ '{as_of.isoformat()}'",
        "grace": f"INTERVAL '{grace // timedelta(microseconds=1)} microseconds'",
        "moving": f"INTERVAL '{MOVING // timedelta(microseconds=1)} microseconds'",
    }
    connection.execute("SET TimeZone = 'UTC'")
    for script in (LEDGERS, PAIRS, MESSAGES, JUDGEMENT):
        connection.execute(script.format(**values))


def verdicts(folder: Path, as_of: datetime, grace: timedelta) -> dict[tuple[str, str], str]:
    """Return (message id, consumer group) -> verdict; see `judge`."""
    with duckdb.connect() as connection:
        judge(connection, folder, as_of, grace)
        rows = connection.execute("SELECT * FROM judged").fetchall()
    found = {(identity, group): verdict for identity, group, verdict in rows}
    assert len(found) == len(rows), "a message and group has two verdicts"
    return found
