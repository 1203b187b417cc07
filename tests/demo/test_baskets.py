"""The grocer's baskets: real, in the order of their time, whole."""

from datetime import datetime
from decimal import Decimal

from examples.demo.baskets import Basket, Line, first_basket_ids, first_baskets
from examples.demo.command import BASKETS_OF_THE_YEAR


def test_the_first_baskets_come_by_time_with_their_lines() -> None:
    baskets = list(first_baskets(300))

    assert len(baskets) == 300
    assert baskets[0] == Basket(
        31198570044,
        900,
        datetime(2017, 1, 1, 11, 53, 26),  # noqa: DTZ001 - the file tells local time
        (Line(1095275, 1, Decimal("0.50")),),
    )
    assert [basket.placed_at for basket in baskets] == sorted(b.placed_at for b in baskets)
    assert [basket.basket_id for basket in baskets] == first_basket_ids(300)
    assert all(basket.lines for basket in baskets)


def test_the_year_has_as_many_baskets_as_we_say() -> None:
    assert len(first_basket_ids(10**9)) == BASKETS_OF_THE_YEAR


def test_an_amount_is_the_sum_of_what_was_paid_for_its_lines() -> None:
    lines = (Line(1, 2, Decimal("1.99")), Line(2, 1, Decimal("0.02")))

    assert Basket(1, 2, datetime(2017, 1, 1), lines).amount == Decimal("2.01")  # noqa: DTZ001
