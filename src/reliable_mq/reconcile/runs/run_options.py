"""The options of a run, and their checks. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.judgement.verdict import Verdict
from reliable_mq.reconcile.repairs.repair import (
    ALL_THAT_IS_SAFE,
    UNBOUNDED,
    FindingChoice,
    RepairRate,
)
from reliable_mq.reconcile.runs.run_folder import RUNS_KEPT

REPAIRS = ("plan", "apply")
FINDINGS_KEPT_MAX = 100_000


@dataclass(frozen=True)
class RunOptions:
    """The options of a run.

    Attributes:
        database: the database that stores the row of the run.
        store: a store directory, or NAME=DIR. `stores`: further ones.
        slaves: store directories of slaves, DIR or NAME=DIR, which are compared with those.
        out: the output folder: a local path, or a URI of a file system that Spark supports.
        now: the moment of the judgement.
        grace: younger messages are in flight.
        since: judge only messages from this moment on. None: no limit.
        until: judge only messages before this moment. None: no limit.
        repair: "plan", "apply", or None: no repair.
        prefix: the prefix of the table names.
        broker_name: the broker of a store without a name.
        others: further databases with stubs or consume logs.
        findings_max: most findings that are written to the table. The folder has all.
        runs_kept: the number of newest run folders that stay.
        memory_bytes: memory for a run on this machine. None: see `machine_share`.
        choice: the findings to repair. `rate`: how many stubs in a second.
        is_following: the run repeats itself; repairs depend on it (`sql_obstacles`).
        tells: whether people are notified of new findings.
        export: write the ledgers to this folder first, and judge them from there.
        ledgers: an export to judge instead of databases and stores, as of its time. Such a run
            writes no row.
        cluster: the name servers of a cluster.
        partial: judge without the brokers that cannot be read.
        db_share: the part of the time that reads of a database may take.
        increment: continue where the last increment ended. With `anew`, read everything, and let
            later increments continue from there.
        managed: topics that count as managed even without a stub.
        application: MODULE:OBJECT of the application that named the databases; "": none.
        unmanaged: topics that earlier runs took as managed, but that are not.
    """

    database: str
    store: str
    out: Path | str
    now: datetime
    grace: timedelta
    since: datetime | None = None
    until: datetime | None = None
    repair: str | None = None
    prefix: str = "rmq_"
    broker_name: str | None = None
    others: tuple[str, ...] = ()
    findings_max: int = FINDINGS_KEPT_MAX
    runs_kept: int = RUNS_KEPT
    memory_bytes: int | None = None
    choice: FindingChoice = ALL_THAT_IS_SAFE
    rate: RepairRate = UNBOUNDED
    is_following: bool = False
    tells: bool = False
    export: str | None = None
    ledgers: str | None = None
    application: str = ""
    stores: tuple[str, ...] = ()
    slaves: tuple[str, ...] = ()
    cluster: str | None = None
    partial: bool = False
    db_share: float = 1.0
    increment: bool = False
    anew: bool = False
    managed: tuple[str, ...] = ()
    unmanaged: tuple[str, ...] = ()

    @property
    def databases(self) -> tuple[str, ...]:
        """All databases, each once."""
        return tuple(dict.fromkeys(filter(None, (self.database, *self.others))))


def check(options: RunOptions) -> None:
    """Check that no options contradict each other.

    Raises:
        ConfigurationError: when some do. The text names them.
    """
    if options.repair not in (None, *REPAIRS):
        raise ConfigurationError(f"--repair takes plan or apply, not {options.repair!r}")
    if not 0 < options.db_share <= 1:
        raise ConfigurationError(
            f"--db-share takes a share above 0, up to 1, not {options.db_share}"
        )
    if options.since and options.until and options.since >= options.until:
        raise ConfigurationError("--since must be before --until")
    if options.since and options.since > options.now:
        raise ConfigurationError(f"--since {options.since.isoformat()} is in the future")
    if options.ledgers is not None and options.repair is not None:
        raise ConfigurationError("--repair needs the databases: give --db and --store")
    from_logs = (options.store, *options.stores, options.cluster, options.export)
    if options.ledgers is not None and (options.databases or any(from_logs)):
        raise ConfigurationError(
            "--ledgers cannot be used with --db, --store, --cluster or --export: it replaces them"
        )
    if options.export is not None and (options.cluster or options.partial):
        raise ConfigurationError(
            "--export writes whole logs, from files: give every broker's --store, without --cluster"
            " and --partial; or judge only the logs that can be read, by a run without --export"
        )
    if options.slaves and (options.ledgers is not None or options.increment):
        raise ConfigurationError(
            "--slave-store compares whole logs: give it to a run without --ledgers and --increment,"
            " with --store"
        )
    both = sorted(set(options.managed) & set(options.unmanaged))
    if both:
        raise ConfigurationError(f"{both[0]} is given by --managed and by --unmanaged")
    if options.increment:
        _check_increment(options)


def _check_increment(options: RunOptions) -> None:
    if options.since is not None or options.until is not None:
        raise ConfigurationError("--increment sets its own time range: omit --since and --until")
    if options.ledgers is not None or options.export is not None:
        raise ConfigurationError(
            "--increment reads the changes since the previous run. An export has all ledgers at one"
            " moment, and no changes: give --ledgers or --export to a run without --increment, with"
            " --since to judge only the last days"
        )
    if options.partial:
        raise ConfigurationError(
            "--increment needs every log, so it cannot run while a broker is down: judge the other"
            " brokers by a run without --increment, with --partial and --since"
        )


def managed_topics(
    options: RunOptions, stubs: Collection[str], remembered: Collection[str]
) -> list[str]:
    """Return the topics for which a stub was ever written, sorted.

    Retention may remove the last stub of a topic. The topic stays managed, so that later messages
    without a stub are orphans.

    Args:
        options: the options of the run. They add topics, and remove remembered ones.
        stubs: the topics that have stubs now.
        remembered: the topics that earlier runs took as managed.

    Raises:
        ConfigurationError: a topic in `unmanaged` has stubs.
    """
    held = sorted(set(options.unmanaged) & set(stubs))
    if held:
        raise ConfigurationError(f"--unmanaged {held[0]}: there are stubs of this topic")
    return sorted({*stubs, *remembered, *options.managed} - {*options.unmanaged})


def lack_of_stubs(
    options: RunOptions, managed: Collection[str], verdicts: Mapping[str, int]
) -> str | None:
    """Return the problem that there are no stubs to compare the messages with; None: no problem.

    This is unexpected: the database may be that of another application, or a new one. It is no
    problem if there are managed topics, if there is no message, or if the person named unmanaged
    topics.

    Args:
        options: the options of the run.
        managed: the topics that the run took as managed.
        verdicts: verdict -> number of rows.
    """
    if managed or options.unmanaged or not verdicts.get(Verdict.UNMANAGED):
        return None
    return (
        "there are none, and earlier runs knew none, so no message was compared with a stub: is it"
        " the right database and --table-prefix? --managed names a topic that should have stubs,"
        " --unmanaged one that never has"
    )


def judged_since(options: RunOptions, mark: datetime | None) -> RunOptions:
    """Leave out the time from which retention has removed stubs or logs.

    The ledgers of this time are incomplete: messages in the broker's log would look like orphans,
    and consumed messages would look unconsumed.

    Raises:
        ConfigurationError: when nothing is left to judge.
    """
    if mark is None or (options.since is not None and options.since >= mark):
        return options
    if options.until is not None and options.until <= mark:
        raise ConfigurationError(
            f"retention has removed messages from before {mark.isoformat()}: --until must be later"
        )
    return replace(options, since=mark)
