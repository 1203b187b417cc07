"""A person lets one group skip a message: its handler is called no more, and all ledgers agree."""

import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import MetaData, delete, select, text, update
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Session
from tests.console.planted_rows import ODD, insert_rows, log, message_id, stub

from reliable_mq import ReceivedMessage, Reject, ReliableMQ
from reliable_mq.cli.found_messages import history_of
from reliable_mq.cli.message_standing import standing
from reliable_mq.confirm.sql_confirmation import SqlConfirmation
from reliable_mq.console.stations import Reached, group_stories, stations
from reliable_mq.database.row_values import LogState, StubStatus, is_skipped
from reliable_mq.database.sql_consume_log_table import consume_log_table
from reliable_mq.errors import UsageError
from reliable_mq.escalate.sql_audit import SqlAudit
from reliable_mq.escalate.sql_history import readable
from reliable_mq.escalate.sql_operator_actions import OperatorActions
from reliable_mq.escalate.sql_skip_actions import SkipActions
from reliable_mq.escalate.sql_skips import SkipCase, SqlSkips
from reliable_mq.escalate.timeline import timeline
from reliable_mq.outbox.stub import StubEvent
from reliable_mq.testing.message_world import MessageWorld


class Poisoned:
    """An application whose group `payments` cannot handle its first message."""

    def __init__(self, url: str, **options: Any) -> None:
        self.mq = mq = ReliableMQ("shop", database=url)
        mq.create_tables()
        with mq.database.engine.begin() as connection:
            connection.execute(text("CREATE TABLE paid (id VARCHAR(40))"))
        self.calls: list[str] = []
        self.poison: Callable[[ReceivedMessage], None] = self.fail
        self.first = ""

        @mq.consumer("orders", group="payments", **options)
        def pay(order: dict[str, str], session: Session, message: ReceivedMessage) -> None:
            self.calls.append(order["id"])
            if order["id"] == "poison":
                self.poison(message)
            session.execute(text("INSERT INTO paid VALUES (:id)"), {"id": order["id"]})

        @mq.consumer("orders", group="mail")
        def send_mail(_order: dict[str, str]) -> None: ...

    def fail(self, _message: ReceivedMessage) -> None:
        raise ValueError("no such customer")

    def place(self, *orders: str, ordering_key: str = "") -> str:
        with self.mq.transaction() as tx:
            ids = [tx.send("orders", {"id": each}, ordering_key=ordering_key) for each in orders]
        self.first = ids[0]
        return ids[0]

    def skip(self, group: str = "payments", why: str = "refunded") -> str:
        """Let a group skip the first message; return why it does not, "" if it does."""
        actions = SkipActions(self.mq.databases, group, actor="ada", why=why)
        (done,) = actions.skip([self.first])
        return done[self.first]

    def case(self, group: str = "payments") -> SkipCase:
        return SkipActions(self.mq.databases, group).views([self.first])[self.first].case

    def log(self) -> Any:
        log = self.mq.database.logs
        wanted = select(log).where(
            log.c.message_id == self.first, log.c.consumer_group == "payments"
        )
        with self.mq.database.engine.connect() as connection:
            row = connection.execute(wanted).one_or_none()
        return None if row is None else row._mapping

    def stub(self) -> Any:
        stub = self.mq.database.stubs
        with self.mq.database.engine.connect() as connection:
            wanted = select(stub).where(stub.c.message_id == self.first)
            return connection.execute(wanted).one()._mapping

    def paid(self) -> list[str]:
        with self.mq.database.engine.connect() as connection:
            return list(connection.execute(text("SELECT id FROM paid ORDER BY id")).scalars())

    def acts(self) -> list[tuple[str, str, int]]:
        act = self.mq.database.audit.c
        with self.mq.database.engine.connect() as connection:
            rows = connection.execute(select(act.actor, act.action, act.changed).order_by(act.seq))
            return [(row.actor, row.action, row.changed) for row in rows]


@pytest.fixture
def shop(database_url: str) -> Iterator[Poisoned]:
    made = Poisoned(database_url)
    yield made
    made.mq.close()


