"""The ten questions of docs/how-to/console.md, answered by somebody who has never seen the console.

They read pages, and use links, fields and buttons by their words. The shop is at a real broker.
Each answer takes at most `STEPS_MAX` steps.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import select
from tests.console.conftest import visitor
from tests.console.person import STEPS_MAX, Person
from tests.console.planted_rows import NOW, insert_rows, message_id, run, stub
from tests.console.test_dead_letter_deeds import copies, give_up
from tests.postgres_databases import new_database
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.console import console_app
from reliable_mq.database.row_values import LogState
from reliable_mq.escalate.sql_operator_actions import OperatorActions
from reliable_mq.outbox.stub import StubEvent
from reliable_mq.testing.local_servers import LocalPostgres

pytestmark = pytest.mark.processes
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "console.md"
WHY = "the bank was away yesterday"


def shop_of(url: str, broker: str, groups: str) -> ReliableMQ:
    """Return the shop: an order is paid, gets points, and is announced by mail."""
    mq = ReliableMQ("shop", database=url, broker=broker)
    mq.topic("orders", groups=["payments", "points", "mails"])
    for group in groups.split():

        @mq.consumer("orders", group=group)
        def handle(_order: dict[str, Any]) -> None: ...

    return mq


@dataclass
class Story:
    """What has happened in the shop."""

    mq: ReliableMQ
    broker: str
    ids: dict[str, str] = field(default_factory=dict)

    def order(self, number: int) -> str:
        """Place an order; return the id of its message."""
        with self.mq.transaction() as tx:
            return tx.send("orders", {"order": number}, key=number)

    def has_consumed(self, group: str, wanted: str) -> bool:
        log = self.mq.database.logs.c
        rows = select(log.state).where(log.message_id == wanted, log.consumer_group == group)
        with self.mq.database.engine.connect() as connection:
            return connection.execute(rows).scalar() == LogState.CONSUMED.value


@pytest.fixture(scope="module")
def story(
    postgres_server: LocalPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Story]:
    """Give a shop after a day with faults: nobody gives points, and dead letters wait."""
    folder = tmp_path_factory.mktemp("broker")
    with new_database(postgres_server) as url, ReliableMQBroker(folder, "ASYNC_FLUSH") as running:
        broker = running.name_server_address
        whole = Story(shop_of(url, broker, "payments points mails"), broker)
        whole.mq.create_tables()
        with whole.mq:
            paid = whole.order(4711)
            until(lambda: all(whole.has_consumed(each, paid) for each in ("payments", "points")))
        told = Story(shop_of(url, broker, "payments mails"), broker, {"paid": paid})
        with told.mq:
            late = told.order(4712)  # nobody gives points for it
            until(lambda: told.has_consumed("payments", late))
            _plant(told)
            yield told


def _plant(story: Story) -> None:
    """Plant what takes long to happen: a stub that waits for a person, dead letters, a run."""
    parked = stub(1, message_id=message_id(700), message_key="order-parked", resend_time=None)
    parked |= {"count": 16, "note": "the broker refused it: the topic is closed"}
    voided = stub(2, message_id=message_id(701), message_key="order-cancelled")
    insert_rows(story.mq.database, "message_stub", parked, voided)
    actions = OperatorActions(
        story.mq.database, StubEvent.VOID, actor="vera", why="cancelled by phone"
    )
    list(actions.change_ids([str(voided["message_id"])]))
    story.ids |= {"parked": str(parked["message_id"]), "voided": str(voided["message_id"])}
    for name, group in (("mail 1", "mails"), ("mail 2", "mails"), ("poison", "payments")):
        body = b'{"order": 4713, "amount": "ten"}'
        story.ids[name] = give_up(story.broker, group, body, "ValueError: the bank is away")
    given_up = stub(3, message_id=story.ids["poison"], resend_time=None, message_key="o-1")
    insert_rows(story.mq.database, "message_stub", given_up | {"required_groups": "payments"})
    finding: dict[str, Any] = {
        "message_id": story.ids["parked"],
        "topic": "orders",
        "consumer_group": "payments",
    }
    finding |= {"run_id": "night", "verdict": "not sent", "create_date": NOW}
    finding |= {"evidence": '{"sentence": "the stub was never stored by a broker"}'}
    insert_rows(story.mq.database, "reconcile_finding", finding)
    insert_rows(story.mq.database, "reconcile_run", run(run_id="night", findings=1, is_clean=False))


@pytest.fixture
def person(story: Story) -> Iterator[Person]:
    """Give somebody at the console, and check that no answer took them long."""
    with visitor(console_app(story.mq)) as client:
        asking = Person(client)
        until(lambda: _is_read(asking))
        yield asking
    assert 0 < asking.steps <= STEPS_MAX


def _is_read(person: Person) -> bool:
    """Whether the overview has heard of all sources since the console was started."""
    person.looks_again()
    return "never read" not in person.page.words and "Not known" not in person.page.words


def done(person: Person, button: str) -> None:
    """Go on from a preview to the end of the work."""
    person.writes("Reason, for the audit", WHY)
    person.presses(button)
    until(lambda: _has_ended(person))


def _has_ended(person: Person) -> bool:
    person.looks_again()
    return "ended: " in person.page.words


def test_is_anything_wrong_now(person: Person) -> None:
    person.sees("Act now", "Dead letters", "Lag of groups")
    person.follows("Dead letters")
    person.sees("ValueError: the bank is away")


def test_was_order_4711_paid_and_when(person: Person, story: Story) -> None:
    person.writes("Find a message, a topic or a group", "4711")
    person.presses("Find")
    person.sees(story.ids["paid"], "payments consumed", "effect committed")
    assert person.found(r"effect committed.*?(\d\d:\d\d:\d\d)")


def test_why_is_group_points_behind(person: Person) -> None:
    person.follows("points")
    person.sees("No member of this group is connected: no worker consumes for it.")


def test_which_stubs_wait_for_a_person_and_why(person: Person, story: Story) -> None:
    person.follows("Stubs")
    person.chooses("Waits for a person")
    person.presses("Filter")
    person.sees(story.ids["parked"], "the broker refused it: the topic is closed")


def test_send_all_dead_letters_of_yesterdays_outage_again(person: Person, story: Story) -> None:
    person.follows("Dead letters")
    person.writes("Consumer group", "mails")
    person.writes("Since", "-24h")
    person.presses("Filter")
    person.chooses("all that this filter matches, on all pages")
    person.presses("Deliver dead letters again…")
    person.sees("2 of topic orders, group mails", "What could happen twice")
    done(person, "Deliver dead letters again: 2")
    person.sees("ended: 2 of 2 (100 %)")
    letters = [story.ids["mail 1"], story.ids["mail 2"]]
    until(lambda: [copies(story.broker, "mails", each) for each in letters] == [1, 1])


def test_what_is_in_this_dead_letter_and_a_corrected_copy(person: Person, story: Story) -> None:
    letter = story.ids["poison"]
    person.follows("Dead letters")
    person.follows(f"Change and send a copy of {letter}")
    person.sees('{"order": 4713, "amount": "ten"}')
    person.writes("Payload", '{"order": 4713, "amount": 10}')
    person.presses("Send a changed copy…")
    person.sees("with a changed payload", "Every group that reads the topic gets the copy.")
    done(person, "Send a changed copy: 1")
    person.sees("ended: 1 of 1", "the copy is message")


def test_skip_this_poisonous_message(person: Person, story: Story) -> None:
    person.follows("Dead letters")
    person.chooses(f"Mark payments {story.ids['poison']}")
    person.presses("Void their stubs…")
    person.sees("1 of topic orders")
    done(person, "Void their stubs: 1")
    person.sees("ended: 1 of 1")


def test_who_voided_this_stub_and_why(person: Person, story: Story) -> None:
    person.writes("Find a message, a topic or a group", story.ids["voided"])
    person.presses("Find")
    person.sees("vera", "cancelled by phone")
    person.follows("Audit")
    person.sees(story.ids["voided"], "vera")


def test_replay_group_points_from_a_time(person: Person) -> None:
    person.follows("points")
    person.writes("Read again from", "-1h")
    person.presses("Reset its offsets…")
    person.sees("messages come again", "What could happen twice")
    done(person, "Reset its offsets: 1")
    person.sees("ended: 1 of 1")


def test_what_did_the_last_reconciliation_find_and_what_proves_it(
    person: Person, story: Story
) -> None:
    person.follows("Reconciliation")
    person.follows("night")
    person.sees("not sent", "the stub was never stored by a broker")
    person.follows(story.ids["parked"])
    person.sees("What reconciliation found", "the stub was never stored by a broker")


def test_the_page_asks_these_questions() -> None:
    """A question that nobody plays could go out of date, and one that is not asked helps nobody."""
    _, _, after = PAGE.read_text().partition("## Ten questions")
    asked = re.findall(r"(?m)^\| (?!you ask|---)(.+?) \|", after.partition("\n## ")[0])
    played = [name for name in globals() if name.startswith("test_") and "these" not in name]
    assert len(asked) == len(played) == 10
