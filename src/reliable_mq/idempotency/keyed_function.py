"""A function that is called once for each key: how its key, arguments and result are read. Values.

Receives what `@mq.idempotent(…)` says and the arguments of a call. Hands on the call as the table
knows it, and the result as bytes and back. Refuses to know the database.
"""

import hashlib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_type_hints

import msgspec
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_jsonable_python
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from reliable_mq.client.checked import check_value
from reliable_mq.database.sql_key_tables import RESULT_SIZE_MAX
from reliable_mq.errors import CallRunning, KeyReused, UsageError
from reliable_mq.idempotency.business_key import BusinessKey, business_key
from reliable_mq.idempotency.key_reading import field_of
from reliable_mq.idempotency.sql_calls import CallDecision, CallFound, KeyedCall
from reliable_mq.settings import SECONDS_MAX

SCOPE_LENGTH_MAX = 127
AGAIN_SECONDS = 0.05

Source = str | Callable[..., object]
"""A parameter ("request_id", "order.id"), or a function of the same arguments."""


class IdempotentCall(msgspec.Struct, frozen=True):
    """What a function may be told of the call it runs in, in a parameter annotated so.

    `key` as people read it; `attempt` from 1; `in_doubt`: an attempt before this one began, and
    nobody knows whether it finished (promise P5).
    """

    key: str
    attempt: int = 1
    in_doubt: bool = False


class RequestedCall(NamedTuple):
    """One call as its caller makes it.

    `call`: as the table knows it; `key`: as people read it; `arguments`: by the names of
    parameters, without what is filled here; `session`: the caller's own, if one was given.
    """

    call: KeyedCall
    key: BusinessKey
    arguments: dict[str, Any]
    session: Any