@pytest.mark.parametrize("redis", [True, False])
def test_the_next_delivery_is_acknowledged_and_the_handler_is_not_called(
    shop: Poisoned, redis: bool
) -> None:
    with MessageWorld(shop.mq, redis=redis) as world:
        shop.place("poison")
        world.deliver()
        assert shop.calls == ["poison"]
        assert shop.case() is SkipCase.OPEN
        assert shop.skip() == ""
        world.advance(hours=3)
        assert shop.calls == ["poison"]
        assert not world.dead_letters("payments")
        world.faults.duplicate("orders", times=2)
        world.advance(hours=3)
        assert shop.calls == ["poison"]

    assert shop.paid() == []
    assert StubStatus(shop.stub()["status"]) is StubStatus.CONFIRMED
    row = shop.log()
    assert is_skipped(row)
    assert (row["state"], row["owner"], row["lease_until"]) == (LogState.CONSUMED, None, None)
    assert row["note"] == "skipped by ada: refunded"
    assert shop.acts() == [("ada", "stub skip", 1)]


def test_the_next_message_of_its_ordering_key_goes_on(shop: Poisoned) -> None:
    with MessageWorld(shop.mq) as world:
        shop.place("poison", "second", "third", ordering_key="customer-1")
        world.deliver()
        assert shop.calls == ["poison"]
        assert shop.skip() == ""
        world.advance(hours=1)
    assert shop.calls == ["poison", "second", "third"]
    assert shop.paid() == ["second", "third"]


def test_a_handler_that_runs_right_now_is_rolled_back(shop: Poisoned) -> None:
    told: list[Any] = []

    def skipped_meanwhile(_message: ReceivedMessage) -> None:
        if len(shop.calls) == 1:
            raise ValueError("not yet")
        told.append((shop.case(), shop.skip()))

    shop.poison = skipped_meanwhile
    with MessageWorld(shop.mq) as world:
        shop.place("poison")
        world.deliver()
        world.advance(hours=3)
    assert told == [(SkipCase.RUNNING, "")]
    assert shop.calls == ["poison", "poison"]
    assert shop.paid() == []
    row = shop.log()
    assert is_skipped(row)
    assert row["in_doubt"]  # what it did outside of the database is unknown
    assert StubStatus(shop.stub()["status"]) is StubStatus.CONFIRMED


def test_a_handler_that_fails_after_the_skip_leaves_it(shop: Poisoned) -> None:
    def skipped_and_failed(message: ReceivedMessage) -> None:
        if len(shop.calls) == 2:
            assert shop.skip() == ""
            raise Reject("never")
        self_fails(message)

    self_fails = shop.fail
    shop.poison = skipped_and_failed
    with MessageWorld(shop.mq) as world:
        shop.place("poison")
        world.deliver()
        world.advance(hours=9)
        assert not world.dead_letters("payments")
    assert len(shop.calls) == 2
    assert is_skipped(shop.log())


def test_another_group_is_still_waited_for(shop: Poisoned) -> None:
    with MessageWorld(shop.mq) as world:
        shop.place("poison")
        world.deliver()
        with shop.mq.database.engine.begin() as connection:  # as if mail had not consumed it yet
            log = shop.mq.database.logs
            connection.execute(
                update(log)
                .where(log.c.consumer_group == "mail")
                .values(state=0, owner=None, consume_date=None)
            )
        assert shop.skip() == ""
        assert StubStatus(shop.stub()["status"]) is StubStatus.UNCONFIRMED
        world.settle()
    assert StubStatus(shop.stub()["status"]) is StubStatus.CONFIRMED
    assert shop.calls == ["poison"]


def test_what_cannot_be_skipped_is_told_and_left(shop: Poisoned) -> None:
    with MessageWorld(shop.mq) as world:
        shop.place("poison")
        assert shop.skip() == "payments has not received it, or has no row of it"
        world.deliver()
        assert shop.skip("mail").startswith("mail has consumed it already, at ")
        assert shop.skip() == ""
        again = shop.skip(why="once more")
        assert again.startswith("it is skipped by ada: refunded already, at ")
        world.advance(hours=1)
    assert [changed for _, _, changed in shop.acts()] == [0, 0, 1, 0]
    assert shop.log()["note"] == "skipped by ada: refunded"


