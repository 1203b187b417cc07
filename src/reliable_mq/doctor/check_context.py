"""What the checks look at, gathered once. Values, and one connection to read by."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection

from reliable_mq.client.administering.cluster_facts import ClusterFacts
from reliable_mq.database.sql_database import Database
from reliable_mq.resend.topic_gate import TopicRow
from reliable_mq.settings import Settings
from reliable_mq.watched_time import WatchedTime


@dataclass(frozen=True, kw_only=True)
class RedisFacts:
    """What a Redis says: `role` master or slave, its clock, and how long an answer took (seconds).

    `name`: its address, where there are several. `failure`: why it, or one of several, did not
    answer; empty: it did.
    """

    name: str = ""
    role: str = ""
    clock_ahead: float = 0.0
    answer_seconds: float = 0.0
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """One application at one of its databases.

    Attributes:
        connection: to the database, to read by.
        database: where its tables are.
        settings: all of them.
        leases: seconds for which a claim of each consumer group holds.
        now: the time by the database's clock.
        clock_ahead: seconds by which the database's clock is ahead of this machine's.
        clock_error: how wrong that may be.
        processes: rows of the process table that were written within ten minutes.
        watched: what retention knows of the database's clock; None: it has not looked yet.
        handling: the longest handling of each consumer group that they tell of, seconds.
        topics: what the resend schedulers know of topics, by name.
        redis: of each server; empty: the application has none.
        cluster: None: it could not be asked; `cluster_failure` says why.
        unawaited: how many of the newest messages wait for no consumer group, by topic. Topics that
            the application declared as read by nobody are left out.
    """

    connection: Connection
    database: Database
    settings: Settings
    leases: Mapping[str, float]
    now: float
    clock_ahead: float = 0.0
    clock_error: float = 0.0
    processes: tuple[Any, ...] = ()
    watched: WatchedTime | None = None
    handling: Mapping[str, float] = field(default_factory=dict)
    topics: Mapping[str, TopicRow] = field(default_factory=dict)
    redis: tuple[RedisFacts, ...] = ()
    cluster: ClusterFacts | None = None
    cluster_failure: str = ""
    unawaited: Mapping[str, int] = field(default_factory=dict)
