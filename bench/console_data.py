"""A database as a shop has it after ten days, for the measurements of the console.

Receives a number of stubs and a PostgreSQL; writes rows by `generate_series`, without messaging.

In ten million stubs there are: four topics that are used, one with 1,000 stubs, and one that ended
nine days ago; 5,000 stubs that wait for their groups, all new, and 100 that have waited for days;
100,000 that wait for a person since an outage three days ago, each with an escalation; 500 voided
ones. A million have the correlation id `nightly-import`, and one of fifty that of a request with
three messages. In a million findings: five runs, the newest the smallest.
"""

from pathlib import Path

import psycopg

from reliable_mq import ReliableMQ

DAYS = 10
ROWS_AT_ONCE = 500_000
OUTAGE_SHARE = 0.7
"""Where in the ten days the outage began."""
PARKED_OF = 100
"""One of so many stubs waits for a person."""
RUN_SHARES = (500, 300, 150, 49, 1)
"""Thousandths of all findings, by run, the oldest first."""
RUNS = 30
LOADING = {"wal_level": "minimal", "max_wal_senders": "0", "synchronous_commit": "off"}
LOADING |= {"maintenance_work_mem": "1GB", "max_wal_size": "16GB", "autovacuum": "off"}

# The id's random digits are those of the number's MD5.
MESSAGES = """
    SELECT n, h, at, 'order-' || n / 2 AS message_key,
        upper(lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
            || substr(h, 1, 3) || '8' || substr(h, 4, 15)) AS message_id,
        CASE WHEN n %% 10000 = 77 THEN 'returns' WHEN n < {rows} / 200 THEN 'legacy'
            WHEN n %% 100 < 55 THEN 'orders' WHEN n %% 100 < 85 THEN 'payments'
            WHEN n %% 100 < 99 THEN 'points' ELSE 'mails' END AS topic,
        CASE WHEN n %% 20000 = 5 THEN 'voided'
            WHEN n >= {outage} AND n < {outage} + {parked} THEN 'parked'
            WHEN n >= {rows} - {rows} / 2000 OR n %% 100000 = 99 THEN 'waiting' ELSE '' END AS state
    FROM (
        SELECT n, md5(n::text) AS h, now() - interval '{days} days' * (1 - n::float8 / {rows}) AS at
        FROM generate_series(%(first)s::bigint, %(last)s::bigint) n OFFSET 0
    ) message
"""
STUBS = """
    INSERT INTO rmq_message_stub (message_id, topic, message_key, ordering_key, content,
        content_type, status, count, resend_time, broker_name, queue_id, "offset", required_groups,
        create_date, update_date, note, correlation_id)
    SELECT message_id, topic, message_key, CASE WHEN topic = 'points' THEN 'customer-' || n / 100
        ELSE '' END, convert_to('{{"order": ' || n || ', "lines": ["' || repeat(h, 8) || '"]}}',
        'UTF8'), 'application/json', CASE state WHEN '' THEN 1 WHEN 'voided' THEN 2 ELSE 0 END,
        CASE state WHEN 'parked' THEN 8 ELSE 1 END,
        CASE state WHEN 'waiting' THEN now() + interval '1 h' END,
        CASE state WHEN 'parked' THEN NULL ELSE 'broker-a' END, n %% 4, n / 4,
        CASE topic WHEN 'orders' THEN 'billing,stock' WHEN 'payments' THEN 'ledger'
            WHEN 'points' THEN 'points' WHEN 'mails' THEN 'mailer' ELSE '' END,
        at, at + interval '300 ms', CASE state WHEN 'parked' THEN 'the broker did not answer' END,
        CASE WHEN n %% 10 = 3 THEN 'nightly-import' WHEN n %% 50 < 3 THEN 'request-' || n / 50 END
    FROM ({messages}) message ORDER BY n
"""
LOGS = """
    INSERT INTO rmq_consume_log (consumer_group, message_id, topic, broker_name, queue_id, "offset",
        state, attempt, create_date, consume_date, failure)
    SELECT consumer_group, message_id, topic, 'broker-a', n %% 4, n / 4,
        CASE state WHEN 'waiting' THEN 0 ELSE 1 END, CASE WHEN n %% 300 = 7 THEN 2 ELSE 1 END,
        at + interval '10 ms', CASE state WHEN 'waiting' THEN NULL ELSE at + interval '25 ms' END,
        CASE WHEN n %% 300 = 7 THEN 'TimeoutError: the bank did not answer' END
    FROM ({messages}) message CROSS JOIN LATERAL unnest(CASE topic WHEN 'payments' THEN
        ARRAY['ledger'] WHEN 'points' THEN ARRAY['points'] WHEN 'mails' THEN ARRAY['mailer']
        ELSE CASE WHEN n %% 10 = 0 THEN ARRAY['billing', 'stock'] ELSE ARRAY['billing'] END END)
        AS consumer_group
    WHERE state IN ('', 'waiting') ORDER BY n
"""
ESCALATIONS = """
    INSERT INTO rmq_escalation (kind, message_id, topic, message_key, reason, open_key, create_date)
    SELECT 'sends used up', message_id, topic, message_key, 'the broker did not answer',
        'sends used up//' || message_id, update_date
    FROM rmq_message_stub WHERE resend_time IS NULL AND status = 0 ORDER BY seq;
    INSERT INTO rmq_escalation (kind, message_id, consumer_group, topic, message_key, reason,
        create_date, close_date, close_reason)
    SELECT 'dead letter', message_id, 'billing', topic, message_key, 'ValueError: no such customer',
        create_date, create_date + interval '1 h', 'consumed'
    FROM rmq_message_stub WHERE seq %% 500 = 3 ORDER BY seq
"""
PARK_AGAIN = """
    UPDATE rmq_message_stub stub SET status = 0, count = 8, resend_time = NULL, broker_name = NULL,
        note = 'the broker did not answer'
    FROM rmq_escalation escalation WHERE kind = 'sends used up'
        AND escalation.message_id = stub.message_id;
    UPDATE rmq_escalation SET open_key = 'sends used up//' || message_id, close_date = NULL,
        close_reason = NULL
    WHERE kind = 'sends used up'
"""
AUDIT = """
    INSERT INTO rmq_audit (create_date, actor, action, message_id, run_id, changed, detail)
    SELECT create_date + interval '2 h', CASE seq %% 3 WHEN 0 THEN 'ada' ELSE 'grace' END,
        'stub retry', message_id, md5((seq / 100000)::text), 1, '{{"why": "the broker was away"}}'
    FROM rmq_message_stub WHERE seq %% 50 = 9 ORDER BY seq
"""
FINDINGS = """
    INSERT INTO rmq_reconcile_finding (run_id, message_id, consumer_group, topic, verdict, evidence,
        create_date, first_run_id)
    SELECT 'run-' || lpad(%(run)s::text, 4, '0'), message_id, 'billing', topic,
        CASE seq %% 20 WHEN 0 THEN 'lost by the broker' WHEN 1 THEN 'dead-lettered'
            ELSE 'not consumed' END,
        '{{"sentence": "' || repeat('the stub was confirmed, and no consume log has it. ', 4)
            || '", "seq": ' || seq || '}}', now(), NULL
    FROM rmq_message_stub WHERE seq <= {rows} / 10 * 9 ORDER BY seq DESC LIMIT %(findings)s
"""
RUN_ROWS = """
    INSERT INTO rmq_reconcile_run (run_id, as_of, grace_seconds, store, verdicts, ledgers, findings,
        is_clean, finish_date)
    SELECT 'run-' || lpad(n::text, 4, '0'), now() - interval '1 day' * ({runs} - n), 60, '', '{{}}',
        '{{}}', CASE WHEN n > {runs} - {finding_runs} THEN 1000 ELSE 0 END,
        n <= {runs} - {finding_runs}, now() - interval '1 day' * ({runs} - n)
    FROM generate_series(1, {runs}) n
"""


