"""Worlds for the tests of applications: faults, time and deaths, without sockets or sleeps."""

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from reliable_mq import ReceivedMessage, Reject, ReliableMQ
from reliable_mq.errors import ConfigurationError
from reliable_mq.testing import message_world
from reliable_mq.testing.crash_points import crash_here
from reliable_mq.testing.message_world import MessageWorld


class Table(DeclarativeBase):
    """The shop's tables."""


class Order(Table):
    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)


class Payment(Table):
    __tablename__ = "payment"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


class Shop:
    """An application: orders are placed, paid and packed."""

    def __init__(self, url: str, *, packs: bool = True, **options: Any) -> None:
        self.mq = mq = ReliableMQ("shop", database=url)
        mq.create_tables()
        Table.metadata.create_all(mq.database.engine)
        self.handler: Callable[[ReceivedMessage], None] = lambda _: None
        self.packed: list[int] = []
        self.numbers = count(1)

        @mq.consumer("orders", group="payments", **options)
        def take_payment(order: dict[str, int], session: Session, message: ReceivedMessage) -> None:
            session.add(Payment(order_id=order["id"]))
            self.handler(message)
            with mq.transaction(session) as tx:
                tx.send("payments", {"order": order["id"]}, tag="paid")

        if packs:

            @mq.consumer("payments", group="packing")
            async def pack(payment: dict[str, int], session: AsyncSession) -> None:
                await session.execute(select(1))
                self.packed.append(payment["order"])

    def place(self, **options: Any) -> int:
        with self.mq.transaction() as tx:
            order = Order(id=next(self.numbers))
            tx.session.add(order)
            tx.send("orders", {"id": order.id}, key=order.id, **options)
            return order.id

    def payments(self, order: int) -> int:
        with Session(self.mq.database.engine) as session:
            wanted = select(func.count()).where(Payment.order_id == order)
            return session.scalars(wanted).one()


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    made = Shop(database_url)
    yield made
    made.mq.close()


def test_messages_are_sent_and_handled_when_the_test_says_so(shop: Shop) -> None:
    with MessageWorld(shop.mq) as world:
        order = shop.place()
        world.assert_sent("orders", {"id": order}, key=order)
        assert shop.payments(order) == 0
        world.deliver()
        world.assert_sent("payments", {"order": order}, tag="paid")

    assert shop.payments(order) == 1
    assert shop.packed == [order]


def test_an_application_with_an_embedded_broker_is_tested_as_it_is(tmp_path: Path) -> None:
    """Its own broker is not started: the world has one."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    mq = ReliableMQ("shop", broker=f"embedded:{tmp_path / 'store'}", database=url)
    mq.create_tables()
    handled: list[str] = []

    @mq.consumer("orders", group="payments")
    def take_payment(order: str) -> None:
        handled.append(order)

    with MessageWorld(mq) as world:
        with mq.transaction() as tx:
            tx.send("orders", "order 7")
        world.deliver()
    assert handled == ["order 7"]
    assert not (tmp_path / "store").exists()


def test_what_was_not_sent_is_told_with_what_was(shop: Shop) -> None:
    with MessageWorld(shop.mq) as world:
        shop.place()
        with pytest.raises(AssertionError) as told:
            world.assert_sent("orders", {"id": 7})
        assert str(told.value) == (
            "0 messages of topic orders with payload={'id': 7}, not 1; sent were:\n"
            '  {"id":1} key=1'
        )
        world.assert_sent("refunds", times=0)


@pytest.mark.parametrize("redis", [True, False])
def test_faults_are_met_and_the_effect_happens_once(shop: Shop, redis: bool) -> None:
    with MessageWorld(shop.mq, redis=redis) as world:
        world.faults.duplicate("orders")
        world.faults.lose_acknowledgement("orders")
        world.faults.lose_reply("orders")
        order = shop.place()
        world.settle()
        assert world.faults.planned == []
        (message,) = world.sent("orders")
        assert (
            world.sent_times(message.message_id, "orders") == 1
        )  # confirmed before it was due again

    assert shop.payments(order) == 1
    assert shop.packed == [order]


@pytest.mark.parametrize("hours", [2, 72])
def test_consumers_are_known_after_a_leap_of_hours(shop: Shop, hours: int) -> None:
    with MessageWorld(shop.mq) as world:
        order = shop.place(delay=timedelta(hours=2))
        world.advance(hours=hours, seconds=5)
        later = shop.place()
        world.deliver()

    assert (shop.payments(order), shop.payments(later)) == (1, 1)


def test_delays_and_retries_come_when_time_passes(shop: Shop) -> None:
    tries: list[int] = []

    def fails_once(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        if len(tries) == 1:
            raise ValueError("once")

    shop.handler = fails_once
    with MessageWorld(shop.mq) as world:
        order = shop.place(delay=timedelta(minutes=30))
        world.deliver()
        world.advance(minutes=29)
        assert tries == []
        world.advance(minutes=2)
        assert tries[0] == 0
        world.advance(minutes=2)

    assert tries == [0, 1]
    assert shop.payments(order) == 1


def test_a_broker_that_is_away_gets_the_message_later(shop: Shop) -> None:
    with MessageWorld(shop.mq) as world:
        world.faults.is_broker_away = True
        order = shop.place()
        assert world.deliver() == 0
        world.faults.clear()
        world.settle()

    assert shop.payments(order) == 1


def test_messages_without_a_key_may_come_in_another_order_and_those_of_one_key_may_not(
    shop: Shop,
) -> None:
    seen: list[int] = []
    shop.handler = lambda message: seen.append(int(message.keys[0]))

    def handed_out(seed: int, **options: Any) -> list[int]:
        seen.clear()
        with MessageWorld(shop.mq, seed=seed) as world:
            world.faults.reorder()
            for _ in range(8):
                shop.place(**options)
            world.deliver()
        return [number - min(seen) for number in seen]

    assert len({tuple(handed_out(seed)) for seed in range(4)}) > 1
    assert {tuple(handed_out(seed, ordering_key="a")) for seed in range(2)} == {tuple(range(8))}


def test_dead_letters_are_there_to_be_looked_at(shop: Shop) -> None:
    def rejects(_message: ReceivedMessage) -> None:
        raise Reject("no such customer")

    shop.handler = rejects
    with MessageWorld(shop.mq) as world:
        shop.place()
        world.deliver()
        (letter,) = world.dead_letters("payments")

    assert letter.properties["DEAD_LETTER_REASON"] == "no such customer"


def test_the_process_dies_where_the_application_says_and_lives_again(shop: Shop) -> None:
    shop.handler = lambda _: crash_here("payment taken")
    with MessageWorld(shop.mq) as world:
        order = shop.place()
        with world.crash("payment taken") as switch:
            world.deliver()
        assert switch.dead
        assert shop.payments(order) == 0
        world.settle()

    assert shop.payments(order) == 1


def test_a_message_for_a_group_whose_module_is_not_imported_names_the_group(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told after a minute of the world instead of a day, which takes seconds of ours."""
    monkeypatch.setattr(message_world, "_QUIET_SECONDS_MAX", 60.0)
    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}", packs=True)
    with MessageWorld(shop.mq) as world:
        with shop.mq.transaction() as tx:
            message_id = tx.send("letters", {}, required_groups=("packing", "posting"))

        with pytest.raises(AssertionError) as failed:
            world.settle()

    shop.mq.close()
    assert message_id in str(failed.value)
    assert "wait for group posting, and no imported module has a handler" in str(failed.value)


