"""The overview's machines, last day and latency by station, from bounded reads."""

import os
import platform
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from tests.console.conftest import Browse
from tests.console.planted_rows import insert_rows, log, message_id, stub
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.client.administering.cluster_facts import BrokerFacts
from reliable_mq.console.broker_legs import broker_legs
from reliable_mq.console.kept import Reading
from reliable_mq.console.overview_figures import machine_signs
from reliable_mq.console.rendering import took
from reliable_mq.console.signs import State, summary
from reliable_mq.console.signs_machines import of_clocks, of_disks, of_open_brokers, of_workers
from reliable_mq.errors import NotFound
from reliable_mq.measuring.sql_latency import SAMPLE, Leg, SeenDelivery, SqlLatency, times_of
from reliable_mq.measuring.sql_machines import Machines, SeenProcess, machines_of
from reliable_mq.measuring.sql_throughput import HOUR, Happening, SqlThroughput

LISTS = {"brokers", "workers"}


def broker(used: str, **more: Any) -> BrokerFacts:
    config = {"cleanFileForciblyEnable": "true", "diskSpaceWarningLevelRatio": "90"}
    runtime = {"commitLogDiskRatio": used}
    return BrokerFacts(name="broker-a", address="a:1", config=config, runtime=runtime, **more)


def process(number: int, silent: float = 0.0, ahead: float = 0.0) -> SeenProcess:
    now = datetime.now(UTC)
    return SeenProcess(
        *(f"p-{number}", "shop", "host-a", number, "1.0"), ahead, {}, now, now, silent
    )


@pytest.mark.parametrize(
    ("used", "state", "said"),
    [
        ("0.5", State.WELL, "broker-a"),
        ("0.83", State.WARN, "broker-a, 83 %: it removes files before their time above 85%"),
        ("0.92", State.BAD, "it removes files before their time and refuses sends"),
    ],
)
def test_a_disk_that_fills_up_is_a_sign(used: str, state: State, said: str) -> None:
    away = BrokerFacts(name="b", address="b:1", failure="x")
    (sign,) = of_disks([broker(used), away], 1.0, LISTS)
    assert sign.state is state
    assert said in sign.text
    assert (sign.figure, sign.link) == (f"{float(used):.0%}".replace("%", " % full"), "/brokers")
    assert of_disks([broker("")], 1.0, LISTS) == of_disks([], None, LISTS) == []


@pytest.mark.parametrize(
    ("says", "state", "said"),
    [
        ({"openToEverybody": "true"}, State.WARN, "broker-a: strangers reach it, and need no"),
        (
            {"haOpenToEverybody": "true"},
            State.BAD,
            "broker-a: whoever reaches its port for slaves gets every message",
        ),
        (
            {"openToEverybody": "true", "haOpenToEverybody": "true"},
            State.BAD,
            "delete every message. broker-a: whoever",
        ),
    ],
)
def test_a_broker_that_serves_strangers_is_a_sign(
    says: dict[str, str], state: State, said: str
) -> None:
    closed = BrokerFacts(name="b", address="b:1", config={"openToEverybody": "false"})
    opened = BrokerFacts(name="broker-a", address="a:1", config=says)
    (sign,) = of_open_brokers([closed, opened], 1.0, LISTS)
    assert (sign.state, sign.figure, sign.link) == (state, "1 open", "/brokers")
    assert said in sign.text
    assert of_open_brokers([closed], 1.0, LISTS) == []


@pytest.mark.parametrize(
    ("ahead", "process_ahead", "broker_ahead", "state", "said"),
    [
        (0.1, 0.2, 0.5, State.WELL, "3 clocks agree"),
        (2.0, 0.0, 2.1, State.WARN, "this console is 2.0 s behind the database"),
        (0.0, 70.0, 0.0, State.BAD, "process 7 on host-a is 70.0 s ahead of the database"),
        (0.0, 0.0, -3.0, State.WARN, "broker broker-a is 3.0 s behind the database"),
    ],
)
def test_a_clock_that_is_wrong_is_named(
    ahead: float, process_ahead: float, broker_ahead: float, state: State, said: str
) -> None:
    machines = Machines([process(7, ahead=process_ahead), process(8, 999.0, 99.0)], ahead, 0.01)
    at_broker = broker("0.5", clock_ahead=broker_ahead, clock_error=0.6)
    (sign,) = of_clocks({"main": machines}, [at_broker], 1.0)
    assert sign.state is state
    assert said in sign.text
    assert of_clocks({}, [at_broker], None) == []


