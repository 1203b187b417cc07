"""A function that is called once for each key: reads its key, arguments and result. Values only.

Receives the options of `@mq.idempotent(…)` and the arguments of a call. Returns the call in the
table's form, and encodes and decodes the result. Does not know the database.
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_jsonable_python
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from reliable_mq.client.checked import check_value
from reliable_mq.database.sql_key_tables import RESULT_SIZE_MAX
from reliable_mq.decorated import annotations_of, check_function
from reliable_mq.error_texts import words_of
from reliable_mq.errors import CallRunning, KeyInvalid, KeyReused, UsageError
from reliable_mq.idempotency.business_key import BusinessKey, business_key
from reliable_mq.idempotency.callers_sessions import (
    is_session,
    kind_of,
    refuse_open_sessions,
    session_of_scope,
)
from reliable_mq.idempotency.key_reading import field_of
from reliable_mq.idempotency.sql_calls import CallDecision, CallFound, KeyedCall
from reliable_mq.outbox.async_transaction import AsyncTransaction
from reliable_mq.outbox.sql_transaction import Transaction
from reliable_mq.settings import SECONDS_MAX

_WANTED = "give what names the request, such as an order number or its Idempotency-Key"
SCOPE_LENGTH_MAX = 127
AGAIN_SECONDS = 0.05

_JOINED = Transaction | AsyncTransaction | Connection | AsyncConnection
_ASYNC = AsyncSession | AsyncTransaction | AsyncConnection

Source = str | Callable[..., object]
"""A parameter ("request_id", "order.id"), or a function of the same arguments."""


class IdempotentCall(msgspec.Struct, frozen=True):
    """Facts about the running call, for a parameter of the function with this annotation.

    `key` in readable form; `attempt` from 1; `in_doubt`: an earlier attempt began, and it is
    unknown whether it finished (promise P5).
    """

    key: str
    attempt: int = 1
    in_doubt: bool = False


class _Injected:
    """The default of a parameter that this library fills."""

    __name__ = "injected"

    def __repr__(self) -> str:
        return "injected"


injected: Any = _Injected()
"""Default of a parameter that `@mq.idempotent` fills: `session: Session = injected`.

