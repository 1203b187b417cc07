"""The judge of the demo: what is right passes, and each kind of wrong is named."""

from collections.abc import Callable

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from examples.demo.baskets import Basket, first_baskets
from examples.demo.checks import CheckResult, check_outcome, check_sequence
from examples.demo.producer import order_of
from examples.shop import LoyaltyAccount, Payment, ShopTable, write_order

ORDERS = 40

Change = Callable[[str], None]


@pytest.fixture(scope="module")
def baskets() -> list[Basket]:
    """Give what was ordered; reading it takes seconds."""
    return list(first_baskets(ORDERS))


@pytest.fixture
def shop(postgres_url: str, baskets: list[Basket]) -> str:
    """Give the URL of a shop in which everything is as it should be."""
    engine = create_engine(postgres_url)
    ShopTable.metadata.create_all(engine)
    points: dict[int, int] = {}
    with Session(engine) as session:
        for basket in baskets:
            write_order(session, *order_of(basket))
            session.add(Payment(order_id=basket.basket_id, amount=basket.amount))
            session.flush()
            household = basket.household_id
            points[household] = points.get(household, 0) + int(basket.amount)
        for household, sum_of_points in points.items():
            session.add(LoyaltyAccount(household_id=household, points=sum_of_points))
        session.commit()
    engine.dispose()
    return postgres_url


@pytest.fixture
def change(shop: str) -> Change:
    """Give what runs one statement in the shop."""

    def run(statement: str) -> None:
        engine = create_engine(shop)
        with engine.begin() as connection:
            connection.execute(text(statement))
        engine.dispose()

    return run


def broken(answers: list[CheckResult]) -> list[int]:
    return [answer.broken for answer in answers]


def test_a_shop_in_which_all_is_right_passes(shop: str) -> None:
    answers = check_outcome(shop, ORDERS)

    assert broken(answers) == [0, 0, 0]
    assert [answer.counted for answer in answers][:2] == [ORDERS, ORDERS]
    assert all(answer.holds for answer in answers)
    assert check_sequence(shop).holds


def test_a_lost_a_doubled_and_a_false_effect_are_each_named(shop: str, change: Change) -> None:
    change(
        "INSERT INTO shop_payment (order_id, amount) SELECT order_id, amount FROM shop_payment"
        " WHERE id = 3"
    )
    change("DELETE FROM shop_payment WHERE id = 5")
    change("UPDATE shop_payment SET amount = amount + 0.01 WHERE id = 7")
    change("UPDATE shop_loyalty_account SET points = points + 1 WHERE household_id = 900")
    change(
        "DELETE FROM shop_order_line WHERE number = 1 AND order_id = (SELECT min(id) FROM"
        " shop_order)"
    )

    assert broken(check_outcome(shop, ORDERS)) == [1, 3, 1]


def test_an_order_too_few_is_missed_in_every_account(shop: str) -> None:
    assert broken(check_outcome(shop, ORDERS + 1)) == [1, 1, 1]


def test_payments_out_of_their_households_order_are_named(shop: str, change: Change) -> None:
    change(
        "UPDATE shop_payment SET id = 1000 + id WHERE order_id = (SELECT min(id) FROM shop_order"
        " WHERE household_id = (SELECT household_id FROM shop_order GROUP BY household_id"
        " HAVING count(*) = 2 ORDER BY household_id LIMIT 1))"
    )

    assert check_sequence(shop).broken == 1
