"""What other databases' groups tell of stubs: written once, in any order, whatever it says."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from sqlalchemy import select
from tests.resend.worlds import QUEUE, World

from reliable_mq.confirm.notice import Notice
from reliable_mq.confirm.sql_confirmation import confirmation_of
from reliable_mq.confirm.sql_notices import SqlNoticeBook
from reliable_mq.escalate.sql_settlement import settlement_of

BOTH = ("g", "h")


class Desk:
    """A world of stubs that gets notices."""

    def __init__(self, url: str) -> None:
        self.world = World(url)
        database = self.world.database
        self.book = SqlNoticeBook(
            database.stubs,
            confirmation_of(database),
            settlement_of(database).exhaust,
            database.dialect,
        )

    def tell(self, group: str = "g", now: float = 200.0, **what: Any) -> None:
        with self.world.database.engine.begin() as connection:
            self.book.apply(connection, Notice(group=group, **what), now)

    def told(self) -> dict[tuple[str, str], int]:
        table = self.world.database.confirmations
        with self.world.database.engine.begin() as connection:
            return {
                (row.message_id, row.consumer_group): row.state
                for row in connection.execute(select(table))
            }

    def status(self, message_id: str) -> int:
        return int(self.world.row(message_id)["status"])


@pytest.fixture
def desk(database_url: str) -> Iterator[Desk]:
    made = Desk(database_url)
    yield made
    made.world.database.close()


def test_a_stub_is_confirmed_when_its_last_group_has_told(desk: Desk) -> None:
    stub = desk.world.sent("a", groups=BOTH)

    desk.tell("g", consumed=(stub,))
    assert desk.status(stub) == 0
    desk.tell("g", consumed=(stub,))  # twice, as notices come
    assert desk.status(stub) == 0
    desk.tell("h", consumed=(stub,))

    assert desk.status(stub) == 1
    assert desk.told() == {(stub, "g"): 1, (stub, "h"): 1}


@pytest.mark.parametrize("here_first", [True, False])
def test_a_group_of_this_database_and_one_of_another_complete_a_stub_in_either_order(
    desk: Desk, here_first: bool
) -> None:
    stub = desk.world.sent("a", groups=BOTH)
    database = desk.world.database

    def consume_here() -> None:
        desk.world.log(stub, group="h")
        with database.engine.begin() as connection:
            confirmation_of(database).confirm(connection, "h", [stub], 200.0)

    if here_first:
        consume_here()
    desk.tell("g", consumed=(stub,))
    if not here_first:
        assert desk.status(stub) == 0
        consume_here()

    assert desk.status(stub) == 1


def test_a_group_that_moved_to_another_database_counts_once(desk: Desk) -> None:
    stub = desk.world.sent("a", groups=BOTH)
    desk.world.log(stub, group="g")

    desk.tell("g", consumed=(stub,))

    assert desk.status(stub) == 0  # of two groups, one


def test_what_is_consumed_is_never_taken_back_by_an_older_notice(desk: Desk) -> None:
    stub = desk.world.sent("a", groups=BOTH)

    desk.tell("g", consumed=(stub,))
    desk.tell("g", failed={stub: 60.0})
    desk.tell("g", given_up={stub: "too late to be true"})

    assert desk.told() == {(stub, "g"): 1}
    assert not desk.world.row(stub)["given_up"]
    desk.tell("h", consumed=(stub,))
    assert desk.status(stub) == 1


def test_a_message_that_a_group_tries_again_later_is_not_resent_before(desk: Desk) -> None:
    stub = desk.world.sent("a")
    desk.world.broker.progress["g"] = {QUEUE: (6, 6)}

    desk.tell("g", now=100.0, failed={stub: 60.0})
    assert desk.world.scheduler.run_once(110.0).sent == 0
    desk.tell("g", now=161.0, failed={stub: 5.0})
    assert desk.world.scheduler.run_once(163.0).sent == 0

    assert desk.world.scheduler.run_once(170.0).sent == 1


def test_a_message_given_up_elsewhere_is_told_to_a_person_and_no_longer_sent(desk: Desk) -> None:
    stub = desk.world.sent("a")

    desk.tell("g", now=106.0, given_up={stub: "attempt 16 of 16 failed"})
    counts = desk.world.scheduler.run_once(107.0)

    assert counts.claimed == 0
    assert desk.world.open_escalations() == [("dead letter", "a")]
    assert desk.world.row(stub)["note"] == "dead letter of g: attempt 16 of 16 failed"
    desk.tell("g", consumed=(stub,))  # by hand, from the dead letters
    assert desk.status(stub) == 1


def test_a_used_up_stub_that_was_consumed_elsewhere_escalates_nobody(desk: Desk) -> None:
    stub = desk.world.sent("a")
    desk.world.change(stub, count=3)
    desk.tell("g", consumed=(stub,))
    desk.world.change(stub, status=0, resend_time=desk.world.row(stub)["create_date"])

    counts = desk.world.scheduler.run_once(300.0)

    assert (counts.escalated, counts.confirmed) == (0, 1)


def test_ids_without_a_stub_that_waits_for_the_group_change_nothing(desk: Desk) -> None:
    stub = desk.world.sent("a", groups=("h",))

    desk.tell("g", consumed=(stub, "F" * 32), given_up={"E" * 32: "forged"})

    assert desk.told() == {}
    assert desk.status(stub) == 0


def test_two_groups_that_tell_at_the_same_moment_do_not_miss_each_other(postgres_url: str) -> None:
    desk = Desk(postgres_url)
    names = [desk.world.sent(f"{number:02d}", groups=BOTH) for number in range(40)]

    def tell(group: str) -> None:
        for name in names:
            desk.tell(group, consumed=(name,))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(tell, BOTH))

    assert {desk.status(name) for name in names} == {1}
    desk.world.database.close()


def test_while_notices_are_unread_nothing_counts_as_missed(desk: Desk) -> None:
    """Else a scheduler that was down for an hour would resend an hour's messages at its start."""
    world, topic = desk.world, "rmq_notices_0123456789abcdef"
    stub = world.sent("a")
    scheduler = world.new_scheduler("reading", notice_topic=lambda: topic)
    world.broker.progress |= {"g": {QUEUE: (6, 6)}, topic: {QUEUE: (-1, 3)}}

    assert scheduler.run_once(110.0).rested == 1
    world.broker.progress[topic] = {QUEUE: (2, 7)}
    assert scheduler.run_once(120.0).rested == 1
    world.broker.unasked = ConnectionError("away")
    assert scheduler.run_once(130.0).rested == 1
    world.broker.unasked = None
    world.broker.progress[topic] = {QUEUE: (3, 9)}  # new ones come all the time

    assert scheduler.run_once(140.0).sent == 1
    assert world.broker.messages[0].properties["CONFIRM_TO"] == f"{topic}:g"
    assert world.row(stub)["count"] == 2


