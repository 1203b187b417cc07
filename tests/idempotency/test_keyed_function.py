"""A decorated function: what is refused when it is declared, and results as bytes and back."""

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session

from reliable_mq.database.sql_key_tables import RESULT_SIZE_MAX
from reliable_mq.errors import CallRunning, KeyInvalid, KeyReused, UsageError
from reliable_mq.idempotency.key_reading import field_of
from reliable_mq.idempotency.keyed_function import IdempotentCall, KeyedFunction
from reliable_mq.idempotency.sql_calls import CallDecision, CallFound, KeyedCall
from reliable_mq.settings import SECONDS_MAX


def keyed(function: Callable[..., Any], **change: Any) -> KeyedFunction:
    given: dict[str, Any] = {"key": "key", "scope": "", "compare": None, "window": 60.0}
    return KeyedFunction(function, **(given | change))


def pay(key: str, session: Session, call: IdempotentCall, amount: int = 1) -> str:
    return f"{key} {amount}"


def returns(kind: Any) -> KeyedFunction:
    def function(key: str) -> Any: ...

    function.__annotations__["return"] = kind
    return keyed(function)


def test_callers_see_a_function_without_what_is_filled_in() -> None:
    known = keyed(pay)
    assert list(known.signature.parameters) == ["key", "amount"]
    assert (known.session, known.told) == ("session", "call")
    assert not known.is_async


