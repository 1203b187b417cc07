"""A type that no value of JSON can be is found, at any place but in the fields of a struct."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from numbers import Number
from threading import Event
from typing import Any
from uuid import UUID

import msgspec
import pytest

from reliable_mq.consume.json_kinds import never_in_json


class Cart(msgspec.Struct):
    """A struct whose second field a message need not have."""

    items: list[str]
    changed: Event | None = None


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (complex, complex),
        (Event, Event),
        (Event | None, Event),
        (list[Event], Event),
        (set[Event], Event),
        (dict[str, list[Event]], Event),
        (tuple[int, Event], Event),
        (tuple[Event, ...], Event),
        (type, type),
    ],
)
def test_a_class_that_is_never_in_json_is_found(kind: Any, found: type) -> None:
    assert never_in_json(kind) is found


def test_an_iterator_and_a_callable_are_found() -> None:
    assert never_in_json(Iterator[int]) is not None
    assert never_in_json(Callable[[], None]) is not None


@pytest.mark.parametrize(
    "kind",
    [
        *(Any, object, Number, Hashable, dict, list[int], set[str], tuple[int, str], int, str),
        *(datetime, Decimal, UUID, dict[str, Any], Mapping[str, int], int | None, Cart),
    ],
)
def test_what_json_can_be_is_accepted(kind: Any) -> None:
    assert never_in_json(kind) is None
