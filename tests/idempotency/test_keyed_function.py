"""A decorated function: what is refused when it is declared, and results as bytes and back."""

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

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
    with pytest.raises(UsageError, match="cannot be read"):
        returns(int).decode(b'"text"')


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
