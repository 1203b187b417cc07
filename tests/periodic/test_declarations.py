"""Periodic messages that are declared wrongly get one line that says what to do."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from reliable_mq import ReliableMQ, Tick
from reliable_mq.errors import UsageError


@pytest.fixture
def mq() -> ReliableMQ:
    return ReliableMQ("shop", database="sqlite:///unused.db")


def nightly() -> dict[str, int]:
    return {"a": 1}


async def nightly_async() -> None: ...


def wants_more(tick: Tick, other: int) -> None: ...


def wants_async_session(session: AsyncSession) -> None: ...


def two_ticks(tick: Tick, other: Tick) -> None: ...


def named_wrongly(tick: "Tik") -> None:  # type: ignore[name-defined] # noqa: F821
    ...


WRONG: dict[str, tuple[Callable[..., Any] | Any, dict[str, Any], str]] = {
    "an async def": (
        nightly_async,
        {},
        "is an async def: write a def that makes the payload",
    ),
    "a parameter": (wants_more, {}, "its parameter 'other' cannot be filled"),
    "an AsyncSession": (wants_async_session, {}, "its parameter 'session' cannot be filled"),
    "two ticks": (two_ticks, {}, "its parameter 'other' cannot be filled"),
    "an unknown annotation": (named_wrongly, {}, "import it at module level"),
    "no function": ("nightly", {}, "decorates a function, not 'nightly'"),
    "a class": (Tick, {}, "decorates a function, not the class Tick"),
    "a lambda without a name": (
        lambda: None,
        {},
        "@mq.periodic decorates a lambda: give it a name=, or write a def",
    ),
    "an illegal name": (nightly, {"name": "every night"}, "is not a legal name"),
    "an illegal topic": (nightly, {"topic": "my topic"}, "topic 'my topic' is not a legal name"),
    "a number": (nightly, {"catch_up": 3600}, "catch_up=3600: give a timedelta"),
    "too short a time": (nightly, {"catch_up": timedelta(seconds=1)}, "give one minute to 31 days"),
    "too long a time": (nightly, {"catch_up": timedelta(days=32)}, "give one minute to 31 days"),
    "an unknown option": (nightly, {"keys": "a"}, "no option keys; did you mean key?"),
    "an id": (nightly, {"message_id": "A" * 32}, "so message_id is no option"),
    "an unknown database": (nightly, {"database": "other"}, "other"),
    "a zone": (nightly, {"time_zone": "Mars/Base"}, "there is no such time zone"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_declaration_is_refused_in_one_line(mq: ReliableMQ, case: str) -> None:
    function, options, said = WRONG[case]

    with pytest.raises(UsageError) as refused:
        mq.periodic("0 3 * * *", **{"topic": "reports", **options})(function)

    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_two_periodic_messages_of_one_name_are_refused(mq: ReliableMQ) -> None:
    mq.periodic("0 3 * * *", topic="reports")(nightly)

    with pytest.raises(UsageError, match="already: give name=, a name of its own"):
        mq.periodic("0 4 * * *", topic="reports")(nightly)

    mq.periodic("0 4 * * *", topic="reports", name="late")(nightly)


def test_a_decorated_function_stays_as_it_is(mq: ReliableMQ) -> None:
    assert mq.periodic("0 3 * * *", topic="reports")(nightly) is nightly


def test_a_parameter_with_another_use_may_have_a_value(mq: ReliableMQ) -> None:
    @mq.periodic("0 3 * * *", topic="reports")
    def report(tick: Tick, session: Session, limit: int = 10) -> None: ...

    (message,) = mq._declared.periodic
    assert (message.tick, message.session) == ("tick", "session")


def test_its_topic_is_a_managed_one(mq: ReliableMQ) -> None:
    mq.periodic("0 3 * * *", topic="reports")(nightly)

    assert mq._declared.is_managed("reports")


def test_without_the_extra_the_error_names_it(
    mq: ReliableMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reliable_mq.periodic import schedule

    schedule._cronsim.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "cronsim", None)

    with pytest.raises(UsageError, match=r"pip install 'reliable-mq\[periodic\]'"):
        mq.periodic("0 3 * * *", topic="reports")(nightly)
    schedule._cronsim.cache_clear()