def two_sessions(key: str, one: Session, other: Session) -> None: ...
def two_calls(key: str, one: IdempotentCall, other: IdempotentCall) -> None: ...
def bare_session(session: Session, /, key: str) -> None: ...
def wrong_session(key: str, session: AsyncSession) -> None: ...
async def other_wrong_session(key: str, session: Session) -> None: ...


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (two_sessions, "'one' and 'other' have the same type"),
        (two_calls, "'one' and 'other' have the same type"),
        (bare_session, "'session' must not be positional-only"),
        (wrong_session, "a def takes a Session"),
        (other_wrong_session, "an async def takes an AsyncSession"),
    ],
)
def test_a_parameter_that_cannot_be_filled_is_refused(
    function: Callable[..., Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        keyed(function)


@pytest.mark.parametrize("window", [0, -1, SECONDS_MAX + 1, math.nan, math.inf])
def test_a_window_is_positive_and_at_most_a_hundred_years(window: float) -> None:
    with pytest.raises(UsageError, match="window"):
        keyed(pay, window=window)


def test_the_shortest_and_the_longest_window_are_taken() -> None:
    assert keyed(pay, window=1e-9).window == 1e-9
    assert keyed(pay, window=SECONDS_MAX).window == SECONDS_MAX


@pytest.mark.parametrize("scope", ["x" * 128, "a\nb", "a\0"])
def test_a_scope_is_a_name_of_at_most_127_characters(scope: str) -> None:
    with pytest.raises(UsageError, match="scope"):
        keyed(pay, scope=scope)
    assert keyed(pay, scope="x" * 127).scope == "x" * 127
    assert keyed(pay).scope == f"{__name__}.pay"


@pytest.mark.parametrize("key", ["none", "key.", ".key", "key..id", "", "session", 7])
def test_a_key_is_found_in_a_parameter_or_by_a_function(key: Any) -> None:
    with pytest.raises(UsageError, match="key="):
        keyed(pay, key=key)


def test_a_result_comes_back_as_it_was() -> None:
    known = returns(Mapping[str, list[float | None]])
    results: list[dict[str, list[float | None]]] = [{}, {"a": [1.5, None]}, {"null": []}]
    for result in results:
        assert known.decode(known.encode(result)) == result


def test_a_result_may_be_as_large_as_a_mebibyte_with_its_quotes() -> None:
    known = returns(str)
    assert len(known.encode("x" * (RESULT_SIZE_MAX - 2))) == RESULT_SIZE_MAX == 2**20
    with pytest.raises(UsageError, match="1048577 bytes, 1 MiB is the most"):
        known.encode("x" * (RESULT_SIZE_MAX - 1))


@pytest.mark.parametrize(
    "result",
    [
        math.nan,
        math.inf,
        [1.0, -math.inf],
        {"a": math.nan, "b": None},
        {"a": [None, {"b": [math.inf]}]},
    ],
)
def test_a_number_that_json_does_not_know_is_no_result(result: Any) -> None:
    with pytest.raises(UsageError, match="JSON has no NaN and no infinity"):
        returns(Any).encode(result)


@pytest.mark.parametrize("result", [None, [None, 1.0], {"a": None}, "null", {"null": {}}])
def test_a_null_that_was_meant_is_a_result(result: Any) -> None:
    known = returns(Any)
    assert known.decode(known.encode(result)) == result


def test_a_result_that_was_not_stored_or_has_another_type_by_now_is_told() -> None:
    with pytest.raises(UsageError, match="could not be stored"):
        returns(str).decode(None)
    with pytest.raises(UsageError, match="cannot be read") as told:
        returns(int).decode(b'"ann@shop.example"')
    assert "shop.example" not in str(told.value)  # an application may log it


CALL = KeyedCall("scope", "digest", "k-1", "print", "token", 60.0)


def test_a_call_that_runs_says_when_to_ask_again_and_a_reused_key_is_refused() -> None:
    known = keyed(pay)
    known.refuse(CallFound(CallDecision.RUN), CALL)
    with pytest.raises(CallRunning, match="'k-1' is running") as soon:
        known.refuse(CallFound(CallDecision.RUNNING, wait=0.0), CALL)
    assert soon.value.retry_after == 0.05
    with pytest.raises(CallRunning) as later:
        known.refuse(CallFound(CallDecision.RUNNING, wait=3.0), CALL)
    assert later.value.retry_after == 3.0
    with pytest.raises(KeyReused, match="'k-1'"):
        known.refuse(CallFound(CallDecision.REUSED), CALL)


def test_a_field_is_an_item_of_a_mapping_or_a_public_attribute() -> None:
    assert field_of({"a": None}, "a") is None
    assert field_of(SimpleNamespace(a=3), "a") == 3
    for value, name in (({"a": 1}, "b"), (SimpleNamespace(_a=1), "_a"), ({}, "keys"), (3, "x")):
        with pytest.raises(KeyInvalid, match=f"no '{name}'"):
            field_of(value, name)


class Order:
    customer = "c-1"
    lines = ({"sku": "s-1"},)


def with_order(order: Any, key: str = "k", *parts: str, **more: str) -> None: ...
def yields(key: str) -> Any:
    yield key


async def yields_later(key: str) -> Any:
    yield key


def unknown_name(key: "NoSuchType") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def test_only_a_function_that_returns_a_result_can_be_decorated() -> None:
    for what, said in (
        (5, "decorate a def or an async def, not 5"),
        (yields, "it yields; a generator's result cannot be stored"),
        (yields_later, "it yields; a generator's result cannot be stored"),
        (unknown_name, "NoSuchType.* import it at module level"),
    ):
        with pytest.raises(UsageError, match=said):
            keyed(what)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"a result of type .* cannot be stored; annotate"):
        returns(SimpleNamespace)
    with pytest.raises(UsageError, match="scope"):
        keyed(pay, scope=5)


def asked(known: KeyedFunction, *args: Any, **kwargs: Any) -> KeyedCall:
    return known.asked(args, kwargs, "token").call


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("key", "k"),
        ("order.customer", "c-1"),
        (lambda order, key, *parts, **more: f"{key}-{order.customer}{parts}{more}", "k-c-1(){}"),
    ],
)
def test_the_key_is_a_parameter_or_a_field_of_one_or_computed(key: Any, shown: str) -> None:
    known = keyed(with_order, key=key, scope="s")
    call = asked(known, Order())
    assert (call.scope, call.shown, call.token, call.window) == ("s", shown, "token", 60.0)
    assert call.fingerprint is None
    assert len(call.key_digest) == 64


@pytest.mark.parametrize(
    ("compare", "differs"),
    [
        ("amount", True),
        (["amount"], True),
        (["key"], False),
        (["key", "amount"], True),
        (lambda key, amount: amount % 2, True),
        (lambda key, amount: amount > 0, False),
    ],
)
def test_the_arguments_that_must_be_the_same_are_a_fingerprint(compare: Any, differs: bool) -> None:
    def function(key: str, amount: int = 1) -> None: ...

    known = keyed(function, compare=compare)
    prints = [asked(known, "k", amount).fingerprint for amount in (1, 1, 2)]
    assert prints[0] == prints[1]
    assert (prints[0] != prints[2]) == differs
    assert asked(known, "k").fingerprint == prints[0], "defaults count"


