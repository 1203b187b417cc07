"""The input of the checks, gathered once: values, and one database connection for reading."""

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
    """The state of one Redis server.

    Attributes:
        name: its address, if there are several servers.
        role: "master" or "slave".
        clock_ahead: seconds by which its clock is ahead.
        answer_seconds: how long its answer took.
        failure: why the server, or one of several, did not answer. Empty: it did.
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
        connection: a connection to the database, for reading.
        database: the database with its tables.
        settings: the settings of the application.
        leases: seconds that a claim lasts, by consumer group.
        now: the time by the database's clock, seconds since the epoch.
        clock_ahead: seconds by which the database's clock is ahead of this machine's.
        clock_error: the possible error of `clock_ahead`, seconds.
        processes: rows of the process table that were written within ten minutes.
        watched: the watched time of retention. None: retention has not run yet.
        handling: the longest handler call in seconds, by consumer group, from `processes`.
        topics: the states of topics that the resend schedulers wrote, by name.
        redis: the state of each Redis server. Empty: the application has none.
        cluster: the state of the cluster. None: it is unknown; `cluster_failure` has the reason,
            and `cluster_remedy` what to do, if the reason says that.
        unawaited: of the newest messages, the number that waits for no consumer group, by topic.
            Topics that the application declared without readers are left out.
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
    cluster_remedy: str = ""
    unawaited: Mapping[str, int] = field(default_factory=dict)
