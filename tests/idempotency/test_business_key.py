"""What is a business key, and which two are one."""

from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.database.row_values import SHOWN_LENGTH_MAX
from reliable_mq.errors import KeyInvalid
from reliable_mq.idempotency.business_key import business_key


class Kind(Enum):
    REFUND = "refund"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("K-1", "K-1"),
        (7, "7"),
        (UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (Decimal("1.00"), "1"),
        (date(2026, 11, 21), "2026-11-21"),
        (Kind.REFUND, "refund"),
        (("shop", 7), '["shop","7"]'),
    ],
)
def test_a_key_reads_as_people_write_it(value: Any, shown: str) -> None:
    assert business_key(value).shown == shown


@pytest.mark.parametrize("value", [None, "", "  ", (), (None,), 1.0, True, b"x", {"a": 1}])
def test_what_is_no_key_is_refused(value: Any) -> None:
    with pytest.raises(KeyInvalid):
        business_key(value)


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_texts_are_one_key_only_when_they_are_one_text(one: str, other: str) -> None:
    if one.strip() and other.strip():
        digests = {business_key(one).digest, business_key(other).digest}
        assert (len(digests) == 1) == (one == other)


def test_long_keys_and_odd_characters_count_though_they_are_not_shown() -> None:
    long = "x" * 10_000

    assert len(business_key(long).shown) == SHOWN_LENGTH_MAX
    assert business_key(long).digest != business_key(long + "y").digest
    assert business_key("a\0b").shown == "a b"  # PostgreSQL stores no zero byte


def test_parts_of_a_key_do_not_run_into_each_other() -> None:
    assert business_key(("ab", "c")).digest != business_key(("a", "bc")).digest
