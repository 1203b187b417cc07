"""What an application says about a periodic message. Values only."""

import inspect
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, get_type_hints

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from reliable_mq.decorated import annotations_of, check_function
from reliable_mq.errors import UsageError
from reliable_mq.limits import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX
from reliable_mq.misspelt import meant
from reliable_mq.names import check_name
from reliable_mq.outbox.message_options import ManyOptions
from reliable_mq.periodic.schedule import Schedule

CATCH_UP_SECONDS_MIN = 60.0
CATCH_UP_SECONDS_MAX = 31 * 86_400.0
_OPTIONS = sorted(get_type_hints(ManyOptions).keys() - {"message_id"})


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """One tick of a periodic message.

    Attributes:
        name: the name of the periodic message.
        time: when the tick was due, in the time zone of its schedule. Not the time of the call.
        skipped: how many ticks before this one were missed, and are not made up. At most 1000 are
            counted.
    """

    name: str
    time: datetime
    skipped: int = 0


class PeriodicMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A periodic message and the function that makes its payload; see `ReliableMQ.periodic`.

    `tick` and `session` are the names of the function's parameters for them; None: it has none.
    `catch_up` is in seconds; None: only the newest missed tick is made up.
    """

    name: str
    schedule: Schedule
    topic: str
    function: Callable[..., Any]
    tick: str | None
    session: str | None
    catch_up: float | None
    database: str
    options: ManyOptions[Any]


class PeriodicState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a periodic message; see `ReliableMQ.periodic_messages`.

    Attributes:
        name: its name.
        schedule: its cron expressions and their time zone.
        topic: the topic of its messages.
        database: the name of its database.
        next_tick: its next tick. None: there is none within fifty years.
        last_tick: the newest tick that was fired. None: no tick was.
        fire_date: when that tick was fired.
        message_id: the id of that tick's first message. None: the tick had no message.
        fired: how many ticks were fired.
        failures: how many tries of the next tick failed in a row.
        note: the error of the last failed try.
        overdue: a tick that should have been fired minutes ago. None: no tick is overdue.
    """

    name: str
    schedule: str
    topic: str
    database: str
    next_tick: datetime | None
    last_tick: datetime | None = None
    fire_date: datetime | None = None
    message_id: str | None = None
    fired: int = 0
    failures: int = 0
    note: str | None = None
    overdue: datetime | None = None


def periodic_message(
    function: Callable[..., Any],
    expressions: tuple[str, ...],
    *,
    topic: str,
    name: str | None,
    time_zone: str,
    catch_up: timedelta | None,
    database: str,
    options: ManyOptions[Any],
) -> PeriodicMessage:
    """Return the declaration of a periodic message; see `ReliableMQ.periodic`.

    Raises:
        UsageError: the function cannot be called, or an argument is wrong.
        ConfigurationError: a name is not legal.
    """
    check_function(function, "@mq.periodic decorates", "a function")
    if name is None:
        name = getattr(function, "__name__", "")
        if name == "<lambda>":
            raise UsageError("@mq.periodic decorates a lambda: give it a name=, or write a def")
    check_name("periodic message", name, GROUP_LENGTH_MAX)
    check_name("topic", topic, TOPIC_LENGTH_MAX)
    what = f"periodic message {name}"
    _check_options(options, what)
    tick, session = _parameters_of(function, what)
    return PeriodicMessage(
        name=name,
        schedule=Schedule(expressions, time_zone, what=what),
        topic=topic,
        function=function,
        tick=tick,
        session=session,
        catch_up=_seconds_of(catch_up, what),
        database=database,
        options=options,
    )


def _seconds_of(catch_up: timedelta | None, what: str) -> float | None:
    if catch_up is None:
        return None
    if not isinstance(catch_up, timedelta):
        raise UsageError(
            f"{what}: catch_up={catch_up!r:.100}: give a timedelta, as timedelta(hours=6), or None"
        )
    seconds = catch_up.total_seconds()
    if not CATCH_UP_SECONDS_MIN <= seconds <= CATCH_UP_SECONDS_MAX:
        raise UsageError(
            f"{what}: catch_up={catch_up}: give one minute to 31 days; None makes up the newest "
            "missed tick only"
        )
    return seconds


def _check_options(options: Mapping[str, object], what: str) -> None:
    if "message_id" in options:
        raise UsageError(f"{what}: each message has an id of its own, so message_id is no option")
    if unknown := options.keys() - set(_OPTIONS):
        known = sorted((*_OPTIONS, "catch_up", "database", "name", "time_zone"))
        raise UsageError(f"{what}: no option {min(unknown)}{meant(min(unknown), known)}")


def _parameters_of(function: Callable[..., Any], what: str) -> tuple[str | None, str | None]:
    """Return the names of the parameters for the tick and for the session."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"{what}: its function is an async def: write a def that makes the payload; what must "
            "be awaited belongs into a consumer of the topic"
        )
    hints = annotations_of(function, what)
    found: dict[type, str] = {}
    for parameter in inspect.signature(function).parameters.values():
        hint = hints.get(parameter.name)
        kind = _kind_of(hint, found)
        if kind is not None and parameter.kind is not parameter.POSITIONAL_ONLY:
            found[kind] = parameter.name
        elif parameter.default is parameter.empty:
            raise UsageError(
                f"{what}: its parameter {parameter.name!r} cannot be filled: it may have one of "
                "type Tick and one of type Session"
            )
    return found.get(Tick), found.get(Session)


def _kind_of(hint: object, found: Collection[type]) -> type | None:
    if not isinstance(hint, type) or issubclass(hint, AsyncSession):
        return None
    return next(
        (kind for kind in (Tick, Session) if issubclass(hint, kind) and kind not in found), None
    )
