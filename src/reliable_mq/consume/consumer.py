"""What an application says about a consumer. Values only."""

import inspect
import math
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from reliable_mq.client.checked import check_fields, is_number
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.consume.payload import Decoder, decoder_of
from reliable_mq.decorated import annotations_of, check_function
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.idempotency.key_reading import KeyReader
from reliable_mq.limits import (
    INVISIBLE_SECONDS_MAX,
    INVISIBLE_SECONDS_MIN,
    RETRY_ATTEMPTS_MAX,
)
from reliable_mq.message import ReceivedMessage
from reliable_mq.outbox.transaction_block import TransactionBlock
from reliable_mq.outcomes import RETRY_SECONDS_MAX
from reliable_mq.settings import MAIN_DATABASE

DEFAULT_CONCURRENCY = 8
SERIES_MAX = 32
"""Most messages that a thread is handed at once to handle them one after another."""
_WAITS_MAX = 100
_NEVER = 2**31 - 1
"""More attempts than the consume log can count."""


class CallPlan(NamedTuple):
    """How a handler is called: the names of its parameters by what they are given."""

    function: Callable[..., Any]
    payload: str | None
    session: str | None
    message: str | None
    decode: Decoder | None  # None: the payload is the body itself, or is not wanted
    is_async: bool
    payload_type: Any = Any


def plan_of(function: Callable[..., Any]) -> CallPlan:
    """Read a handler's parameters: the payload, a `Session` or `AsyncSession`, a `ReceivedMessage`.

    Raises:
        UsageError: when it is no function, a parameter cannot be filled or an annotation cannot be
            read.
    """
    check_function(function, "a handler is")
    name = getattr(function, "__qualname__", repr(function))
    hints = annotations_of(function, f"handler {name}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"handler {name}: it yields, so calling it would not run it; let it return, or send in "
            "the handler's transaction: mq.transaction(session)"
        )
    is_async = inspect.iscoroutinefunction(function)
    wanted = AsyncSession if is_async else Session
    found: dict[str, str] = {}
    payload_type: Any = Any
    for parameter in inspect.signature(function).parameters.values():
        hint = _without_none(hints.get(parameter.name, Any))
        _refuse_of_requests(f"handler {name}: {parameter.name!r}", hint, parameter.default, wanted)
        is_class = isinstance(hint, type)
        if is_class and issubclass(hint, Session | AsyncSession):
            if not issubclass(hint, wanted):
                raise UsageError(
                    f"handler {name}: {'an async def' if is_async else 'a def'} takes "
                    f"{'an AsyncSession' if is_async else 'a Session'}, not {hint.__name__}"
                )
            role = "session"
        elif hint is ReceivedMessage:
            role = "message"
        elif parameter.default is not parameter.empty and "payload" in found:
            continue
        else:
            role, payload_type = "payload", hint
        if role in found and found[role] == "self":
            raise UsageError(
                f"handler {name}: it is a method, and nobody has an object for it: decorate a "
                "function outside of the class"
            )
        if role in found:
            raise UsageError(
                f"handler {name}: {found[role]!r} and {parameter.name!r} would both get the {role}:"
                " a handler takes one payload, whole; annotate a session with Session or "
                "AsyncSession, and the message with ReceivedMessage"
            )
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(f"handler {name}: *args and **kwargs cannot be filled")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise UsageError(f"handler {name}: {parameter.name!r} must not be positional-only")
        found[role] = parameter.name
    return CallPlan(
        function,
        found.get("payload"),
        found.get("session"),
        found.get("message"),
        # Who does not ask for the payload gets any message, whatever its body is.
        _decoder(payload_type if "payload" in found else bytes, name),
        is_async,
        payload_type,
    )


def _refuse_of_requests(what: str, hint: Any, default: Any, session: type) -> None:
    """Refuse a parameter that only the endpoints of a web framework are given.

    Raises:
        UsageError: it is one.
    """
    if isinstance(hint, type) and issubclass(hint, TransactionBlock):
        raise UsageError(
            f"{what}: no {hint.__name__} is given to a handler: annotate it with "
            f"{session.__name__}, and send within `mq.transaction(session)`"
        )
    if type(default).__module__ == "fastapi.params":
        raise UsageError(
            f"{what} is a dependency of FastAPI, which nobody fills here: annotate it with "
            f"{session.__name__}, or call the function in the handler"
        )