def test_a_step_that_never_came_is_warned_of(shop: Shop) -> None:
    """A misspelt name would try nothing, and the test would pass."""
    shop.handler = lambda _: crash_here("payment taken")
    with MessageWorld(shop.mq) as world:
        shop.place()
        with (
            pytest.warns(UserWarning, match="no step was named 'payment token'.*'payment taken'"),
            world.crash("payment token"),
        ):
            world.deliver()


def test_an_effect_in_the_database_happens_once_whatever_goes_wrong(tmp_path: Any) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}", packs=False)
    with MessageWorld(shop.mq) as world:
        tried = world.assert_effect_once(shop.place, shop.payments)
    shop.mq.close()

    assert {"a duplicate", "a lost acknowledgement", "no broker", "leases forgotten"} < set(tried)
    assert sum(name.startswith("killed at") for name in tried) > 30
    assert any("ConsumeTransaction.complete: after COMMIT" in name for name in tried)


def test_a_shop_without_an_asynchronous_driver_dies_at_its_steps_as_well(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given SQLite without the extra: the synchronous driver is part of Python."""
    monkeypatch.setitem(sys.modules, "aiosqlite", None)
    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}", packs=False)
    with MessageWorld(shop.mq) as world:
        for step in (5, 20, 35):
            order = shop.place()
            with world.crash(step) as switch:
                world.deliver()
            world.settle()
            assert (switch.dead, shop.payments(order)) == (True, 1)
    shop.mq.close()


def test_an_effect_outside_the_transaction_is_found_out(tmp_path: Any) -> None:
    """The canary: a list is not rolled back with the transaction that failed."""
    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}", packs=False)
    mails: list[int] = []

    def mail(message: ReceivedMessage) -> None:
        mails.append(int(message.keys[0]))

    shop.handler = mail
    with (
        MessageWorld(shop.mq) as world,
        pytest.raises(AssertionError, match=r"killed at .*: 2 effects of \d+ instead of one"),
    ):
        world.assert_effect_once(shop.place, mails.count)
    shop.mq.close()


def test_the_application_is_as_before_when_its_world_has_ended(shop: Shop) -> None:
    before = shop.mq._connections, shop.mq.database.clock
    with MessageWorld(shop.mq):
        assert shop.mq.database.clock is not before[1]
    assert (shop.mq._connections, shop.mq.database.clock) == before


def test_a_half_in_limbo_is_asked_back_and_comes_when_time_passes(shop: Shop) -> None:
    with MessageWorld(shop.mq) as world:
        world.faults.keep_halves_in_limbo()
        number = next(shop.numbers)
        with shop.mq.transaction(half=True) as tx:
            tx.session.add(Order(id=number))
            tx.send("orders", {"id": number}, key=number)
        world.deliver()
        assert shop.payments(number) == 0  # the broker keeps the half until it knows more
        assert world.faults.planned == []
        world.settle()

    assert shop.payments(number) == 1


def test_a_property_that_the_broker_has_not_is_refused(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match=r"transactionTimeOt.*did you mean transactionT"):
        MessageWorld(shop.mq, transactionTimeOt="1000")