@pytest.mark.parametrize(
    ("processes", "alone", "state", "figure", "said"),
    [
        ([process(1), process(2)], [], State.WELL, "2 alive", "once a minute"),
        ([process(1), process(2, 700.0)], [], State.WELL, "1 alive", "process 2 on host-a for 11"),
        ([process(2, 700.0)], [], State.WARN, "none alive", "Silent: process 2"),
        ([process(1)], ["billing"], State.WARN, "1 alive", "Nobody consumes for billing"),
        ([], [], State.WARN, "none alive", "No process has reported within a day"),
    ],
)
def test_workers_that_are_away_are_worth_a_look(
    processes: list[SeenProcess], alone: list[str], state: State, figure: str, said: str
) -> None:
    sign = of_workers(processes, alone, 1.0, LISTS)
    assert (sign.state, sign.figure, sign.link) == (state, figure, "/workers")
    assert said in sign.text


def test_what_was_never_read_is_not_known() -> None:
    unread = SimpleNamespace(look=lambda: Reading(None, 0.0, "no answer within 0.5 s"))
    kept = {"main": SimpleNamespace(machines=unread)}
    sources: Any = SimpleNamespace(kept=kept, brokers=unread, why_no_cluster="")
    found = machine_signs(sources, LISTS)
    assert [each.name for each in found] == ["Clocks and workers", "Disk of brokers"]
    assert {(each.state, each.text) for each in found} == {
        (State.UNKNOWN, "no answer within 0.5 s"),
    }
    assert summary(found) == "Not all is known: clocks and workers, disk of brokers"


def seen(**values: Any) -> dict[str, Any]:
    """Return the row of a process."""
    now = datetime.now(UTC)
    return {
        "owner": "p-1",
        "application": "shop",
        "host": "host-a",
        "pid": 7,
        "package_version": "1.0",
        "clock_ahead": 0.0,
        "handling": "{}",
        "start_date": now,
        "seen_date": now,
        **values,
    }


def test_processes_and_the_clock_are_read_from_the_database(mq: ReliableMQ) -> None:
    late = datetime.now(UTC) - timedelta(minutes=9)
    insert_rows(mq.database, "process", seen(handling='{"billing": 1.5}'))
    insert_rows(mq.database, "process", seen(owner="p-2", pid=8, seen_date=late, handling="?"))
    found = machines_of(mq.database)
    assert [(each.owner, each.is_silent) for each in found.processes] == [
        ("p-1", False),
        ("p-2", True),
    ]
    assert found.processes[0].slowest == {"billing": 1.5}
    assert abs(found.clock_ahead) < 60


def test_the_overview_counts_other_processes_and_not_itself(mq: ReliableMQ, browse: Browse) -> None:
    late = datetime.now(UTC) - timedelta(minutes=9)
    this = seen(owner="me", host=platform.node(), pid=os.getpid())
    insert_rows(mq.database, "process", this, seen(owner="p-2", seen_date=late))
    client = browse()
    until(lambda: "none alive" in client.get("/overview/live").text)
    assert "Silent: process 7 on host-a for 9 min" in client.get("/overview/live").text


def test_each_hour_of_the_last_day_is_counted_and_an_hour_that_is_over_once(
    mq: ReliableMQ, browse: Browse
) -> None:
    now = datetime.now(UTC)
    for number, hours in enumerate((0, 5, 30)):
        moment = now - timedelta(hours=hours)
        row = stub(0, message_id=message_id(number, moment), update_date=moment, create_date=moment)
        insert_rows(mq.database, "message_stub", row)
    day = SqlThroughput(mq.database, spans=24, length=HOUR)
    counts = day.read()[Happening.COMMITTED]
    assert (len(counts), sum(counts), counts[-1], counts[-6]) == (24, 2, 1, 1)
    asked: list[object] = []
    count = day._count
    day._count = lambda *given: asked.append(given) or count(*given)  # type: ignore[method-assign, func-returns-value]
    day.read()
    assert len(asked) <= len(Happening) * 3
    client = browse()
    until(lambda: "2 in the last day, at most 1 in an hour" in client.get("/overview/live").text)


