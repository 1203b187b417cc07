"""What is sent again is a scheduler's: a relay knows neither pauses nor who has consumed what."""

from tests.resend.worlds import World

from reliable_mq.confirm.notice import Notice
from reliable_mq.confirm.sql_confirmation import confirmation_of
from reliable_mq.confirm.sql_notices import SqlNoticeBook
from reliable_mq.escalate.sql_settlement import settlement_of
from reliable_mq.message import CONSUMED_BY, RESENT
from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.sql_unowned import SqlUnowned

NOTICES = "rmq_notices_0123456789abcdef"


def relay_once(world: World, now: float) -> list[str]:
    """Let a shared relay look once; return what it has sent."""
    before = len(world.broker.sent)
    relay = Relay(world.stubs, world.broker, lambda _n, at, _d: at + 10, owner="relay-s", lease=5.0)
    relay.accept(SqlUnowned(world.stubs, owner="relay-s", lease=5.0).claim(now, 10), now)
    relay.run_once(now)
    return world.broker.sent[before:]


def retry(world: World, stub: str) -> None:
    with world.database.engine.begin() as connection:
        assert world.hands.retry(connection, [stub], "ann", "the bank is back", 200.0) == {
            stub: True
        }


def consumed_elsewhere(world: World, stub: str, group: str) -> None:
    database = world.database
    book = SqlNoticeBook(
        database.stubs, confirmation_of(database), settlement_of(database).exhaust, database.dialect
    )
    with database.engine.begin() as connection:
        book.apply(connection, Notice(group=group, consumed=(stub,)), 110.0)


def test_what_no_relay_owns_and_nobody_has_missed_a_relay_sends(world: World) -> None:
    stub = world.write("a")
    world.change(stub, owner=None, lease_until=None)

    assert relay_once(world, 101.0) == ["a"]


def test_what_a_person_wants_sent_again_says_so_and_who_has_consumed_it(world: World) -> None:
    stub = world.sent("a", groups=("g", "h"))
    consumed_elsewhere(world, stub, "h")
    world.change(stub, resend_time=None, count=3)

    retry(world, stub)

    assert relay_once(world, 200.0) == []
    scheduler = world.new_scheduler("two", notice_topic=lambda: NOTICES)
    assert scheduler.run_once(200.0).sent == 1
    (message,) = world.broker.messages
    assert message.properties[RESENT] == "true"
    assert message.properties[CONSUMED_BY] == "100:h"


def test_what_a_person_wants_sent_again_waits_for_the_end_of_its_topics_pause(
    world: World,
) -> None:
    stub = world.sent("a")
    world.topics.pause("orders", None, "ann", "", 150.0)
    retry(world, stub)

    assert (relay_once(world, 200.0), world.scheduler.run_once(200.0).sent) == ([], 0)
    world.topics.resume("orders", "ann", "", 300.0)
    assert (relay_once(world, 300.0), world.scheduler.run_once(300.0).sent) == ([], 1)


def test_what_a_scheduler_has_taken_over_and_not_sent_stays_the_schedulers(world: World) -> None:
    refused, behind = (world.write(name, key="k") for name in ("a", "b"))
    for stub in (refused, behind):
        world.change(stub, owner=None, lease_until=None)
    world.broker.refused = {"a"}
    world.scheduler.run_once(105.0)
    assert world.row(behind)["count"] == 0  # it was not tried
    with world.database.engine.begin() as connection:
        world.hands.void(connection, [refused], "ann", "", 106.0)

    assert relay_once(world, 106.0) == []
    assert world.scheduler.run_once(106.0).sent == 1
    assert world.broker.sent == ["b"]
