"""Every check of the doctor is silent on what is sound, and speaks when its fault is planted."""

import json
import re
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.doctor.test_faults_in_databases import FAULTS
from tests.doctor.worlds import MYSQL, PATIENT, SQLITE, World, call, running_broker
from tests.waiting import until

from reliable_mq.client.administering.cluster_facts import BrokerFacts, ClusterFacts
from reliable_mq.doctor import redis_examination
from reliable_mq.doctor.check_context import CheckContext, RedisFacts
from reliable_mq.doctor.finding import CheckFindings, Level, worst
from reliable_mq.doctor.redis_examination import CHECKS
from reliable_mq.settings import Settings
from reliable_mq.testing.local_servers import LocalPostgres, free_port


def test_a_sound_application_is_found_sound(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    with (
        running_broker(tmp_path / "store") as address,
        closing(World(database_url, broker=address, redis=redis_url, **PATIENT)) as world,
    ):
        world.process()

        findings = world.mq.examine()

        assert worst(findings) is Level.OK, [each for each in findings if each.remedy]
        assert {each.check for each in findings} == CHECKS.keys()
        skipped = {each.check for each in findings if each.level is Level.SKIPPED}
        wanted = {"storage"} if world.dialect != MYSQL else set()
        assert skipped == wanted | ({"limits"} if world.dialect == SQLITE else set())


def test_an_sqlite_file_that_is_opened_to_be_read_is_told(tmp_path: Path) -> None:
    file = tmp_path / "application.db"
    World(f"sqlite:///{file}").close()

    with closing(World(f"sqlite:///file:{file}?mode=ro&uri=true", makes_tables=False)) as seen:
        (told,) = seen.findings("writes")

    assert told.level is Level.ERROR
    assert "attempt to write a readonly database" in told.text


def test_a_standby_is_told(server_directory: Path) -> None:
    server = LocalPostgres(server_directory / "standby")
    server.start()
    try:
        World(server.url).close()
        server.stop()
        # Without an address it waits for ever for a primary, as one that lost its own does.
        (server.directory / "data" / "standby.signal").touch()
        server.start()
        with closing(World(server.url, makes_tables=False)) as seen:
            (told,) = seen.findings("writes")
    finally:
        server.stop()

    assert told.level is Level.ERROR
    assert "this is a standby" in told.text


def test_a_writer_of_an_sqlite_file_does_not_wait_for_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(World(f"sqlite:///{tmp_path / 'application.db'}")) as world:
        examined = CHECKS["broker"]

        def write_meanwhile(context: CheckContext, told: CheckFindings) -> None:
            with sqlite3.connect(tmp_path / "application.db", timeout=0) as other:
                other.execute("UPDATE rmq_identity SET number = number")
            examined(context, told)

        monkeypatch.setitem(CHECKS, "broker", write_meanwhile)

        assert world.findings("broker")


def test_more_connections_than_the_server_has_are_told(postgres_url: str) -> None:
    for number, level in ((120, Level.WARNING), (900, Level.ERROR)):
        with closing(World(postgres_url, database_connections=number)) as world:
            (told,) = world.findings("limits")
        assert told.level is level
        assert f"may open {number + 4} connections" in told.text


def test_a_machine_whose_clock_is_wrong_is_told(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        @staticmethod
        def time() -> float:
            return time.time() + 600

    monkeypatch.setattr(redis_examination, "time", Wrong)

    with closing(World(postgres_url)) as world:
        (told,) = world.findings("clocks")

    assert told.level is Level.ERROR
    # The database's answer may be late: the time that it took is what this may be wrong by.
    assert re.search(r"this machine is (59|60)\d\.\d s ahead of the database's", told.text)


BROKER = BrokerFacts(name="b", address="b:1", config={}, runtime={}, clock_ahead=0.0)


def context(**values: Any) -> CheckContext:
    made = CheckContext(
        connection=None,  # type: ignore[arg-type]
        database=None,  # type: ignore[arg-type]
        settings=Settings(redis="redis://there"),
        leases={"payments": 10.0},
        now=1_000.0,
        redis=(RedisFacts(role="master"),),
        cluster=ClusterFacts((BROKER,), frozenset({"orders"}), frozenset({"payments"})),
    )
    return replace(made, **values)


def with_broker(**values: Any) -> CheckContext:
    changed = msgspec.structs.replace(BROKER, **values)
    return context(cluster=ClusterFacts((changed,), frozenset(), frozenset()))


def with_settings(**values: Any) -> CheckContext:
    return context(settings=Settings(redis="redis://there", **values))


VALUES = [
    (
        "clocks",
        context(clock_ahead=-3.0, redis=(), cluster=None),
        "this machine is 3.0 s ahead",
        Level.WARNING,
    ),
    (
        "clocks",
        context(redis=(RedisFacts(clock_ahead=-90.0),)),
        "Redis is 90.0 s behind",
        Level.ERROR,
    ),
    ("clocks", with_broker(clock_ahead=90.0), "broker b is 90.0 s ahead of", Level.ERROR),
    (
        "clocks",
        with_broker(runtime={"filesHeldSeconds": "345600"}),
        "the clock of broker b jumped by 345600 s that were not watched",
        Level.WARNING,
    ),
    ("leases", with_settings(resend_lease_seconds=9.0), "resend_lease_seconds is 9 s", Level.ERROR),
    ("leases", with_settings(redis_timeout_seconds=4.0), "the lease of group pay", Level.ERROR),
    ("windows", with_broker(config={"fileReservedTime": "1"}), "files after 1 h", Level.ERROR),
    ("windows", with_settings(duplicate_window_seconds=60.0), "messages after 60 s", Level.WARNING),
    ("redis", context(redis=(RedisFacts(failure="refused"),)), "cannot be reached", Level.WARNING),
    (
        "redis",
        context(redis=(RedisFacts(failure="Authentication required."),)),
        "Authentication required",
        Level.WARNING,
    ),
    (
        "redis",
        context(redis=(RedisFacts(), RedisFacts(name="b:1", role="slave"))),
        "Redis b:1 is a slave",
        Level.WARNING,
    ),
    ("redis", context(redis=(RedisFacts(answer_seconds=0.7),)), "took 0.70 s", Level.WARNING),
    ("broker", context(cluster=None, cluster_failure="refused"), "reached: refused", Level.ERROR),
    ("broker", with_broker(failure="gone"), "broker b at b:1: gone", Level.ERROR),
    ("broker", with_broker(config={"flushDiskType": "ASYNC_FLUSH"}), "(ASYNC", Level.ERROR),
    (
        "broker",
        with_broker(config={"cleanFileForciblyEnable": "true"}),
        "removes unread messages when its disk is more than 85% full",
        Level.WARNING,
    ),
    ("broker", with_broker(config={"brokerPermission": "4"}), "permission 4", Level.ERROR),
    ("broker", with_broker(config={"openToEverybody": "true"}), "is open to", Level.WARNING),
    ("broker", with_broker(config={"messageDelayLevel": "1s 9s"}), "'1s 9s'", Level.ERROR),
    (
        "broker",
        with_broker(runtime={"commitLogDiskRatio": "0.91"}),
        "91% full: it refuses sends",
        Level.ERROR,
    ),
    (
        "broker",
        with_broker(runtime={"commitLogDiskRatio": "0.2", "consumeQueueDiskRatio": "0.91"}),
        "91% full: it refuses sends",
        Level.ERROR,
    ),
    (
        "broker",
        with_broker(
            config={"diskSpaceWarningLevelRatio": "55"}, runtime={"commitLogDiskRatio": "0.55"}
        ),
        "55% full: it refuses sends above 55%",
        Level.WARNING,
    ),
    (
        "broker",
        with_broker(
            config={"diskSpaceWarningLevelRatio": "-1"}, runtime={"commitLogDiskRatio": "0.4"}
        ),
        "40% full: it refuses sends",
        Level.ERROR,
    ),
    (
        "broker",
        with_broker(runtime={"commitLogDiskRatio": "0.9"}),
        "90% full: it refuses sends above 90%",
        Level.WARNING,
    ),
    ("broker", with_broker(runtime={"brokerVersion": "399"}), "older than 5.0", Level.WARNING),
    (
        "broker",
        with_broker(config={"timerWheelEnable": "false"}),
        "delays are rounded up to the next of its delay levels",
        Level.WARNING,
    ),
    (
        "broker",
        with_broker(config={"timerMaxDelaySec": "3600"}),
        "accepts delays of up to 3600 s, less than timer_range_seconds=259200",
        Level.WARNING,
    ),
    (
        "broker",
        context(cluster=ClusterFacts((), frozenset(), frozenset())),
        "know no broker",
        Level.ERROR,
    ),
    (
        "readers",
        context(
            unawaited={"ordres": 3},
            cluster=ClusterFacts((), frozenset(), frozenset(), readers={"ordres": frozenset()}),
        ),
        "nobody reads topic ordres",
        Level.WARNING,
    ),
]


@pytest.mark.parametrize(("check", "planted", "says", "level"), VALUES)
def test_a_fault_among_the_values_is_found(
    check: str, planted: CheckContext, says: str, level: Level
) -> None:
    for given, wanted in ((context(), [Level.OK]), (planted, [level])):
        told = CheckFindings(check)
        CHECKS[check](given, told)
        assert [each.level for each in told.findings] == wanted
    assert says in told.findings[0].text
    assert told.findings[0].remedy


@pytest.mark.parametrize(
    ("used", "says"),
    [
        ("0.80", ""),
        ("0.81", "81% full: it removes files before their time above 85%"),
        ("0.86", "86% full: it removes files before their time"),
        ("0.91", "91% full: it removes files before their time and refuses sends"),
    ],
)
def test_a_broker_that_removes_what_nobody_has_read_is_told_before_it_does(
    used: str, says: str
) -> None:
    told = CheckFindings("broker")
    removing = {"cleanFileForciblyEnable": "true", "diskSpaceCleanForciblyRatio": "99"}
    CHECKS["broker"](with_broker(config=removing, runtime={"commitLogDiskRatio": used}), told)
    always, *more = told.findings
    assert "when its disk is more than 85% full" in always.text
    assert [each.text.partition("is ")[2] for each in more] == ([says] if says else [])


@pytest.mark.parametrize("ratio", ["", "-1", "-1.0", "NaN", "Infinity", "0,9"])
def test_a_ratio_that_says_nothing_is_no_finding(ratio: str) -> None:
    told = CheckFindings("broker")
    marks = {"diskSpaceWarningLevelRatio": "9" * 5_000}
    CHECKS["broker"](with_broker(config=marks, runtime={"commitLogDiskRatio": ratio}), told)
    assert [each.level for each in told.findings] == [Level.OK], told.findings


def test_who_is_compared_with_a_database_that_answered_late_may_be_wrong_by_as_much() -> None:
    """By as long as the answer took, that is; the other clocks are known by this machine's."""
    told = CheckFindings("clocks")

    CHECKS["clocks"](context(clock_ahead=1.4, clock_error=3.0), told)

    assert [each.level for each in told.findings] == [Level.OK], told.findings


def test_every_check_has_a_fault_that_it_was_seen_to_find() -> None:
    assert {fault.check for fault in FAULTS} | {"groups", "replicas"} | {
        check for check, *_ in VALUES
    } == CHECKS.keys()


def test_a_real_broker_and_redis_tell_their_settings_clocks_topics_and_consumers(
    postgres_url: str, redis_url: str, tmp_path: Path
) -> None:
    properties = {"flushDiskType": "ASYNC_FLUSH", "fileReservedTime": "2"}
    with (
        running_broker(tmp_path / "store", **properties) as address,
        closing(World(postgres_url, broker=address, redis=redis_url, **PATIENT)) as world,
    ):
        world.stub()

        findings = world.mq.examine()

        told = {(each.check, each.level) for each in findings}
        assert {("broker", Level.ERROR), ("windows", Level.ERROR)} <= told
        assert {("clocks", Level.OK), ("redis", Level.OK)} <= told
        texts = [each.text for each in findings if each.check == "orphans"]
        alone = "no consumer of it is connected"
        assert f"1 stub(s) wait for group payments, and {alone}" in texts
        assert "1 stub(s) are for topic orders, which no broker has" in texts
        world.give_up("B" * 32)  # a person's: it waits for the group all the time
        world.mq.start()
        # No broker has the topic before the relay sends a stub there, and hears of the group.
        until(lambda: not any(alone in each.text for each in world.findings("orphans")))
        assert any("1 stub(s) wait for a person" in each.text for each in world.findings("orphans"))


def test_the_command_says_what_is_wrong_and_what_to_do(
    database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(World(database_url)) as world:
        world.give_up()
    nobody = ("--broker", f"127.0.0.1:{free_port()}", "--redis", "redis://127.0.0.1:1")

    assert call("doctor", "--db", database_url, *nobody) == 1

    shown = capsys.readouterr().out
    assert "warn redis      Redis cannot be reached" in shown
    assert "FAIL broker     the cluster cannot be reached" in shown
    assert "warn orphans    1 stub(s) wait for a person\n" in shown
    assert "                reliable-mq stub list --escalated" in shown
    assert call("doctor", "--db", database_url, *nobody, "--json") == 1
    printed = json.loads(capsys.readouterr().out)
    assert {"check", "level", "text", "remedy", "database"} == printed[0].keys()
    assert {each["check"] for each in printed} == CHECKS.keys()


def test_warnings_fail_only_when_asked_to(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(World(database_url)) as world:
        world.give_up()
        world.sql("UPDATE rmq_message_stub SET required_groups = ''")
    with running_broker(tmp_path / "store") as address:
        words = ("doctor", "--db", database_url, "--broker", address)

        assert call(*words) == 0, capsys.readouterr().out
        assert call(*words, "--strict") == 1


@pytest.mark.parametrize(
    ("words", "says", "code"),
    [
        ((), "give either --app MODULE:OBJECT or --db URL; or set RELIABLE_MQ_APP", 2),
        (("nowhere:mq", "--db", "sqlite:///x.db"), "give either", 2),
        (("--db", "sqlite:///typo.db"), "there is no file typo.db", 1),
        (("--db", "postgresql+psycopg://u@127.0.0.1:9/x"), "the database cannot be used", 1),
    ],
)
def test_a_mistake_at_the_command_is_told(
    words: tuple[str, ...], says: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("doctor", *words) == code

    shown = capsys.readouterr()
    assert says in shown.out + shown.err
    assert "Traceback" not in shown.err
    assert not Path("typo.db").exists()


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_commands_in_findings_can_be_pasted(
    form: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("doctor", "--db", "sqlite:///typo.db", *form) == 1

    told = capsys.readouterr().out
    assert "run reliable-mq create-tables --db sqlite:///typo.db" in told
    assert "MODULE:OBJECT" not in told
