"""One world after another: each begins with empty ledgers, and no developer's rows are lost."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
from sqlalchemy import func, make_url, select

from reliable_mq import ReliableMQ, Tick
from reliable_mq.errors import UsageError
from reliable_mq.testing import sql_emptying
from reliable_mq.testing.message_world import MessageWorld
from reliable_mq.testing.sql_emptying import is_for_tests


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReliableMQ]:
    """A shop whose database does not look like one for tests."""
    monkeypatch.setattr(sql_emptying, "gettempdir", lambda: str(tmp_path / "elsewhere"))
    monkeypatch.setattr(sql_emptying, "_found_empty", set())
    mq = ReliableMQ("shop", broker="127.0.0.1:1", database=f"sqlite:///{tmp_path / 'shop.db'}")
    mq.create_tables()
    yield mq
    mq.close()


def handling(mq: ReliableMQ) -> list[int]:
    """Return what the shop's consumer was given."""
    handled: list[int] = []

    @mq.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None:
        handled.append(order["id"])

    return handled


def place(mq: ReliableMQ, number: int) -> None:
    with mq.transaction() as tx:
        tx.send("orders", {"id": number})


def stubs(mq: ReliableMQ) -> int:
    with mq.database.engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(mq.database.stubs)) or 0


def placed_before(mq: ReliableMQ) -> None:
    """Leave a message, as a developer's process does that was ended before it was sent."""
    with MessageWorld(mq, empties=False):
        place(mq, 1)


def test_an_application_that_starts_and_closes_in_a_world_does_not_end_it(shop: ReliableMQ) -> None:
    """Given a web application whose lifespan runs the consumers, also with shared relays."""
    handled = handling(shop)

    with MessageWorld(shop) as world:
        with shop:
            place(shop, 1)
        world.assert_sent("orders", {"id": 1})
        place(shop, 2)
        world.deliver()
        world.settle()

    assert handled == [1, 2]


@pytest.mark.parametrize("by", ["message", "queue"])
def test_messages_are_handled_in_the_order_in_which_they_were_stored(
    shop: ReliableMQ, by: Literal["message", "queue"]
) -> None:
    """Given messages without an ordering key in several queues, when no fault reorders them."""
    handled: list[int] = []

    @shop.consumer("orders", group="payments", by=by, ordered=False)
    def pay(order: dict[str, int]) -> None:
        handled.append(order["id"])

    with MessageWorld(shop) as world:
        for number in range(12):
            place(shop, number)
            world.sent("orders")  # sends it by itself, so each comes to the next queue
        world.deliver()

    assert handled == list(range(12))


def test_a_world_does_not_deliver_what_the_one_before_has_left(shop: ReliableMQ) -> None:
    handled = handling(shop)
    keyed: list[str] = []

    @shop.idempotent(key="key")
    def act(key: str) -> None:
        keyed.append(key)

    for number in (1, 2):
        with MessageWorld(shop) as world:
            place(shop, number)
            act("k")
            world.assert_sent("orders", {"id": number})
            if number == 2:
                world.settle()
    assert handled == [2]
    assert keyed == ["k", "k"]


def test_messages_of_a_developer_are_refused_and_kept(shop: ReliableMQ) -> None:
    handled = handling(shop)
    placed_before(shop)

    with pytest.raises(UsageError, match=r"1 message\(s\) wait in the database"):
        MessageWorld(shop).__enter__()
    assert stubs(shop) == 1

    with MessageWorld(shop, empties=False) as world:
        world.settle()
    assert handled == [1]
    with MessageWorld(shop):  # nothing waits any more
        assert stubs(shop) == 1
    with MessageWorld(shop, empties=True):
        assert stubs(shop) == 0


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql+psycopg://db/test_shop", True),
        ("postgresql+psycopg://db/shop_test_2", True),
        ("mysql+pymysql://db/Shop-Tests", True),
        ("postgresql+psycopg://db/latest", False),
        ("postgresql+psycopg://test/shop", False),
        ("sqlite:///test.db", True),
        ("sqlite:////srv/tests/shop.db", False),
        ("sqlite://", True),
    ],
)
def test_the_name_of_a_database_says_that_it_is_for_tests(url: str, said: bool) -> None:
    assert is_for_tests(make_url(url)) is said


def test_a_file_in_the_folder_for_temporary_files_is_for_tests(tmp_path: Path) -> None:
    assert is_for_tests(make_url(f"sqlite:///{tmp_path / 'shop.db'}"))


def test_a_world_fires_each_tick_when_its_time_comes(shop: ReliableMQ) -> None:
    ticks: list[datetime] = []
    got: list[str] = []

    @shop.periodic("* * * * *", topic="reports")
    def report(tick: Tick) -> dict[str, str]:
        ticks.append(tick.time)
        assert tick.skipped == 0
        return {"at": tick.time.isoformat()}

    @shop.consumer("reports", group="readers")
    def read(report: dict[str, str]) -> None:
        got.append(report["at"])

    with MessageWorld(shop) as world:
        world.deliver()
        assert ticks == []
        begin = world.clock.now()
        world.advance(hours=2)

        assert len(ticks) == 120
        assert ticks[0] == datetime.fromtimestamp(begin - begin % 60 + 60, UTC)
        assert got == [each.isoformat() for each in ticks]
        world.assert_sent("reports", times=120)
        world.restart()
        world.advance(minutes=1)
        assert len(ticks) > 120