def test_notices_that_the_broker_has_lost_hold_no_resend_up(desk: Desk) -> None:
    """After an older copy of its store was restored, the topic ends before the first look's end."""
    world, topic = desk.world, "rmq_notices_0123456789abcdef"
    world.sent("a")
    scheduler = world.new_scheduler("reading", notice_topic=lambda: topic)
    world.broker.progress |= {"g": {QUEUE: (6, 6)}, topic: {QUEUE: (50, 60)}}
    assert scheduler.run_once(110.0).rested == 1

    world.broker.progress[topic] = {QUEUE: (40, 41)}
    assert scheduler.run_once(120.0).rested == 1
    world.broker.progress[topic] = {QUEUE: (41, 41)}

    assert scheduler.run_once(130.0).sent == 1


def test_notices_that_nobody_reads_hold_a_resend_up_for_a_day_at_most(desk: Desk) -> None:
    world, topic = desk.world, "rmq_notices_0123456789abcdef"
    world.sent("a")
    scheduler = world.new_scheduler("reading", notice_topic=lambda: topic)
    world.broker.progress |= {"g": {QUEUE: (6, 6)}, topic: {QUEUE: (0, 1)}}

    assert scheduler.run_once(110.0).sent == 0
    assert scheduler.run_once(100.0 + 86_400.0).sent == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"consumed": ["A"]}',
        b'{"group": "", "consumed": ["A"]}',
        b'{"group": "g", "consumed": [""]}',
        b'{"group": "g", "consumed": ["' + b"A" * 33 + b'"]}',
        b'{"group": "g", "failed": {"A": -1}}',
        b'{"group": "g", "failed": {"A": 1e99}}',
        b'{"group": "g", "given_up": {"A": 5}}',
    ],
)
def test_a_notice_that_does_not_read_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        msgspec.json.decode(body, type=Notice)


def test_a_resend_tells_who_has_consumed_the_message_already(desk: Desk) -> None:
    stub = desk.world.sent("a", groups=BOTH)
    desk.world.broker.progress |= {"g": {QUEUE: (6, 6)}, "h": {QUEUE: (6, 6)}}
    desk.tell("g", consumed=(stub,))
    desk.tell("h", failed={stub: 0.0})

    assert desk.world.scheduler.run_once(300.0).sent == 1

    assert desk.world.broker.messages[0].properties["CONSUMED_BY"] == "100:g"
