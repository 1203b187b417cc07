"""Checks the arguments of verbs against their annotations, and names the wrong one.

Not every caller uses a type checker. A verb that is `checked` checks the types of its arguments
first. Limits of values stay with the verbs. Messages and subscriptions check themselves, with
better texts.
"""

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, wraps
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.message import Message, MessageQueue

P = ParamSpec("P")
R = TypeVar("R")

_SHOWN = 100
_ITERABLES = (Sequence, Collection, Iterable)


class _Rule(NamedTuple):
    """A test of a value, and the text for the error."""

    fits: Callable[[Any], bool]
    wanted: str


def checked(*, but: Collection[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator of verbs: an argument of a wrong type raises `UsageError`.

    A check takes about a microsecond. So verbs that are called for each message check themselves.

    Args:
        but: parameters that the verb checks itself.
    """

    def decorate(verb: Callable[P, R]) -> Callable[P, R]:
        if inspect.iscoroutinefunction(verb):

            @wraps(verb)
            async def wait(*args: P.args, **kwargs: P.kwargs) -> Any:
                _check(verb, but, args[1:], kwargs)
                return await verb(*args, **kwargs)

            return cast("Callable[P, R]", wait)

        @wraps(verb)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            _check(verb, but, args[1:], kwargs)
            return verb(*args, **kwargs)

        return call

    return decorate


def checked_verbs(kind: type[R]) -> type[R]:
    """Make every public verb of a class `checked`, except those that are already."""
    for name, verb in list(vars(kind).items()):
        if inspect.isfunction(verb) and not name.startswith("_") and not _is_checked(verb):
            setattr(kind, name, checked()(verb))
    return kind


def _is_checked(verb: Callable[..., Any]) -> bool:
    return hasattr(verb, "__wrapped__")


def check_sending(timeout: float, queue: MessageQueue | None = None) -> None:
    """Check the arguments of a send, apart from its message.

    Raises:
        UsageError: when one has a wrong type.
    """
    if timeout.__class__ is not float or not math.isfinite(timeout):
        check_value("timeout", timeout, float)
    if queue is not None and not isinstance(queue, MessageQueue):
        check_value("queue", queue, MessageQueue)


def check_value(name: str, value: Any, hint: Any) -> None:
    """Check one value against an annotation.

    Raises:
        UsageError: when it has another type.
    """
    rule = _rule(hint)
    if rule is not None and not rule.fits(value):
        raise UsageError(f"{name} is {value!r:.{_SHOWN}}: give {rule.wanted}")


def check_fields(given: Any) -> None:
    """Check the fields of a struct against its annotations. Values are not shown: some are secrets.

    Raises:
        ConfigurationError: when a field has a wrong type.
    """
    kind: Any = type(given)
    for name, rule in _fields(kind):
        value = getattr(given, name)
        if not rule.fits(value):
            of_what = f"{name} of {type(given).__name__}"
            raise ConfigurationError(
                f"{of_what} is of type {type(value).__name__}: give {rule.wanted}"
            )


@cache
def _fields(kind: Any) -> tuple[tuple[str, _Rule], ...]:
    rules = ((name, _rule(hint)) for name, hint in get_type_hints(kind).items())
    return tuple((name, rule) for name, rule in rules if rule is not None)


class _Hints(NamedTuple):
    """The annotations of a verb's parameters: positional ones, `*args`, and by name."""

    by_place: tuple[tuple[str, Any], ...]
    rest: tuple[str, Any] | None
    by_name: dict[str, Any]


@cache
def _hints(verb: Callable[..., Any]) -> _Hints:
    hints = get_type_hints(verb)
    parameters = list(inspect.signature(verb).parameters.values())[1:]  # without `self`
    of_kind = [(each.kind, (each.name, hints.get(each.name, Any))) for each in parameters]
    rest = [hint for kind, hint in of_kind if kind is inspect.Parameter.VAR_POSITIONAL]
    return _Hints(
        tuple(hint for kind, hint in of_kind if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD),
        rest[0] if rest else None,
        {name: hint for _, (name, hint) in of_kind},
    )


def _check(
    verb: Callable[..., Any], but: Collection[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    hints = _hints(verb)
    given = [(*hint, value) for hint, value in zip(hints.by_place, args, strict=False)]
    if hints.rest is not None:
        given += [(*hints.rest, value) for value in args[len(hints.by_place) :]]
    given += [(name, hints.by_name.get(name, Any), value) for name, value in kwargs.items()]
    for name, hint, value in given:
        if name not in but:
            check_value(name, value, hint)


@cache
def _rule(hint: Any) -> _Rule | None:
    """Return the rule for `hint`; None: the value is not checked here."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _any_of(inner)
    if origin is Literal:
        return _Rule(lambda value: value in inner, " or ".join(map(repr, inner)))
    if origin is Mapping:
        return _mapping(*map(_rule, inner))
    if origin in _ITERABLES:
        return _elements(origin, _rule(inner[0]))
    if origin is Callable:
        return _Rule(callable, "a function")
    return _SIMPLE.get(hint) or (_instance(hint) if isinstance(hint, type) else None)


def is_integer(value: object) -> bool:
    """Return whether a value is an integer. True and False are not, although Python says so."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number. True and False are not."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and math.isfinite(value)


_SIMPLE: dict[Any, _Rule] = {
    str: _Rule(lambda value: isinstance(value, str), "text"),
    bool: _Rule(lambda value: isinstance(value, bool), "True or False"),
    int: _Rule(is_integer, "an integer"),
    float: _Rule(is_number, "a finite number"),
    NoneType: _Rule(lambda value: value is None, "None"),
}


def _instance(kind: type) -> _Rule | None:
    if kind is Message:  # it has errors of its own
        return None
    return _Rule(lambda value: isinstance(value, kind), f"a {kind.__name__}")


def _any_of(hints: Sequence[Any]) -> _Rule | None:
    rules = [_rule(hint) for hint in hints]
    known = [rule for rule in rules if rule is not None]
    if len(known) < len(rules):
        return None
    wanted = dict.fromkeys(rule.wanted for rule in known)
    return _Rule(lambda value: any(rule.fits(value) for rule in known), " or ".join(wanted))


def _mapping(key: _Rule | None, value: _Rule | None) -> _Rule:
    def fits(given: Any) -> bool:
        return isinstance(given, Mapping) and all(
            (key is None or key.fits(name)) and (value is None or value.fits(each))
            for name, each in given.items()
        )

    names = f"{key.wanted if key else 'anything'} to {value.wanted if value else 'anything'}"
    return _Rule(fits, f"a mapping of {names}")


def _elements(kind: Any, element: _Rule | None) -> _Rule:
    """Return the rule of a collection. Strings are none. Iterators are not read for the check."""

    def fits(given: Any) -> bool:
        if isinstance(given, str | bytes) or not isinstance(given, kind):
            return False
        return element is None or kind is Iterable or all(map(element.fits, given))

    return _Rule(fits, f"a sequence, each {element.wanted}" if element else "a sequence")
