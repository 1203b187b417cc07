"""What a run is asked for. Pure."""

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
    """What a run is asked for. `now` is the moment of the judgement.

    `database` keeps the record of the run; `others` are further ones with stubs or consume logs.
    `out` is a folder of this machine, or the URI of one on a file system that Spark knows. Of the
    findings the first `findings_max` are written into the table; the folder has all. Of the runs'
    folders the newest `runs_kept` stay. `memory_bytes`: what a run on this machine may take.
    `store` and `stores` are directories, or NAME=DIR, `cluster` the name servers of a cluster; a
    `partial` run judges without the brokers that cannot be read. `choice` and `rate` say what is
    repaired, and how fast; `is_following`: the run repeats itself, which a repair takes into
    account (`sql_obstacles`). `tells`: people are told of what is new. `export`: where the ledgers
    are written first, to be judged from there.
    `ledgers`: an export to judge in place of databases and store, as of its time; such a run has no
    row. `increment`: go on where the last increment ended; with `anew`, read everything, and let
    increments go on from there. `managed` topics are so whether or not a stub of them is there;
    what earlier runs know of the topics `unmanaged` is forgotten.
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
    stores: tuple[str, ...] = ()
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
    """Refuse options that contradict each other.

    Raises:
        ConfigurationError: names them.
    """
    if options.repair not in (None, *REPAIRS):
        raise ConfigurationError(f"--repair takes plan or apply, not {options.repair!r}")
    if not 0 < options.db_share <= 1:
        raise ConfigurationError(
            f"--db-share takes a share above 0, at most 1, not {options.db_share}"
        )
    if options.since and options.until and options.since >= options.until:
        raise ConfigurationError("--since must be before --until")
    if options.since and options.since > options.now:
        raise ConfigurationError(f"--since {options.since.isoformat()} has not come yet")
    if options.ledgers is not None and options.repair is not None:
        raise ConfigurationError("--repair needs the databases: give --db and --store")
    from_logs = (options.store, *options.stores, options.cluster, options.export)
    if options.ledgers is not None and (options.databases or any(from_logs)):
        raise ConfigurationError("--ledgers stands in place of --db, --store and --export")
    if options.export is not None and (options.cluster or options.partial):
        raise ConfigurationError(
            "--export writes whole logs, from files: give every broker's --store, without --cluster"
            " and --partial; or judge what can be read by a run without --export"
        )
    both = sorted(set(options.managed) & set(options.unmanaged))
    if both:
        raise ConfigurationError(f"{both[0]} is given by --managed and by --unmanaged")
    if options.increment:
        _check_increment(options)


def _check_increment(options: RunOptions) -> None:
    if options.since is not None or options.until is not None:
        raise ConfigurationError("--increment finds its time by itself: no --since and no --until")
    if options.ledgers is not None or options.export is not None:
        raise ConfigurationError(
            "--increment reads what changed since the run before it, which an export, all ledgers"
            " at one moment, does not tell: give --ledgers or --export to a run of its own, with"
            " --since where only its last days are to be judged"
        )
    if options.partial:
        raise ConfigurationError(
            "--increment goes on in every log, so it waits for a broker that is away: judge the"
            " others by a run of its own, with --partial and --since"
        )


def managed_topics(
    options: RunOptions, stubs: Collection[str], remembered: Collection[str]
) -> list[str]:
    """Return the topics for which a stub was ever written, sorted.

    Retention removes stubs, in the end the last one of a topic; what is found in the topic from
    then on is an orphan all the same.

    Args:
        options: of the run; they add topics, and take away what is only remembered.
        stubs: the topics of the stubs that are there.
        remembered: those that earlier runs took as managed.

    Raises:
        ConfigurationError: a topic is to be unmanaged that has stubs.
    """
    held = sorted(set(options.unmanaged) & set(stubs))
    if held:
        raise ConfigurationError(f"--unmanaged {held[0]}: there are stubs of this topic")
    return sorted({*stubs, *remembered, *options.managed} - {*options.unmanaged})


def lack_of_stubs(
    options: RunOptions, managed: Collection[str], verdicts: Mapping[str, int]
) -> str | None:
    """Return what is wrong when messages were held against nothing, because there are no stubs.

    Nobody who reconciles expects that: it is another application's database, or one that was made
    anew. None: there are managed topics, there is no message, or a person has said that it is so.

    Args:
        options: of the run.
        managed: the topics that it took as managed.
        verdicts: how many there are of each.
    """
    if managed or options.unmanaged or not verdicts.get(Verdict.UNMANAGED):
        return None
    return (
        "there are none, nor has a run known any, so no message was held against a stub: is it the"
        " right database and --table-prefix? --managed names a topic that should have stubs,"
        " --unmanaged one that never has"
    )


def judged_since(options: RunOptions, mark: datetime | None) -> RunOptions:
    """Leave out the time from which retention has removed stubs or logs: its ledgers are not whole.

    What the broker still holds from then would be called an orphan, what was consumed be missed.

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
