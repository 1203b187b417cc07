"""Run every check on an application: gather the context, and call the checks.

The table `CHECKS` lists the checks. A check is a function that reports problems as findings and
never raises for them. If the database raises, the check is reported as skipped.
"""

import asyncio
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

from msgspec.structs import replace
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import SQLAlchemyError

from reliable_mq.client.administering.cluster_facts import ClusterFacts
from reliable_mq.database.sql_clock import measure
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import fault_line
from reliable_mq.database.sql_types import READS_ONLY, utc_datetime
from reliable_mq.database.sql_watched_time import SqlWatchedTime
from reliable_mq.doctor import peer_checks, timing_checks
from reliable_mq.doctor.check_context import CheckContext, RedisFacts
from reliable_mq.doctor.finding import CheckFindings, Finding
from reliable_mq.doctor.replica_checks import replicas
from reliable_mq.doctor.sql_reader_checks import readers
from reliable_mq.doctor.sql_row_checks import orphans
from reliable_mq.doctor.sql_schema_checks import indexes, storage, tables
from reliable_mq.doctor.sql_server_checks import durability, isolation, limits, writes
from reliable_mq.doctor.sql_topic_checks import topics
from reliable_mq.errors import ReliableMQError
from reliable_mq.idempotency.redis_servers import FAULTS, ServerState, servers_of
from reliable_mq.outbox.stub import groups_of
from reliable_mq.resend.sql_topics import SqlTopics
from reliable_mq.resend.topic_gate import TopicRow
from reliable_mq.settings import Settings
from reliable_mq.watched_time import WatchedTime

Check = Callable[[CheckContext, CheckFindings], None]

CHECKS: dict[str, Check] = {
    "tables": tables,
    "indexes": indexes,
    "storage": storage,
    "writes": writes,
    "isolation": isolation,
    "durability": durability,
    "limits": limits,
    "clocks": timing_checks.clocks,
    "leases": timing_checks.leases,
    "windows": timing_checks.windows,
    "topics": topics,
    "orphans": orphans,
    "readers": readers,
    "groups": peer_checks.groups,
    "redis": peer_checks.redis,
    "broker": peer_checks.broker,
    "replicas": replicas,
}

_OF_THE_APPLICATION = frozenset({"windows", "groups", "redis", "broker", "replicas"})
"""Checks that do not depend on the database: they run once for an application."""

_SEEN_WITHIN = timedelta(minutes=10)
_NEWEST_ROWS = 100_000
_TOPICS_ASKED = 200
"""Most topics whose readers the brokers are asked for."""


class BrokerAsker(Protocol):
    """Asks the brokers of a cluster."""

    def cluster_facts(self, groups: Sequence[str], topics: Sequence[str]) -> ClusterFacts:
        """Return the state of the cluster; raises `ReliableMQError` when it cannot be asked."""
        ...


def examine_all(
    databases: Mapping[str, Database],
    settings: Settings,
    leases: Mapping[str, Mapping[str, float]],
    cluster: BrokerAsker | None,
    unread: Collection[str] = (),
) -> list[Finding]:
    """Run every check on every database; return the findings in the order of `CHECKS`.

    Args:
        databases: the databases of the application, by name.
        settings: the settings of the application.
        leases: seconds that a claim lasts, by database name and consumer group.
        cluster: asks the brokers. None: this process cannot reach them.
        unread: topics that the application declared without readers. Default: none.
    """
    findings: list[Finding] = []
    for number, (name, database) in enumerate(databases.items()):
        checks = CHECKS if number == 0 else CHECKS.keys() - _OF_THE_APPLICATION
        found = _examine(database, settings, leases.get(name, {}), cluster, unread, set(checks))
        if len(databases) > 1:
            found = [replace(each, database=name) for each in found]
        findings += found
    return findings


def _examine(
    database: Database,
    settings: Settings,
    leases: Mapping[str, float],
    cluster: BrokerAsker | None,
    unread: Collection[str],
    wanted: set[str],
) -> list[Finding]:
    handling = CheckFindings("database")
    findings: list[Finding] = []
    try:
        with _context(database, settings, leases, cluster, unread) as context:
            for name, check in CHECKS.items():
                if name in wanted:
                    findings += _checked(name, check, context)
    except (SQLAlchemyError, ReliableMQError) as error:
        handling.error(f"the database cannot be used: {fault_line(error)}", "look at its address")
    return handling.findings + findings


def _checked(name: str, check: Check, context: CheckContext) -> list[Finding]:
    handling = CheckFindings(name)
    try:
        check(context, handling)
    except SQLAlchemyError as error:  # a table is missing, a view may not be read
        context.connection.rollback()
        handling.skip(f"could not look: {fault_line(error)}")
    return handling.findings