class KeyedFunction:
    """One decorated function.

    Args:
        function: a `def` or `async def`.
        key: where the key is found.
        scope: the name within which keys are unique; empty: the function's own.
        compare: what must be the same when a key is used again.
        window: seconds for which a result is remembered.

    Raises:
        UsageError: when one of these cannot work.
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
        if not callable(function):
            raise UsageError(f"a def or an async def is decorated, not {function!r:.100}")
        self.name = getattr(function, "__qualname__", repr(function))
        check_value(f"{self.name}: scope", scope, str)
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        self.scope = scope or f"{function.__module__}.{self.name}"
        self.window = window
        if len(self.scope) > SCOPE_LENGTH_MAX or not self.scope.isprintable():
            raise UsageError(f"{self.name}: scope {self.scope!r} is no name of 1..127 characters")
        if not 0 < window <= SECONDS_MAX:
            raise UsageError(
                f"{self.name}: window={window}: it must be positive, a hundred years at most"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise UsageError(f"{self.name}: it yields; what it returns cannot be stored")
        try:
            hints = get_type_hints(function)
        except NameError as error:
            raise UsageError(f"{self.name}: {error}; import it at module level") from error
        given = self._whole = inspect.signature(function)
        self.session = self._filled(given, hints, Session | AsyncSession)
        self.told = self._filled(given, hints, IdempotentCall)
        self._place = self._place_of_session(given)
        self._refuse_wrong_session(hints)
        filled = {self.session, self.told}
        #: what callers see: without the parameters that are filled here
        self.signature = given.replace(
            parameters=[each for each in given.parameters.values() if each.name not in filled]
        )
        self._key = self._source(key, "key")
        several = isinstance(compare, Sequence) and not isinstance(compare, str)
        sources: Any = compare or () if several or compare is None else [compare]
        self._compared = [self._source(each, "compare") for each in sources]
        self._result = self._adapter(hints.get("return", Any))

    def asked(self, args: tuple[Any, ...], kwargs: dict[str, Any], token: str) -> RequestedCall:
        """Return the call that these arguments make.

        Raises:
            KeyInvalid: when there is no key among them.
            TypeError: when they do not fit the function.
            UsageError: when what is given as its session is none.
        """
        session, args, kwargs = self._taken_out(args, kwargs)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            if self.session is not None and any(map(_is_session, args)):
                raise UsageError(
                    f"{self.name}: {error}; give the session by its name, {self.session}=…"
                ) from error
            raise
        bound.apply_defaults()
        key = business_key(self._key(bound))
        fingerprint = None
        if self._compared:
            values = to_jsonable_python([read(bound) for read in self._compared])
            text = msgspec.json.encode(values, order="deterministic")
            fingerprint = hashlib.sha256(text).hexdigest()
        call = KeyedCall(self.scope, key.digest, key.shown, fingerprint, token, self.window)
        return RequestedCall(call, key, bound.arguments, session)

    def _taken_out(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Return the session that a caller gave, by name or place, and the other arguments."""
        if self.session is None:
            return None, args, kwargs
        place = self._place
        if self.session in kwargs:
            others = {name: value for name, value in kwargs.items() if name != self.session}
            session, kwargs = kwargs[self.session], others
        elif place is not None and len(args) > place and _is_session(args[place]):
            session, args = args[place], args[:place] + args[place + 1 :]
        else:
            return None, args, kwargs
        if isinstance(session, scoped_session | async_scoped_session):
            session = session()  # the one of this thread or task
        wanted = AsyncSession if self.is_async else Session
        if session is not None and not isinstance(session, wanted):
            raise UsageError(
                f"{self.name}: {self.session}={session!r:.100} is no {wanted.__name__}"
            )
        return session, args, kwargs

    def run(self, asked: RequestedCall, session: Any, found: CallFound) -> Any:
        """Call the function with what was asked and what is filled here; return what it returns."""
        arguments = dict(asked.arguments)
        if self.session is not None:
            arguments[self.session] = session
        if self.told is not None:
            arguments[self.told] = IdempotentCall(asked.key.shown, found.attempt, found.in_doubt)
        bound = inspect.BoundArguments(self._whole, arguments)
        return self.function(*bound.args, **bound.kwargs)

    def encode(self, result: Any) -> bytes:
        """Return a result as it is stored.

        Raises:
            UsageError: when it cannot be, or is over 1 MiB.
        """
        try:
            stored = self._result.dump_json(result, warnings="error")
        except (PydanticSerializationError, ValueError) as error:
            raise UsageError(f"{self.name}: its result cannot be stored: {error}") from error
        if b"null" in stored and _has_lost_number(result, stored):
            raise UsageError(
                f"{self.name}: its result cannot be stored: JSON knows no NaN and no infinity"
            )
        if b"NaN" in stored or b"Infinity" in stored:  # as a Decimal is written that reads none
            try:
                self._read(stored)
            except ValidationError as error:
                raise UsageError(
                    f"{self.name}: its result cannot be stored, it would not read: {error}"
                ) from error
        if len(stored) > RESULT_SIZE_MAX:
            raise UsageError(f"{self.name}: its result has {len(stored)} bytes, 1 MiB is the most")
        return stored

    def decode(self, stored: bytes | None) -> Any:
        """Return a result that was stored.

        Raises:
            UsageError: when there is none, or it is none of today's type.
        """
        if stored is None:
            raise UsageError(f"{self.name}: the result of this call could not be stored")
        try:
            return self._read(stored)
        except ValidationError as error:
            raise UsageError(f"{self.name}: a stored result does not read: {error}") from error

    def _read(self, stored: bytes) -> Any:
        return self._result.validate_json(stored, by_alias=True, by_name=True)

    def refuse(self, found: CallFound, call: KeyedCall) -> None:
        """Raise when a call is not to be made now.

        Raises:
            CallRunning: another one with its key is at it.
            KeyReused: the key stands for other arguments.
        """
        if found.answer is CallDecision.RUNNING:
            wait = max(found.wait, AGAIN_SECONDS)
            raise CallRunning(f"a call of {self.scope} with key {call.shown!r} runs", wait)
        if found.answer is CallDecision.REUSED:
            raise KeyReused(f"key {call.shown!r} of {self.scope} stands for other arguments")

    def _filled(
        self, signature: inspect.Signature, hints: Mapping[str, Any], wanted: Any
    ) -> str | None:
        """Return the one parameter of a type."""
        names = [
            name
            for name in signature.parameters
            if isinstance(hints.get(name), type) and issubclass(hints[name], wanted)
        ]
        if len(names) > 1:
            raise UsageError(f"{self.name}: {names[0]!r} and {names[1]!r} would get the same")
        if names and signature.parameters[names[0]].kind is inspect.Parameter.POSITIONAL_ONLY:
            raise UsageError(f"{self.name}: {names[0]!r} must not be positional-only")
        return names[0] if names else None

    def _place_of_session(self, given: inspect.Signature) -> int | None:
        """Return at which place callers may give the session; None: by its name only."""
        if self.session is None:
            return None
        if given.parameters[self.session].kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            return None
        return [name for name in given.parameters if name != self.told].index(self.session)

    def _refuse_wrong_session(self, hints: Mapping[str, Any]) -> None:
        if self.session is None:
            return
        if issubclass(hints[self.session], AsyncSession) != self.is_async:
            takes = (
                "an async def takes an AsyncSession" if self.is_async else "a def takes a Session"
            )
            raise UsageError(f"{self.name}: {takes}")

    def _source(self, source: Source, what: str) -> Callable[[inspect.BoundArguments], object]:
        if callable(source):
            return lambda bound: source(*bound.args, **bound.kwargs)
        if not isinstance(source, str):
            raise UsageError(f"{self.name}: {what}={source!r} is no parameter and no function")
        first, *fields = source.split(".")
        if first not in self.signature.parameters or not all(fields):
            known = ", ".join(self.signature.parameters)
            raise UsageError(f"{self.name}: {what}={source!r} is none of its parameters: {known}")

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
                f"{self.name}: no result of type {wanted!r} can be stored; annotate what it "
                "returns with a pydantic model, a dataclass, or what JSON knows"
            ) from error


def _has_lost_number(result: Any, stored: bytes) -> bool:
    """Say whether a null was stored where the result has a number that JSON does not know."""

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


def _is_session(value: object) -> bool:
    return isinstance(value, Session | AsyncSession | scoped_session | async_scoped_session)