def test_a_dead_letter_is_told_and_left(shop: Poisoned) -> None:
    with MessageWorld(shop.mq) as world:
        shop.poison = lambda _: (_ for _ in ()).throw(Reject("never"))
        shop.place("poison")
        world.deliver()
        assert world.dead_letters("payments")
        assert shop.skip().startswith("it is a dead letter of payments")
        assert not is_skipped(shop.log())


def test_a_part_is_committed_before_it_is_told(shop: Poisoned) -> None:
    """Given work that is cancelled after its first part."""
    with MessageWorld(shop.mq) as world:
        shop.place("poison")
        world.deliver()
    parts = SkipActions(shop.mq.databases, "payments", actor="ada", why="").skip([shop.first])
    assert next(parts) == {shop.first: ""}
    assert is_skipped(shop.log())  # another connection reads it
    parts.close()  # type: ignore[attr-defined]


def test_a_row_of_a_business_key_that_names_its_own_message_is_no_skip(database_url: str) -> None:
    """Given a row that somebody has deleted, so that its business key says who had the effect."""
    mq = ReliableMQ("shop", database=database_url)
    mq.create_tables()

    @mq.consumer("orders", group="payments", idempotent_by="id")
    def pay(_order: dict[str, str]) -> None: ...

    with MessageWorld(mq) as world:
        with mq.transaction() as tx:
            sent = tx.send("orders", {"id": "7"})
        world.deliver()
        with mq.database.engine.begin() as connection:
            connection.execute(delete(mq.database.logs))
            connection.execute(update(mq.database.stubs).values(status=2))
        actions = OperatorActions(mq.database, StubEvent.RETRY, actor="ada", why="")
        assert list(actions.change_ids([sent])) == [{sent: True}]
        world.settle()
        history = history_of(mq.databases.values(), sent)
        (row,) = history.logs
        assert row["duplicate_of"] == sent
        assert standing(sent, history).text == "settled: consumed by payments"
        says = SkipActions(mq.databases, "payments").views([sent])[sent].says
        assert says.startswith("payments has consumed it already")
    mq.close()


def test_mysql_computes_the_doubt_before_the_owner_is_gone() -> None:
    """MySQL computes the values of an update from left to right; each sees those before it."""
    skips = SqlSkips(consume_log_table(MetaData()), Mock(SqlConfirmation), Mock(SqlAudit), "mysql")
    said = str(skips._skip.compile(dialect=mysql.dialect()))
    assert said.index("owner IS NOT NULL") < said.index("owner=NULL")


def test_a_group_that_nobody_knows_is_told(shop: Poisoned) -> None:
    with MessageWorld(shop.mq) as world:
        shop.place("poison")
        world.deliver()
    known = frozenset({"payments", "mail", "new"})
    SkipActions(shop.mq.databases, "payments").check_group(known)
    for group, says in (("paymnts", "there is no group paymnts"), ("new", "has no row")):
        with pytest.raises(UsageError, match=says):
            SkipActions(shop.mq.databases, group).check_group(known)
    with pytest.raises(UsageError, match="has no row in the consume logs of main"):
        SkipActions(shop.mq.databases, "paymnts").check_group()


def test_of_two_people_at_once_one_does_it_and_the_other_is_told(shop: Poisoned) -> None:
    with MessageWorld(shop.mq) as world:
        shop.place("poison")
        world.deliver()
        together, said = threading.Barrier(2), list[str]()

        def skip(name: str) -> None:
            mine = SkipActions(shop.mq.databases, "payments", actor=name, why="poison")
            together.wait()
            said.extend(why for part in mine.skip([shop.first]) for why in part.values())

        threads = [threading.Thread(target=skip, args=(name,)) for name in ("ada", "otto")]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        world.advance(hours=1)
    (winner,) = [actor for actor, _, changed in shop.acts() if changed]
    assert min(said) == ""
    assert max(said).startswith(f"it is skipped by {winner}: poison already")
    assert shop.calls == ["poison"]


