"""Which changes of a payload are compatible: what one side writes, the other side reads."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from reliable_mq.contract.compatibility import schema_faults
from reliable_mq.contract.json_schema import schema_of_type


class Customer(BaseModel):
    name: str
    mail: str | None = None


class Order(BaseModel):
    id: int
    customer: Customer
    note: str = ""


class OrderWithMore(Order):
    shipped: bool


class OrderWithOption(Order):
    shipped: bool = False


class OrderWithoutNote(BaseModel):
    id: int
    customer: Customer


class OrderWithText(Order):
    id: str  # type: ignore[assignment]


class StrictOrder(OrderWithoutNote):
    model_config = ConfigDict(extra="forbid")


class CustomerWithMail(BaseModel):
    name: str
    mail: str


class OrderOfMail(Order):
    customer: CustomerWithMail  # type: ignore[assignment]


class Price(BaseModel):
    amount: Annotated[int, Field(ge=0, le=1000)]


class SmallPrice(BaseModel):
    amount: Annotated[int, Field(gt=0, le=100)]


class FloatPrice(BaseModel):
    amount: float


class State(StrEnum):
    PAID = "paid"
    SENT = "sent"


class Two(BaseModel):
    state: Literal["paid", "sent"]


class Three(BaseModel):
    state: Literal["paid", "sent", "lost"]


class AnyState(BaseModel):
    state: str


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


class TreeOfText(BaseModel):
    value: str
    children: list["TreeOfText"] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class CatOrDog(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class OnlyCat(BaseModel):
    pet: Cat


class Packed(msgspec.Struct):
    name: str
    size: int = 0


@dataclass
class PlainData:
    name: str
    sizes: list[int] = field(default_factory=list)


class Moment(BaseModel):
    at: datetime


class MomentText(BaseModel):
    at: str


# (what reads, what writes, the faults)
CASES: list[tuple[Any, Any, list[str]]] = [
    (Order, Order, []),
    (OrderWithoutNote, Order, []),
    (Order, OrderWithoutNote, []),
    (Order, OrderWithMore, []),
    (OrderWithMore, Order, ["$.shipped: is not written, and is required"]),
    (OrderWithOption, Order, []),
    (OrderWithText, Order, ["$.id: may be integer, and must be string"]),
    (StrictOrder, Order, ["$.note: is written, and is not allowed"]),
    (OrderOfMail, Order, ["$.customer.mail: may be null, and must be string"]),
    (Order, OrderOfMail, []),
    (Price, SmallPrice, []),
    (SmallPrice, Price, ["$.amount: has minimum 0, and must have exclusiveMinimum 0"]),
    (FloatPrice, Price, []),
    (Price, FloatPrice, ["$.amount: may be number, and must be integer"]),
    (Three, Two, []),
    (Two, Three, ["$.state: may be 'lost', which is not among the allowed values"]),
    (AnyState, Three, []),
    (Two, AnyState, ["$.state: may have any value, and must be one of 'paid', 'sent'"]),
    (Tree, Tree, []),
    (Tree, TreeOfText, ["$.value: may be string, and must be integer"]),
    (CatOrDog, OnlyCat, []),
    (CatOrDog, CatOrDog, []),
    (OnlyCat, CatOrDog, ["$.pet.lives: is not written, and is required"]),
    (dict, Order, []),
    (Any, Order, []),
    (Order, dict, ["$.id: is not written, and is required"]),
    (list[int], list[bool], ["$[]: may be boolean, and must be integer"]),
    (list[int | None], list[int], []),
    (tuple[int, str], tuple[int, int], ["$[1]: may be integer, and must be string"]),
    (dict[str, int], dict[str, str], ["$.*: may be string, and must be integer"]),
    (int | None, int, []),
    (int, int | None, ["$: may be null, and must be integer"]),
    (str, State, []),
    (State, str, ["$: may have any value, and must be one of 'paid', 'sent'"]),
    (MomentText, Moment, []),
    (Moment, MomentText, ["$.at: has no format, and must have format 'date-time'"]),
    (Packed, PlainData, []),
    (PlainData, Packed, []),
]


def faults(reader: Any, writer: Any) -> list[str]:
    read, written = schema_of_type(reader, "reads", "x"), schema_of_type(writer, "writes", "x")
    assert read is not None
    assert written is not None
    return [str(each) for each in schema_faults(read, written)]


@pytest.mark.parametrize(("reader", "writer", "wanted"), CASES, ids=str)
def test_each_change_that_breaks_a_reader_is_named_by_its_place(
    reader: Any, writer: Any, wanted: list[str]
) -> None:
    found = faults(reader, writer)

    assert [each for each in wanted if each not in found] == []
    assert bool(found) == bool(wanted)


def test_every_type_of_the_cases_is_compatible_with_itself() -> None:
    types = [kind for case in CASES for kind in case[:2]]

    assert {str(kind): found for kind in types if (found := faults(kind, kind))} == {}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "bb"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=6,
)
PARTS: dict[str, Any] = {
    "type": st.sampled_from(["integer", "string", "object", "array", ["null", "integer"]]),
    "minimum": st.integers(-2, 2),
    "maxLength": st.integers(0, 2),
    "enum": st.lists(st.sampled_from([None, True, 1, "a"]), min_size=1, max_size=3),
    "required": st.lists(st.sampled_from("ab"), unique=True),
    "minItems": st.integers(0, 2),
}
FLAT = st.fixed_dictionaries({}, optional=PARTS)
SCHEMAS = st.one_of(
    FLAT,
    st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), FLAT),
            "required": PARTS["required"],
            "additionalProperties": st.booleans() | FLAT,
        },
    ),
    st.fixed_dictionaries({"anyOf": st.lists(FLAT, min_size=1, max_size=2)}, optional=PARTS),
    st.fixed_dictionaries({"type": st.just("array"), "items": FLAT}),
)


@given(reader=SCHEMAS, writer=SCHEMAS, value=VALUES)
@settings(deadline=None, max_examples=600)
def test_a_value_that_is_written_and_not_read_has_a_fault(
    reader: dict[str, Any], writer: dict[str, Any], value: Any
) -> None:
    """A writer with a class writes no other fields than those that its schema names."""
    import jsonschema  # here: a second that each process of pytest-xdist would need

    is_written = jsonschema.Draft202012Validator(writer).is_valid(value)
    writes_more = (
        isinstance(value, dict)
        and "properties" in writer
        and (not value.keys() <= writer["properties"].keys())
    )
    if is_written and not writes_more and not schema_faults(reader, writer):
        assert jsonschema.Draft202012Validator(reader).is_valid(value)


def test_a_rule_beside_alternatives_counts() -> None:
    choice = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    at_least_one = {**choice, "minimum": 1}

    assert schema_faults(at_least_one, at_least_one) == []
    assert schema_faults(choice, at_least_one) == []
    (fault,) = schema_faults(at_least_one, choice)
    assert str(fault) == "$: has no minimum, and must have minimum 1"


@pytest.mark.parametrize("schema", [{"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}])
def test_a_schema_that_names_only_itself_ends(schema: dict[str, Any]) -> None:
    schema_faults(schema, schema)