It tells type checkers that callers may leave the parameter out. At run time it is not needed.
"""


class RequestedCall(NamedTuple):
    """One call as its caller made it.

    `call`: in the table's form; `key`: in readable form; `arguments`: by parameter name, without
    the parameters that this library fills; `session`: the caller's own session or connection, if
    one was passed, also as a transaction.
    """

    call: KeyedCall
    key: BusinessKey
    arguments: dict[str, Any]
    session: Any


class KeyedFunction:
    """One decorated function.

    Args:
        function: a `def` or `async def`.
        key: where to find the key.
        scope: the name within which keys are unique; empty: the function's own name.
        compare: the arguments that must be the same when a key is used again.
        window: seconds that a result is kept.

    Raises:
        UsageError: one of these cannot work.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        key: Source,
        scope: str,
        compare: Source | Sequence[str] | None,
        window: float,
    ) -> None:
        check_function(function, "decorate")
        self.name = getattr(function, "__qualname__", repr(function))
        check_value(f"{self.name}: scope", scope, str)
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.scope = scope or f"{function.__module__}.{self.name}"
        self.window = window
        if len(self.scope) > SCOPE_LENGTH_MAX or not self.scope.isprintable():
            raise UsageError(f"{self.name}: scope {self.scope!r} must have 1..127 characters")
        if not 0 < window <= SECONDS_MAX:
            raise UsageError(
                f"{self.name}: window={window}: it must be positive, a hundred years at most"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(f"{self.name}: it yields; a generator's result cannot be stored")
        hints = annotations_of(function, self.name)
        given = self._whole = inspect.signature(function)
        self.session = self._filled(given, hints, Session | AsyncSession)
        self.told = self._filled(given, hints, IdempotentCall)
        #: the parameter that is a transaction or a connection of the caller, if there is one
        self.joined = self._filled(given, hints, _JOINED)
        self._place = self._place_of_session(given)
        self._refuse_wrong_sessions(hints)
        filled = {self.session, self.told}
        #: the signature for callers: without the parameters that this library fills
        self.signature = given.replace(
            parameters=[each for each in given.parameters.values() if each.name not in filled]
        )
        self._key = self._source(key, "key")
        several = isinstance(compare, Sequence) and not isinstance(compare, str)
        sources: Any = compare or () if several or compare is None else [compare]
        self._compared = [self._source(each, "compare") for each in sources]
        self._result = self._adapter(hints.get("return", Any))

    def asked(self, args: tuple[Any, ...], kwargs: dict[str, Any], token: str) -> RequestedCall:
        """Return the call with these arguments.

        Raises:
            KeyInvalid: there is no key among them.
            TypeError: they do not fit the function.
            UsageError: the session argument is not a session.
        """
        session, args, kwargs = self._taken_out(args, kwargs)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            if self.session is not None and any(map(is_session, args)):
                raise UsageError(
                    f"{self.name}: {error}; pass the session by its name, {self.session}=…"
                ) from error
            raise
        bound.apply_defaults()
        try:
            key = business_key(self._key(bound))
        except KeyInvalid as error:
            raise KeyInvalid(f"{error}: {_WANTED}") from None
        fingerprint = None
        if self._compared:
            values = to_jsonable_python([read(bound) for read in self._compared])
            text = msgspec.json.encode(values, order="deterministic")
            fingerprint = hashlib.sha256(text).hexdigest()
        call = KeyedCall(self.scope, key.digest, key.shown, fingerprint, token, self.window)
        if self.joined is not None and bound.arguments[self.joined] is not None:
            session = self._source_of(bound.arguments[self.joined])
        elif session is None:
            refuse_open_sessions(self.name, bound.arguments)
        return RequestedCall(call, key, bound.arguments, session)

    def _taken_out(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Return the session that a caller passed, by name or position, and the other arguments."""
        if self.session is None:
            return None, args, kwargs
        place = self._place
        if self.session in kwargs:
            others = {name: value for name, value in kwargs.items() if name != self.session}
            session, kwargs = kwargs[self.session], others
        elif place is not None and len(args) > place and is_session(args[place]):
            session, args = args[place], args[:place] + args[place + 1 :]
        else:
            return None, args, kwargs
        session = session_of_scope(session)
        wanted = AsyncSession if self.is_async else Session
        if session is not None and not isinstance(session, wanted):
            raise UsageError(
                f"{self.name}: {self.session}={session!r:.100} is not of type {wanted.__name__}"
            )
        return session, args, kwargs

    def _source_of(self, given: Any) -> Any:
        """Return the session or the connection of the caller's transaction."""
        wanted = (AsyncTransaction, AsyncConnection) if self.is_async else (Transaction, Connection)
        if not isinstance(given, wanted):
            names = " or ".join(each.__name__ for each in wanted)
            raise UsageError(f"{self.name}: {self.joined}={given!r:.100} is not of type {names}")
        if isinstance(given, Transaction | AsyncTransaction):
            return given.source
        return given

    def run(self, asked: RequestedCall, session: Any, found: CallFound) -> Any:
        """Call the function with the caller's arguments and the filled ones; return its result."""
        arguments = dict(asked.arguments)
        if self.session is not None:
            arguments[self.session] = session
        if self.told is not None:
            arguments[self.told] = IdempotentCall(asked.key.shown, found.attempt, found.in_doubt)
        bound = inspect.BoundArguments(self._whole, arguments)
        return self.function(*bound.args, **bound.kwargs)

    def encode(self, result: Any) -> bytes:
        """Return a result in the form that is stored.

        Raises:
            UsageError: it cannot be stored, or is over 1 MiB.
        """
        try:
            stored = self._result.dump_json(result, warnings="error")
        except (PydanticSerializationError, ValueError) as error:
            why = words_of(error)
            raise UsageError(f"{self.name}: its result cannot be stored: {why}") from error
        if b"null" in stored and _has_lost_number(result, stored):
            raise UsageError(
                f"{self.name}: its result cannot be stored: JSON has no NaN and no infinity"
            )
        if b"NaN" in stored or b"Infinity" in stored:  # a Decimal writes these but cannot read them
            try:
                self._read(stored)
            except ValidationError as error:
                why = f"it could not be read: {words_of(error)}"
                raise UsageError(f"{self.name}: its result cannot be stored, {why}") from error
        if len(stored) > RESULT_SIZE_MAX:
            raise UsageError(f"{self.name}: its result has {len(stored)} bytes, 1 MiB is the most")
        return stored

    def decode(self, stored: bytes | None) -> Any:
        """Return a stored result.

        Raises:
            UsageError: there is none, or it does not have the function's result type any more.
        """
        if stored is None:
            raise UsageError(f"{self.name}: the result of this call could not be stored")
        try:
            return self._read(stored)
        except ValidationError as error:
            why = words_of(error)
            raise UsageError(f"{self.name}: a stored result cannot be read: {why}") from error

    def _read(self, stored: bytes) -> Any:
        return self._result.validate_json(stored, by_alias=True, by_name=True)

    def refuse(self, found: CallFound, call: KeyedCall) -> None:
        """Refuse a call that must not be made now.

        Raises:
            CallRunning: another call with its key is running.
            KeyReused: the key belongs to other arguments.
        """
        if found.answer is CallDecision.RUNNING:
            wait = max(found.wait, AGAIN_SECONDS)
            raise CallRunning(f"a call of {self.scope} with key {call.shown!r} is running", wait)
        if found.answer is CallDecision.REUSED:
            raise KeyReused(f"key {call.shown!r} of {self.scope} belongs to other arguments")

    def _filled(
        self, signature: inspect.Signature, hints: Mapping[str, Any], wanted: Any
    ) -> str | None:
        """Return the name of the only parameter of a type; None: there is none."""
        names = [
            name
            for name in signature.parameters
            if (kind := kind_of(hints.get(name))) is not None and issubclass(kind, wanted)
        ]
        if len(names) > 1:
            raise UsageError(f"{self.name}: {names[0]!r} and {names[1]!r} have the same type")
        if names and signature.parameters[names[0]].kind is inspect.Parameter.POSITIONAL_ONLY:
            raise UsageError(f"{self.name}: {names[0]!r} must not be positional-only")
        return names[0] if names else None

    def _place_of_session(self, given: inspect.Signature) -> int | None:
        """Return at which position callers may pass the session; None: only by its name."""
        if self.session is None:
            return None
        if given.parameters[self.session].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            return None
        return [name for name in given.parameters if name != self.told].index(self.session)

    def _refuse_wrong_sessions(self, hints: Mapping[str, Any]) -> None:
        if self.session is not None and self.joined is not None:
            raise UsageError(
                f"{self.name}: {self.joined!r} has a session already: leave {self.session!r} out, "
                f"and use {self.joined}.session"
            )
        for name, what in (self.session, "Session"), (self.joined, "Transaction"):
            kind = None if name is None else kind_of(hints[name])
            if kind is not None and issubclass(kind, _ASYNC) != self.is_async:
                takes = (
                    f"an async def takes an Async{what}"
                    if self.is_async
                    else f"a def takes a {what}"
                )
                raise UsageError(f"{self.name}: {takes}")

    def _source(self, source: Source, what: str) -> Callable[[inspect.BoundArguments], object]:
        if callable(source):
            return lambda bound: source(*bound.args, **bound.kwargs)
        if not isinstance(source, str):
            raise UsageError(f"{self.name}: {what}={source!r} is not a parameter or a function")
        first, *fields = source.split(".")
        if first not in self.signature.parameters or not all(fields):
            known = ", ".join(self.signature.parameters)
            raise UsageError(f"{self.name}: {what}={source!r} is not a parameter; use {known}")

        def read(bound: inspect.BoundArguments) -> object:
            value = bound.arguments[first]
            for name in fields:
                value = field_of(value, name)
            return value

        return read

    def _adapter(self, wanted: Any) -> TypeAdapter[Any]:
        try:
            if wanted in (bytes, bytes | None):
                return TypeAdapter(
                    wanted, config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
                )
            return TypeAdapter(wanted)
        except PydanticSchemaGenerationError as error:
            raise UsageError(
                f"{self.name}: a result of type {wanted!r} cannot be stored; annotate the result "
                "as a pydantic model, a dataclass, or a type of JSON"
            ) from error


def _has_lost_number(result: Any, stored: bytes) -> bool:
    """Return whether JSON null was stored in place of a number that JSON cannot represent."""

    def differs(value: Any, written: Any) -> bool:
        if isinstance(value, float):
            return written is None and not math.isfinite(value)
        if isinstance(value, dict) and isinstance(written, dict):
            return any(map(differs, value.values(), written.values()))
        if isinstance(value, list) and isinstance(written, list):
            return any(map(differs, value, written))
        return False

    values = to_jsonable_python(result, by_alias=False, inf_nan_mode="constants", fallback=str)
    return differs(values, from_json(stored))