def settled(number: int, moment: datetime, **values: Any) -> dict[str, Any]:
    return stub(
        0,
        message_id=message_id(number, moment),
        status=1,
        resend_time=None,
        create_date=moment - timedelta(seconds=10),
        update_date=moment,
        **values,
    )


def test_latency_is_measured_from_station_to_station(mq: ReliableMQ, browse: Browse) -> None:
    now = datetime.now(UTC)
    for number in range(4):
        row = settled(number, now - timedelta(minutes=10 * number))
        begun = row["create_date"] + timedelta(seconds=4)
        dates = {"create_date": begun, "consume_date": begun + timedelta(seconds=5)}
        insert_rows(mq.database, "message_stub", row)
        insert_rows(mq.database, "consume_log", log(row, **dates))
    found = SqlLatency(mq.database).read()
    times = {leg: (each.p50, each.p99, each.number) for leg, each in found.legs.items()}
    assert times == {
        Leg.DELIVERED: (4.0, 4.0, 4),
        Leg.EFFECT: (5.0, 5.0, 4),
        Leg.CONFIRMED: (1.0, 1.0, 4),
        Leg.WHOLE: (10.0, 10.0, 4),
    }
    track = found.legs[Leg.WHOLE].track
    assert len(track) == 12
    assert sorted(track) == [0.0] * 8 + [10.0] * 4
    assert {each.message_id for each in found.newest} >= {message_id(0, now)}
    client = browse()
    until(lambda: "effect to confirmed" in client.get("/overview/live").text)
    assert "10.0 s" in client.get("/overview/live").text


def test_a_delay_that_was_asked_for_and_a_voided_stub_are_no_latency(mq: ReliableMQ) -> None:
    now = datetime.now(UTC)
    late = settled(1, now, deliver_time=now - timedelta(seconds=1))
    voided = settled(2, now) | {"status": 2}
    insert_rows(mq.database, "message_stub", late, voided)
    legs = SqlLatency(mq.database).read().legs
    assert {leg: (each.p99, each.number) for leg, each in legs.items()} == {Leg.WHOLE: (1.0, 1)}


def test_of_many_messages_a_sample_is_read_and_a_span_that_is_over_once(mq: ReliableMQ) -> None:
    now = datetime.now(UTC) - timedelta(minutes=30)
    rows = [settled(number, now) for number in range(SAMPLE + 50)]
    insert_rows(mq.database, "message_stub", *rows)
    latency = SqlLatency(mq.database)
    assert latency.read().legs[Leg.WHOLE].number == SAMPLE
    spans: list[object] = []
    span = latency._span
    latency._span = lambda *given: spans.append(given) or span(*given)  # type: ignore[method-assign, func-returns-value]
    assert latency.read().legs[Leg.WHOLE].number == SAMPLE
    assert len(spans) <= 3


def test_brokers_know_when_a_message_was_sent_and_stored() -> None:
    committed = datetime.fromtimestamp(1_000, UTC)
    delivery = SeenDelivery(
        *("A", "orders", "broker-a", 1, 7), committed, committed + timedelta(seconds=3)
    )
    record = SimpleNamespace(message_id="A", born_time_ms=1_000_500, store_time_ms=1_001_000)

    def at(queue: Any, offset: int) -> list[Any]:
        if queue.queue_id == 2:
            raise NotFound(17, "gone")
        return [record] if (queue.topic, offset) == ("live%orders", 7) else []

    admin: Any = SimpleNamespace(messages=SimpleNamespace(at=at))
    gone = delivery._replace(message_id="B", queue_id=2)
    other = delivery._replace(message_id="C")
    legs = broker_legs(admin, [delivery, gone, other], lambda name: f"live%{name}")
    assert {leg: each.p50 for leg, each in legs.items()} == {
        Leg.RELAYED: 0.5,
        Leg.STORED: 0.5,
        Leg.FETCHED: 2.0,
    }


def test_times_are_said_as_people_say_them() -> None:
    said = [took(each) for each in (0.0004, 0.34, 1.25, 300)]
    assert said == ["0 ms", "340 ms", "1.2 s", "5 min"]
    found = times_of([float(each) for each in range(100)])
    assert found is not None
    assert (found.p50, found.p99) == (50.0, 99.0)
    assert times_of([]) is None