def address_of(url: str) -> str:
    """Return the address of a database for psycopg."""
    return url.replace("+psycopg", "")


def fill(url: str, rows: int, findings: int) -> None:
    """Make the tables of an application, and fill them. Indexes are made at the end."""
    mq = ReliableMQ("shop", database=url)
    mq.create_tables()
    mq.close()
    names = {"rows": rows, "days": DAYS, "outage": int(rows * OUTAGE_SHARE)}
    names |= {"parked": rows // PARKED_OF, "runs": RUNS, "finding_runs": len(RUN_SHARES)}
    messages = MESSAGES.format(**names)
    with psycopg.connect(address_of(url), autocommit=True) as connection:
        connection.execute("SET maintenance_work_mem = '1GB'")
        taken = _without_indexes(connection)
        for statement in (STUBS, LOGS):
            text = statement.format(messages=messages, **names)
            for first in range(0, rows, ROWS_AT_ONCE):
                last = min(first + ROWS_AT_ONCE, rows) - 1
                connection.execute(text.encode(), {"first": first, "last": last})
        for statement in (*ESCALATIONS.split(";"), AUDIT, RUN_ROWS):
            connection.execute(statement.format(**names).replace("%%", "%").encode())
        for number, share in enumerate(RUN_SHARES, RUNS - len(RUN_SHARES) + 1):
            counts = {"run": number, "findings": findings * share // 1000}
            connection.execute(FINDINGS.format(**names).encode(), counts)
        for definition in taken:
            connection.execute(definition.encode())
        connection.execute("VACUUM (ANALYZE, FREEZE)")


def park_again(url: str) -> None:
    """Let the stubs of the outage wait for a person again, after a bulk retry of them."""
    with psycopg.connect(address_of(url), autocommit=True) as connection:
        for statement in PARK_AGAIN.split(";"):
            connection.execute(statement.encode())
        connection.execute("VACUUM (ANALYZE) rmq_message_stub")


def _without_indexes(connection: psycopg.Connection) -> list[str]:
    """Drop the indexes that are no keys; return what makes them again."""
    wanted = """
        SELECT indexname, indexdef FROM pg_indexes
        WHERE tablename LIKE 'rmq%' AND NOT EXISTS (
            SELECT FROM pg_constraint WHERE conname = indexname)
    """
    found = connection.execute(wanted).fetchall()
    for name, _ in found:
        connection.execute(f"DROP INDEX {name}".encode())
    return [definition for _, definition in found]


def settings_for(url: str, settings: dict[str, str | None]) -> None:
    """Set settings of a server; None sets one back. The caller restarts it."""
    with psycopg.connect(address_of(url), autocommit=True) as connection:
        for name, value in settings.items():
            change = f"SET {name} = '{value}'" if value else f"RESET {name}"
            connection.execute(f"ALTER SYSTEM {change}".encode())


def size_gib(directory: Path) -> float:
    """Return how much a directory has."""
    files = (each for each in directory.rglob("*") if each.is_file())
    return sum(each.stat().st_size for each in files) / 1024**3