def _without_none(hint: Any) -> Any:
    """Return `Session` for `Session | None`, and so on: it is always given."""
    (one, *others) = [each for each in get_args(hint) if each is not NoneType] or [hint]
    is_given = isinstance(one, type) and issubclass(one, Session | AsyncSession | ReceivedMessage)
    return one if is_given and not others else hint


def _decoder(wanted: Any, handler: str) -> Decoder | None:
    return None if wanted is bytes else decoder_of(wanted, f"handler {handler}")


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """One registered handler and how it is to be fed; see `ReliableMQ.consumer`."""

    plan: CallPlan
    topic: str
    group: str
    tag: str = "*"
    ordered: bool = True
    batch: int = 1
    max_attempts: int = RETRY_ATTEMPTS_MAX
    retry_waits: tuple[float, ...] | None = None
    log_receipt: bool = False
    lease: float
    concurrency: int = DEFAULT_CONCURRENCY
    database: str = MAIN_DATABASE
    read_key: KeyReader | None = None
    is_enveloped: bool = False
    has_declared_topic: bool = False
    by: Literal["queue", "message"] = "queue"

    def __post_init__(self) -> None:
        if isinstance(self.tag, list | tuple | set):
            tags = " || ".join(map(str, self.tag))
            raise ConfigurationError(f"tag={self.tag!r}: write several tags as one text, {tags!r}")
        check_fields(self)
        if not self.lease > 0:
            raise UsageError(f"lease={self.lease}: it must be positive seconds")
        if not 1 <= self.max_attempts < _NEVER:
            raise UsageError(
                f"max_attempts={self.max_attempts}: it must be 1 or more, and below {_NEVER}"
            )
        if "|" in self.tag.replace("||", ""):
            raise ConfigurationError(f"tag={self.tag!r}: tags are separated by ||, as 'a || b'")
        self.subscription()

    def subscription(self) -> Subscription:
        """Return what the client is asked for.

        Attempts are counted by the claim, where a crash counts too; so the client itself never
        gives a message up.

        Raises:
            ConfigurationError: when a name or number is not legal.
        """
        return Subscription(
            group=self.group,
            topics={self.topic: self.tag},
            ordered=self.ordered,
            max_attempts=_NEVER,
            concurrency=self.concurrency,
            batch=self.batch,
            # A receipt says that a handler was begun: it is written directly before each.
            series=1 if self.batch > 1 or self.plan.is_async or self.log_receipt else SERIES_MAX,
            has_declared_topics=self.has_declared_topic,
            takes_faulty=True,  # or nobody would be told of its dead letter
            handling_seconds=math.inf,  # the lease is renewed as long as the handler runs
            by=self.by,
            # After a death the message comes back when its claim has ended, not before.
            invisible_seconds=(
                min(max(self.lease, INVISIBLE_SECONDS_MIN), INVISIBLE_SECONDS_MAX)
                if self.by == "message"
                else None
            ),
        )


def waits_of(given: Sequence[float] | None) -> tuple[float, ...] | None:
    """Return the waits between the attempts of a consumer, in seconds; None for None.

    Raises:
        UsageError: they are not positive seconds that do not become shorter, or are too long.
    """
    if given is None:
        return None
    said = f"retry_waits={given!r:.200}: give"
    is_list = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    if not is_list or not all(is_number(each) for each in given):
        raise UsageError(f"{said} seconds in a tuple, as (1, 5, 30)")
    if not 1 <= len(given) <= _WAITS_MAX:
        raise UsageError(f"{said} 1..{_WAITS_MAX} waits; the last one repeats")
    if not 0 < min(given) <= max(given) <= RETRY_SECONDS_MAX:
        raise UsageError(f"{said} waits above 0 and up to {RETRY_SECONDS_MAX:g} seconds")
    if list(given) != sorted(given):
        raise UsageError(f"{said} waits that do not become shorter")
    return tuple(map(float, given))
