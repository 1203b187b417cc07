"""The resend scheduler on real databases, with a broker in memory; time is the test's."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text, update
from tests.resend.worlds import MAX, QUEUE, World

from reliable_mq.confirm.progress import has_passed
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.errors import ConnectionLost, NoRoute
from reliable_mq.escalate.sql_settlement import settlement_of
from reliable_mq.message import RESENT
from reliable_mq.outbox.stub import Position, Stub
from reliable_mq.resend.due import ClaimRequest, DueKind
from reliable_mq.resend.scheduler import ResendCounts, Scheduler
from reliable_mq.resend.thread_scheduler import SOON_SECONDS, run_forever

DYING = ClaimRequest(
    kind=DueKind.UNSENT,
    topic="orders",
    now=105.0,
    owner="dead",
    lease=60.0,
    limit=10,
    count_max=MAX,
)
"""What a scheduler asks for that is not heard of again."""


def test_a_stub_whose_relay_died_is_sent_when_its_time_has_come_and_not_before(
    world: World,
) -> None:
    stub = world.write("a")

    assert world.scheduler.run_once(104.9) == ResendCounts()
    assert world.scheduler.run_once(105.0) == ResendCounts(claimed=1, sent=1)
    assert world.broker.sent == ["a"]
    row = world.row(stub)
    assert (row["count"], row["offset"], row["owner"]) == (1, 0, None)
    assert row["resend_time"] == utc_datetime(115.0)


def test_what_is_missed_is_sent_with_the_request_to_look_in_the_database(world: World) -> None:
    world.write("a")

    world.scheduler.run_once(105.0)

    (message,) = world.broker.messages
    assert message.properties[RESENT] == "true"


def test_sends_that_fail_follow_the_ladder_and_then_a_person_is_told_once(world: World) -> None:
    # Given a message that is refused for what it is, whatever its topic
    stub = world.write("a")
    world.broker.refused = {"a"}
    tries = []

    for now in range(105, 200):
        counts = world.scheduler.run_once(float(now))
        if counts.failed:
            tries.append(now)

    assert tries == [105, 115, 135]  # at once, after 10 s, after 20 s
    assert world.open_escalations() == [("sends used up", "a")]
    row = world.row(stub)
    assert (row["status"], row["count"], row["resend_time"]) == (0, MAX, None)
    assert row["note"] == "MessageRefused: too large"


def test_a_backlog_that_has_not_reached_the_message_is_no_reason_to_send_it_again(
    world: World,
) -> None:
    stub = world.sent("a", offset=5)
    world.broker.progress["g"] = {QUEUE: (5, 9)}  # the next one to be consumed is offset 5

    assert world.scheduler.run_once(105.0) == ResendCounts(claimed=1, rested=1)
    row = world.row(stub)
    assert (row["count"], row["resend_time"]) == (1, utc_datetime(109.0))
    world.broker.progress["g"] = {QUEUE: (6, 9)}  # past it, and no consume log: it was lost
    assert world.scheduler.run_once(109.0).sent == 1


def test_a_message_whose_attempt_is_alive_is_not_sent_again(world: World) -> None:
    stub = world.sent("a")
    world.broker.progress["g"] = {QUEUE: (9, 9)}
    world.log(stub, state=0, until=107.0)

    assert world.scheduler.run_once(105.0).rested == 1
    assert world.scheduler.run_once(109.0).sent == 1


def test_every_required_group_must_have_passed(world: World) -> None:
    stub = world.sent("a", groups=("g", "h"))
    world.broker.progress = {"g": {QUEUE: (9, 9)}, "h": {QUEUE: (2, 9)}}

    assert world.scheduler.run_once(105.0).rested == 1
    world.broker.progress["h"] = {QUEUE: (9, 9)}
    world.log(stub, group="g")
    assert world.scheduler.run_once(109.0).sent == 1


def test_what_everybody_consumed_is_confirmed_and_not_sent(world: World) -> None:
    stub = world.sent("a", groups=("g", "h"))
    world.log(stub, group="g")
    world.log(stub, group="h")

    assert world.scheduler.run_once(105.0) == ResendCounts(claimed=1, confirmed=1)
    assert (world.row(stub)["status"], world.broker.sent) == (1, [])


def test_a_used_up_stub_that_everybody_consumed_is_confirmed_and_nobody_is_told(
    world: World,
) -> None:
    stub = world.sent("a")
    world.change(stub, count=MAX)
    world.log(stub)

    assert world.scheduler.run_once(105.0).confirmed == 1
    assert (world.row(stub)["status"], world.open_escalations()) == (1, [])


def test_a_broker_that_cannot_be_asked_decides_nothing(world: World) -> None:
    world.sent("a")
    world.broker.unasked = ConnectionLost("gone")

    assert world.scheduler.run_once(105.0) == ResendCounts(claimed=1, rested=1)


def test_a_message_whose_topic_or_place_is_gone_is_sent_again(world: World) -> None:
    world.sent("a", groups=("g",))
    world.sent("b", groups=("h",))
    world.broker.progress = {"g": {QUEUE: (2, 3)}, "h": {}}

    assert world.scheduler.run_once(105.0).sent == 2
    world.sent("c")
    world.broker.unasked = NoRoute("orders")
    assert world.scheduler.run_once(106.0).sent == 1


def test_stubs_of_one_key_leave_one_after_another_also_when_one_fails(world: World) -> None:
    for name in ("k1", "k2", "k3"):
        world.write(name, key="k")
    world.write("free")
    world.broker.failure = ConnectionLost("gone")

    world.scheduler.run_once(105.0)  # k1 and free were tried
    world.broker.failure = None
    world.scheduler.run_once(106.0)
    assert world.broker.sent == []  # the others wait behind k1
    for now in (115.0, 115.0, 115.0):
        world.scheduler.run_once(now)
    assert [name for name in world.broker.sent if name != "free"] == ["k1", "k2", "k3"]


def test_two_schedulers_never_send_the_same_stub(world: World) -> None:
    for number in range(40):
        world.write(f"m{number}x")
    schedulers = [world.new_scheduler(name, batch=5) for name in ("one", "two")]
    start = threading.Barrier(2)

    def work(scheduler: Scheduler) -> int:
        start.wait(60)
        sent = 0
        for _ in range(40):
            sent += scheduler.run_once(105.0).sent
        return sent

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(work, schedulers))

    assert sum(both) == 40
    assert len(set(world.broker.sent)) == len(world.broker.sent) == 40


def test_a_scheduler_that_died_gives_back_by_doing_nothing_and_can_write_no_more(
    world: World,
) -> None:
    stub = world.write("a")
    dead = world.new_due()

    (claimed,) = dead.claim(DYING).stubs
    assert world.scheduler.run_once(164.9).claimed == 0
    assert world.scheduler.run_once(165.0).sent == 1
    dead.postpone([stub], "dead", 999.0)
    assert world.escalations.used_up([claimed], "dead", 999.0) == 0
    assert world.row(stub)["count"] == 2  # the send of the dead one counts, too
    assert world.row(stub)["resend_time"] == utc_datetime(185.0)
    assert world.open_escalations() == []


@pytest.mark.parametrize("kind", ["suspect", "lost"])
def test_what_is_claimed_after_slow_sends_is_ours_for_a_whole_lease(
    world: World, kind: str
) -> None:
    # Given one that was never sent, and one that is dealt with after it
    world.write("slow", groups=())
    world.broker.progress["g"] = {QUEUE: (9, 9)}
    if kind == "lost":
        world.sent("late")
    else:
        world.change(world.write("late"), count=1, owner="dead")
    now = [105.0]
    other = world.new_scheduler("other", clock=lambda: now[0])
    batches: list[list[str]] = []

    def on_send(names: list[str]) -> None:
        batches.append(names)
        if names == ["slow"]:
            now[0] += 61.0  # longer than a lease
        elif len(batches) == 2:
            now[0] += 58.0  # while this one is sent, almost as long as one,
            assert other.run_once(now[0]).sent == 0  # another scheduler looks

    # When the first send takes longer than a lease, Then nobody else sends the other one meanwhile
    world.broker.on_send = on_send
    world.new_scheduler("one", clock=lambda: now[0]).run_once(105.0)
    assert batches == [["slow"], ["late"]]


class UntilSent:
    """Stops a scheduler when something was sent; its waits are the only time that passes."""

    def __init__(self, world: World, now: float) -> None:
        self.now = now
        self.sent = world.broker.sent

    def is_set(self) -> bool:
        return bool(self.sent)

    def wait(self, timeout: float) -> bool:
        self.now += timeout
        return self.is_set()


@pytest.mark.parametrize("interval", [1.0, 7.0])
def test_what_a_killed_scheduler_had_claimed_is_taken_over_when_its_lease_ends(
    world: World, interval: float
) -> None:
    world.write("a")
    assert len(world.new_due().claim(DYING).stubs) == 1
    stopped = UntilSent(world, 105.3)
    times: list[float] = []
    world.broker.on_send = lambda _names: times.append(stopped.now)

    run_forever(world.scheduler, stopped, interval=interval, clock=lambda: stopped.now)

    assert times == [pytest.approx(165.0, abs=SOON_SECONDS)]


def test_a_delayed_message_is_passed_when_the_group_has_caught_up() -> None:
    stub = Stub(
        seq=1,
        message_id="a",
        topic="orders",
        content=b"x",
        deliver_time=50.0,
        position=Position("broker-a", 1, 900),  # a place in the broker's delay topic
    )

    assert has_passed(stub, {QUEUE: (3, 4)}) is False
    assert has_passed(stub, {QUEUE: (4, 4)}) is True
    assert has_passed(stub, None) is None


def test_what_was_given_up_is_sent_no_more_and_says_how_often_it_was_sent(world: World) -> None:
    # Given a dead letter of a message that was sent once, of three times
    stub = world.sent("a")
    with world.database.engine.begin() as connection:
        settlement = settlement_of(world.database)
        settlement.exhaust(connection, stub, group="g", reason="no", now=105.0)
    world.broker.progress["g"] = {QUEUE: (9, 9)}

    # When the scheduler runs, Then nothing is sent, until a person says so
    assert world.scheduler.run_once(105.0) == ResendCounts()
    assert world.row(stub)["count"] == 1
    with world.database.engine.begin() as connection:
        assert world.hands.retry(connection, [stub], "ann", "fixed", 106.0) == {stub: True}
    assert world.scheduler.run_once(106.0).sent == 1


def test_what_is_given_up_while_a_scheduler_looks_at_it_is_neither_sent_nor_looked_at_again(
    world: World,
) -> None:
    # Given two that are due, one lost and one in a backlog, and consumer groups that make dead
    # letters of both while the scheduler asks the broker how far they have come
    stubs = [world.sent("lost", groups=("g",)), world.sent("waits", groups=("h",))]

    def give_up(*_asked: str) -> None:
        world.broker.on_asked = None
        for stub, group in zip(stubs, ("g", "h"), strict=True):
            with world.database.engine.begin() as connection:
                settlement = settlement_of(world.database)
                settlement.exhaust(connection, stub, group=group, reason="no", now=105.0)

    world.broker.on_asked = give_up
    world.broker.progress = {"g": {QUEUE: (9, 9)}, "h": {QUEUE: (0, 9)}}

    # When it goes on, Then nothing is sent, and both wait for a person and for nothing else
    assert world.scheduler.run_once(105.0).sent == 0
    assert world.broker.sent == []
    assert [world.row(stub)["resend_time"] for stub in stubs] == [None, None]
    told = [("dead letter", "lost"), ("dead letter", "waits")]
    assert world.open_escalations() == told
    assert world.scheduler.run_once(9_999.0) == ResendCounts()
    assert world.new_due().agenda() == []


MOMENTS = ("deliver_time", "create_date", "update_date", "resend_time", "lease_until")
BYTES = "x'ff01'"
LATIN = "CAST(x'6dfc6c6c' AS TEXT)"  # SQLite takes whatever it is told to be text
DAMAGES: dict[str, dict[str, tuple[str, ...]]] = {
    "sqlite": {
        **dict.fromkeys(MOMENTS, ("'soon'", BYTES, LATIN)),
        **dict.fromkeys(("status", "count", "given_up"), ("'odd'", BYTES, LATIN)),
        **dict.fromkeys(("queue_id", "offset", "broker_name"), ("'odd'", BYTES, "7", LATIN)),
        **dict.fromkeys(("topic", "tag", "message_key", "ordering_key"), (BYTES, LATIN)),
        **dict.fromkeys(("content_type", "required_groups", "note", "owner"), (BYTES, LATIN)),
        **dict.fromkeys(("given_up_by", "message_id"), (LATIN,)),
        "content": ("'odd'", "7", LATIN),
        "properties": ("'odd'", BYTES, LATIN),
    },
    "postgresql": {
        **dict.fromkeys(MOMENTS, ("'infinity'", "'-infinity'", "'0044-03-15 BC'", "'20000-01-01'")),
        "broker_name": ("'odd'",),
        "properties": ("'odd'",),
    },
    "mysql": {"broker_name": ("'odd'",), "properties": ("'odd'",)},
}
"""What somebody may have written to a row, by database and column."""
NEVER_SENT = ("deliver_time", "create_date", "content", "properties")


@pytest.mark.parametrize("kind", ["unsent", "sent"])
def test_whatever_somebody_wrote_to_a_row_nothing_but_its_key_waits(
    world: World, kind: str
) -> None:
    """Given rows with an odd value each, all else of their topic and of others is sent; what cannot
    be sent for what it says runs out of tries, and a person is told.
    """
    world.broker.progress["g"] = {QUEUE: (9, 9)}
    writing, told = world.write if kind == "unsent" else world.sent, set()
    damages = DAMAGES[world.database.dialect]
    for column, number in [(c, n) for c, values in damages.items() for n in range(len(values))]:
        name = f"{column}{number}x"
        odd = writing(name, key=name)
        quoted = world.database.engine.dialect.identifier_preparer.quote(column)
        change = f"UPDATE rmq_message_stub SET {quoted} = {damages[column][number]}"
        with world.database.engine.begin() as connection:
            connection.execute(text(f"{change} WHERE message_id = :id"), {"id": odd})
        told |= {("sends used up", name)} if column in NEVER_SENT else set()
    world.write("free", groups=())
    world.write("other", groups=(), topic="invoices")

    for now in range(105, 205, 10):
        world.scheduler.run_once(float(now))

    assert {"free", "other"} <= set(world.broker.sent)
    assert told <= set(world.open_escalations())
    assert {name for _, name in told}.isdisjoint(world.broker.sent)


@pytest.mark.parametrize("value", ["infinity", "-infinity"])
def test_a_consume_log_whose_lease_does_not_read_stops_nothing(world: World, value: str) -> None:
    if world.database.dialect == "mysql":
        pytest.skip("it takes no moments that do not read")
    odd = world.sent("odd")
    world.log(odd, state=0)
    with world.database.engine.begin() as connection:
        connection.execute(text(f"UPDATE rmq_consume_log SET lease_until = '{value}'"))
    world.sent("lost")
    world.broker.progress["g"] = {QUEUE: (9, 9)}

    world.scheduler.run_once(105.0)

    assert "lost" in world.broker.sent


@pytest.mark.parametrize("properties", ["{", "[]", '{"region": 1}', ""])
def test_a_row_that_somebody_wrote_to_stops_its_key_alone_and_a_person_is_told(
    world: World, properties: str
) -> None:
    odd = world.write("k1", key="k")
    world.write("k2", key="k")
    world.write("free")
    table = world.database.stubs
    with world.database.engine.begin() as connection:
        connection.execute(
            update(table).where(table.c.message_id == odd).values(properties=properties)
        )

    for now in range(105, 200):
        world.scheduler.run_once(float(now))

    assert world.broker.sent == ["free"]  # k2 waits for what the person decides
    assert world.open_escalations() == [("sends used up", "k1")]
    assert "the column properties" in world.row(odd)["note"]