@contextmanager
def _context(
    database: Database,
    settings: Settings,
    leases: Mapping[str, float],
    cluster: BrokerAsker | None,
    unread: Collection[str],
) -> Iterator[CheckContext]:
    database.check_file()
    with database.engine.connect().execution_options(**READS_ONLY) as connection:
        ahead, error = measure(connection, time.time)
        now = time.time() + ahead
        processes = _rows(connection, database, now)
        unawaited = _unawaited(connection, database, unread)
        groups = {*leases, *_groups(connection, database)}
        facts, failure, remedy = _cluster_facts(cluster, sorted(groups), sorted(unawaited))
        yield CheckContext(
            connection=connection,
            database=database,
            settings=settings,
            leases=leases,
            now=now,
            clock_ahead=ahead,
            clock_error=error,
            processes=tuple(processes),
            watched=_watched(connection, database),
            handling=_handling(processes),
            topics=_topics(database),
            redis=_redis_facts(settings),
            cluster=facts,
            cluster_failure=failure,
            cluster_remedy=remedy,
            unawaited=unawaited,
        )


def _rows(connection: Any, database: Database, now: float) -> list[Any]:
    table = database.processes
    since = utc_datetime(now) - _SEEN_WITHIN
    try:
        return list(connection.execute(select(table).where(table.c.seen_date > since)))
    except SQLAlchemyError:  # the check `tables` reports a missing table
        connection.rollback()
        return []


def _watched(connection: Connection, database: Database) -> WatchedTime | None:
    try:
        return SqlWatchedTime(database.watched_time).load(connection)
    except SQLAlchemyError:  # the check `tables` reports a missing table
        connection.rollback()
        return None


def _topics(database: Database) -> dict[str, TopicRow]:
    try:
        return SqlTopics(database.engine, database.resend_topics).rows()
    except SQLAlchemyError:
        return {}


def _groups(connection: Any, database: Database) -> set[str]:
    """Return the consumer groups that unconfirmed stubs wait for."""
    stub = database.stubs.c
    waited = select(stub.required_groups).where(stub.status == 0).distinct()
    try:
        return {group for text in connection.scalars(waited) for group in groups_of(text)}
    except SQLAlchemyError:
        connection.rollback()
        return set()


def _unawaited(connection: Any, database: Database, unread: Collection[str]) -> dict[str, int]:
    """Count, by topic, those of the newest messages that wait for no consumer group."""
    stub = database.stubs.c
    columns = (stub.topic, stub.required_groups)
    newest = select(*columns).order_by(stub.seq.desc()).limit(_NEWEST_ROWS).subquery()
    wanted = (
        select(newest.c.topic, func.count().label("number"))
        .where(newest.c.required_groups == "", newest.c.topic.not_in(sorted(unread)))
        .group_by(newest.c.topic)
        .order_by(func.count().desc())
        .limit(_TOPICS_ASKED)
    )
    try:
        return {row.topic: row.number for row in connection.execute(wanted)}
    except SQLAlchemyError:
        connection.rollback()
        return {}


def _handling(processes: Sequence[Any]) -> dict[str, float]:
    longest: dict[str, float] = {}
    for row in processes:
        try:
            handling = json.loads(row.handling)
        except ValueError:  # another program wrote into the column
            continue
        for group, seconds in handling.items():
            longest[group] = max(float(seconds), longest.get(group, 0.0))
    return longest


def _cluster_facts(
    cluster: BrokerAsker | None, groups: Sequence[str], topics: Sequence[str]
) -> tuple[ClusterFacts | None, str, str]:
    """Return the state of the cluster; or None, why it is unknown, and what to do."""
    if cluster is None:
        return None, "the broker lives in the application's own process", ""
    try:
        return cluster.cluster_facts(groups, topics), "", ""
    except ReliableMQError as error:
        return None, str(error), peer_checks.remedy_of(error)


def _redis_facts(settings: Settings) -> tuple[RedisFacts, ...]:
    """Return the states of the Redis servers: the single server, the primary, or a cluster's."""
    if not settings.redis:
        return ()
    # In another thread, because the caller's thread may run an event loop.
    with ThreadPoolExecutor(1) as thread:
        try:
            standings = thread.submit(asyncio.run, _redis_states(settings)).result()
        except FAULTS as error:
            return (RedisFacts(failure=str(error)),)
    return tuple(
        RedisFacts(
            name=each.name,
            role=each.role,
            clock_ahead=each.clock_ahead,
            answer_seconds=each.answer_seconds,
        )
        for each in standings
    )


async def _redis_states(settings: Settings) -> list[ServerState]:
    servers = servers_of(settings.redis, timeout=settings.redis_timeout_seconds)
    try:
        return await servers.server_states()
    finally:
        await servers.close()