def test_every_view_of_the_message_says_that_a_person_skipped_it(shop: Poisoned) -> None:
    with MessageWorld(shop.mq) as world:
        shop.place("poison")
        world.deliver()
        assert shop.skip(why=ODD) == ""
        world.advance(hours=1)
    history = history_of(shop.mq.databases.values(), shop.first)
    assert standing(shop.first, history).text == (
        "settled: consumed by mail, skipped by a person for payments"
    )
    said = [each.what for each in timeline(history) if each.ledger == "log of payments"]
    assert said[-1].startswith("skipped by ada: ")
    assert said[-1].endswith("(after attempt 1); the handler has no effect")
    assert not any(each.startswith("consumed") for each in said)
    assert any(each.what.startswith("stub skip by ada") for each in timeline(history))
    (effect,) = [each for each in stations(history, [], None) if each.name == "Effect"]
    assert effect.evidence[1].startswith("payments: skipped by ada")
    assert (effect.reached, effect.time, effect.process) == (Reached.SKIPPED, None, "")
    states = {each.group: each.state for each in group_stories(history)}
    assert states == {"mail": "CONSUMED", "payments": "SKIPPED"}
    logs = {row["consumer_group"]: row["state"] for row in readable(history)["consume_logs"]}
    assert logs == {"mail": "CONSUMED", "payments": "SKIPPED"}


def test_a_stub_that_is_sent_again_does_not_bring_it_back(shop: Poisoned) -> None:
    with MessageWorld(shop.mq) as world:
        shop.place("poison")
        world.deliver()
        assert shop.skip() == ""
        with shop.mq.database.engine.begin() as connection:  # as if the broker had lost it
            connection.execute(update(shop.mq.database.stubs).values(status=2))
        actions = OperatorActions(shop.mq.database, StubEvent.RETRY, actor="ada", why="")
        assert list(actions.change_ids([shop.first])) == [{shop.first: True}]
        world.settle()
    assert shop.calls == ["poison"]
    assert is_skipped(shop.log())


def test_the_database_of_the_stub_hears_of_a_skip_in_another_one(
    database_url: str, other_url: str
) -> None:
    """Given a stub here, and a group whose consume log is there."""
    mq = ReliableMQ("shop", database=database_url, databases={"billing": other_url})
    mq.create_tables()
    calls: list[str] = []

    @mq.consumer("orders", group="ledger", database="billing")
    def enter(order: str) -> None:
        calls.append(order)
        raise ValueError("no such account")

    log = mq.databases["billing"].logs.c

    def owed() -> list[bool]:
        with mq.databases["billing"].engine.connect() as connection:
            times = connection.execute(select(log.confirm_time, log.state)).all()
        return [row.confirm_time is not None for row in times]

    with MessageWorld(mq) as world:
        with mq.transaction() as tx:
            sent = tx.send("orders", "order 7")
        world.deliver()
        actions = SkipActions(mq.databases, "ledger", actor="ada", why="refunded")
        actions.check_group(frozenset({"ledger"}))
        assert owed() == [False]
        assert [*actions.skip([sent])] == [{sent: ""}]
        assert owed() == [True]
        world.advance(hours=1)
        assert owed() == [False]  # a process has told it
        history = history_of(mq.databases.values(), sent)
    assert [row["state"] for row in readable(history)["consume_logs"]] == ["SKIPPED"]
    assert calls == ["order 7"]
    mq.close()


def test_of_a_group_that_moved_the_row_in_each_database_is_skipped(
    database_url: str, other_url: str
) -> None:
    mq = ReliableMQ("shop", database=database_url, databases={"billing": other_url})
    mq.create_tables()
    row = stub(1)
    rows = {"main": row, "billing": row | {"message_id": message_id(2)}}
    for name, database in mq.databases.items():
        for each in {row["message_id"], rows[name]["message_id"]}:
            attempt = log(row, message_id=each, state=0, consume_date=None)
            insert_rows(database, "consume_log", attempt)
    ids, done = [row["message_id"], message_id(2), "nobody"], dict[str, str]()
    for part in SkipActions(mq.databases, "billing", actor="ada", why="moved").skip(ids):
        done |= part
    none = "billing has not received it, or has no row of it"
    assert done == {ids[0]: "", ids[1]: "", "nobody": none}
    for database in mq.databases.values():
        with database.engine.connect() as connection:
            logs = connection.execute(select(database.logs)).mappings().all()
            assert all(is_skipped(dict(each)) for each in logs)
    mq.close()