@pytest.mark.parametrize("compare", [None, [], ()])
def test_without_arguments_to_compare_there_is_no_fingerprint(compare: Any) -> None:
    assert asked(keyed(pay, compare=compare), "k").fingerprint is None


@pytest.mark.parametrize("compare", ["no_parameter", ["key", "no_parameter"], 7, "amount."])
def test_what_is_compared_must_be_parameters_or_a_function(compare: Any) -> None:
    with pytest.raises(UsageError, match="compare="):
        keyed(pay, compare=compare)


def test_a_session_is_taken_by_its_name_or_its_place() -> None:
    known, session = keyed(pay), Session()
    scoped: Any = scoped_session(lambda: session)  # type: ignore[arg-type]
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        (("k", session), {}),
        (("k",), {"session": session}),
        (("k", session, 5), {}),
        (("k", scoped), {}),
        (("k",), {"session": scoped, "amount": 5}),
    ]
    for args, kwargs in calls:
        request = known.asked(args, kwargs, "token")
        assert request.session is session
        assert request.arguments["key"] == "k"
        assert "session" not in request.arguments
    assert known.asked(("k", 5), {}, "token").arguments == {"key": "k", "amount": 5}
    assert known.asked(("k",), {"session": None}, "token").session is None


def by_name(key: str, *, session: Session, amount: int = 1) -> None: ...
def told_first(told: IdempotentCall, key: str, session: Session) -> None: ...


def test_a_session_at_a_wrong_place_or_of_a_wrong_kind_is_told() -> None:
    session = Session()
    with pytest.raises(UsageError, match=r"pass the session by its name, session=…"):
        keyed(by_name).asked(("k", session), {}, "token")
    with pytest.raises(TypeError, match="too many positional arguments"):
        keyed(pay).asked(("k", 1, 2), {}, "token")
    with pytest.raises(UsageError, match="session=5 is not of type Session"):
        keyed(pay).asked(("k",), {"session": 5}, "token")
    request = keyed(told_first).asked(("k", session), {}, "token")
    assert (request.session, request.key.shown) == (session, "k")


def test_a_function_is_called_with_its_arguments_and_those_that_are_filled_in() -> None:
    made: list[Any] = []

    def function(key: str, told: IdempotentCall, *parts: int, session: Session, **more: int) -> str:
        made.append((key, told, parts, session, more))
        return "done"

    known, session = keyed(function, scope="s"), Session()
    request = known.asked(("k", 1, 2), {"a": 3, "session": session}, "token")
    found = CallFound(CallDecision.RUN, attempt=4, in_doubt=True)
    assert known.run(request, session, found) == "done"
    assert made == [("k", IdempotentCall("k", 4, True), (1, 2), session, {"a": 3})]


def test_bytes_come_back_as_they_were() -> None:
    for kind in (bytes, bytes | None):
        known = returns(kind)
        assert known.decode(known.encode(b"\xff\x00")) == b"\xff\x00"
    with pytest.raises(UsageError, match="its result cannot be stored"):
        returns(Any).encode(b"\xff")


def test_a_result_that_could_not_be_read_again_is_refused() -> None:
    """A Decimal writes NaN and cannot read it."""
    assert returns(Decimal).decode(b'"1.5"') == Decimal("1.5")
    with pytest.raises(UsageError, match="it could not be read"):
        returns(Decimal).encode(Decimal("NaN"))
    with pytest.raises(UsageError, match="it could not be read"):
        returns(Decimal).encode(Decimal("Infinity"))
    assert returns(str).encode("NaN and Infinity") == b'"NaN and Infinity"'
    with pytest.raises(UsageError, match="cannot be stored"):
        returns(int).encode("no number")


def test_a_call_is_the_first_one_unless_it_is_said() -> None:
    """So a test of an application makes one."""
    assert IdempotentCall("k") == IdempotentCall("k", attempt=1, in_doubt=False)
