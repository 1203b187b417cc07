"""What a database's metrics say of its rows, on each kind of database."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import insert, text, update

from reliable_mq import ReliableMQ
from reliable_mq.escalate.escalation import EscalationKind
from reliable_mq.measuring.sql_figures import SqlFigures

WAIT_MAX = 7200.0
NOW = datetime.now(UTC)


class Outbox:
    """The rows of a shop whose stubs stay where a test puts them."""

    def __init__(self, url: str) -> None:
        self.mq = ReliableMQ("shop", database=url)
        self.mq.create_tables()
        self.database = self.mq.database
        self.figures = SqlFigures("main", self.database, WAIT_MAX)
        self._count = 0

    def stub(self, topic: str, **columns: object) -> None:
        self._count += 1
        row = {
            "message_id": f"{self._count:032X}",
            "topic": topic,
            "content": b"{}",
            "create_date": NOW,
            "update_date": NOW,
            "resend_time": NOW,
        }
        with self.database.engine.begin() as connection:
            connection.execute(insert(self.database.stubs), row | columns)

    def escalation(self, kind: str, group: str = "", *, closed: bool = False) -> None:
        self._count += 1
        row = {
            "kind": kind,
            "message_id": f"{self._count}",
            "consumer_group": group,
            "topic": "orders",
            "reason": "why",
            "create_date": NOW,
            "open_key": None if closed else f"{self._count}",
            "close_date": NOW if closed else None,
        }
        with self.database.engine.begin() as connection:
            connection.execute(insert(self.database.escalations), row)

    def read(self) -> dict[tuple[str, ...], float]:
        return {
            (sample.name.removeprefix("reliable_mq_"), *sample.labels[1:]): sample.value
            for sample in self.figures.read()
        }


@pytest.fixture
def outbox(database_url: str) -> Outbox:
    return Outbox(database_url)


def test_an_empty_outbox_has_no_backlog(outbox: Outbox) -> None:
    assert outbox.read() == {("outbox_oldest_unsent_seconds",): 0.0}


def test_stubs_are_counted_by_topic_and_by_how_far_they_are(outbox: Outbox) -> None:
    for _ in range(3):
        outbox.stub("orders")
    outbox.stub("orders", count=1, owner="me")  # its send has begun, nobody knows its end
    outbox.stub("bills")
    outbox.stub("orders", broker_name="a", queue_id=0, offset=1, count=1)
    outbox.stub("orders", status=1, resend_time=None)
    outbox.stub("orders", status=2, resend_time=None)
    outbox.stub("orders", resend_time=None, count=16)  # it waits for a person

    found = outbox.read()
    assert found["outbox_unsent_stubs", "orders"] == 4
    assert found["outbox_unsent_stubs", "bills"] == 1
    assert found["outbox_unconfirmed_stubs", "orders"] == 1
    assert ("outbox_unconfirmed_stubs", "bills") not in found


def test_the_age_is_that_of_the_oldest_stub_that_may_leave(outbox: Outbox) -> None:
    """A stub that waits for its own time, in days, is no sign of a fault."""
    outbox.stub("later", create_date=NOW - timedelta(days=9), resend_time=NOW + timedelta(days=9))
    assert outbox.read()["outbox_oldest_unsent_seconds",] == 0.0
    outbox.stub("orders", create_date=NOW - timedelta(hours=2))
    outbox.stub("orders", create_date=NOW - timedelta(hours=1))
    age = outbox.read()["outbox_oldest_unsent_seconds",]
    waited = (datetime.now(UTC) - NOW).total_seconds()  # since this module was imported
    assert age == pytest.approx(7200.0 + waited, abs=60.0)
    with outbox.database.engine.begin() as connection:
        connection.execute(update(outbox.database.stubs).values(broker_name="a"))
    assert outbox.read()["outbox_oldest_unsent_seconds",] == 0.0


def test_a_delayed_stub_that_leaves_soon_is_no_old_one_until_it_is_due(outbox: Outbox) -> None:
    now = datetime.now(UTC)
    soon, past = now + timedelta(hours=1), now - timedelta(seconds=1)
    delayed = {"create_date": now - timedelta(days=9), "deliver_time": now + timedelta(days=3)}
    outbox.stub("later", resend_time=soon, **delayed)
    assert outbox.read()["outbox_oldest_unsent_seconds",] == 0.0
    outbox.stub("orders", create_date=now - timedelta(hours=2), resend_time=past)
    assert outbox.read()["outbox_oldest_unsent_seconds",] == pytest.approx(7200.0, abs=60.0)
    stubs = outbox.database.stubs
    with outbox.database.engine.begin() as connection:
        is_due = update(stubs).where(stubs.c.topic == "later").values(resend_time=past)
        connection.execute(is_due)
    assert outbox.read()["outbox_oldest_unsent_seconds",] == pytest.approx(777_600.0, abs=60.0)


def test_a_delayed_stub_whose_send_has_failed_counts_before_its_next_send(outbox: Outbox) -> None:
    now = datetime.now(UTC)
    times = {"create_date": now - timedelta(hours=2), "resend_time": now + timedelta(hours=1)}
    outbox.stub("later", deliver_time=now, note="no broker", **times)
    assert outbox.read()["outbox_oldest_unsent_seconds",] == pytest.approx(7200.0, abs=60.0)


def test_open_escalations_are_counted_by_kind_and_dead_letters_by_group(outbox: Outbox) -> None:
    outbox.escalation(EscalationKind.DEAD_LETTER, "payments")
    outbox.escalation(EscalationKind.DEAD_LETTER, "payments")
    outbox.escalation(EscalationKind.DEAD_LETTER, "billing", closed=True)
    outbox.escalation(EscalationKind.STUCK, "payments")
    outbox.escalation(EscalationKind.STUCK)
    outbox.escalation(EscalationKind.USED_UP, closed=True)

    found = outbox.read()
    assert found["dead_letters_open", "payments"] == 2
    assert found["escalations_open", "stuck"] == 2
    assert {key[0] for key in found} == {
        "dead_letters_open",
        "escalations_open",
        "outbox_oldest_unsent_seconds",
    }


def test_a_database_without_our_tables_is_an_error(tmp_path: Path) -> None:
    mq = ReliableMQ("shop", database=f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(Exception, match="no such table"):
        SqlFigures("main", mq.database, WAIT_MAX).read()


def test_postgresql_ends_a_statement_that_takes_too_long(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = Outbox(postgres_url)
    monkeypatch.setattr("reliable_mq.measuring.sql_figures.STATEMENT_SECONDS", 0.05)
    monkeypatch.setattr(
        outbox.figures,
        "_escalations",
        lambda connection: [connection.execute(text("SELECT pg_sleep(60)"))],
    )
    with pytest.raises(Exception, match="statement timeout"):
        outbox.figures.read()
    with outbox.database.engine.connect() as connection:  # it held for that transaction only
        assert connection.execute(text("SHOW statement_timeout")).scalar() == "0"
