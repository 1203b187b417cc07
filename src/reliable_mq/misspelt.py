"""What a misspelt name was meant to be. Pure."""

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, isfunction, signature
from typing import Any, ParamSpec, TypeVar

from reliable_mq.errors import UsageError

_DECORATORS = {
    "consumer": 'consumer("orders", group="payments")',
    "idempotent": 'idempotent(key="request_id")',
    "periodic": 'periodic("0 3 * * *", topic="reports")',
    "transaction_listener": 'transaction_listener("orders")',
}
"""How a decorator is written, by its name."""

WORDS_OF_OTHERS = {
    **dict.fromkeys(("retries", "max_retries", "attempts", "tries"), "max_attempts"),
    **dict.fromkeys(("workers", "threads", "prefetch"), "concurrency"),
    **dict.fromkeys(("db", "dsn", "url", "db_url", "engine"), "database"),
    **dict.fromkeys(("postgres", "postgres_url"), "database"),
    **dict.fromkeys(("namesrv", "name_server", "nameserver", "broker_url", "rocketmq"), "broker"),
    **dict.fromkeys(("cache", "backend", "result_backend", "valkey", "valkey_url"), "redis"),
}
"""The words of other libraries for our settings and options: no close match finds what they mean.

They count for parameters, where the parameter exists, and for variables of the environment."""

_OTHER_WORDS = {
    **WORDS_OF_OTHERS,
    **dict.fromkeys(("backoff", "retry_delay", "retry_delays"), "retry_waits"),
    **dict.fromkeys(("timeout", "visibility_timeout"), "lease"),
    **dict.fromkeys(("countdown", "delay_seconds"), "delay"),
    **dict.fromkeys(("eta", "at", "run_at", "scheduled_at"), "deliver_at"),
    **dict.fromkeys(("headers", "metadata", "attributes"), "properties"),
    **dict.fromkeys(("partition_key", "routing_key", "message_group"), "ordering_key"),
    "groups": "required_groups",
    "using": "database",  # Django's word
}
"""Those for our parameters."""
_WAIT_WORDS = ("countdown", "delay", "delay_seconds", "eta", "seconds", "timeout", "wait")
"""The words for what `Retry` calls `after`."""
_BY_ITSELF = {
    **dict.fromkeys(
        ("autoretry_for", "autoretry", "retry_for", "retry_on", "retry_backoff"),
        ": a handler that raises is called again by itself, see max_attempts and retry_waits; "
        "leave it out",
    ),
    **dict.fromkeys(
        ("acks_late", "auto_ack", "no_ack"),
        ": a message is acknowledged after the COMMIT of its handler; leave it out",
    ),
}
"""What other libraries have to be asked for -> what is done here by itself."""
_ALIAS_WORDS = ("database", "db", "alias")
"""The words for what Django calls `using`."""

P = ParamSpec("P")
R = TypeVar("R")


_EXAMPLES = {name: f"@mq.{written}" for name, written in _DECORATORS.items()} | {
    "topic": 'mq.topic("orders", groups=["payments"])',
    "send": 'mq.send("orders", {"id": order.id}, key=order.id)',
    "send_many": 'mq.send_many("orders", payloads, key=lambda payload: payload["id"])',
    "Reject": 'Reject("the card was refused")',
    "Retry": "Retry(after=5)",
    "transaction": 'mq.transaction(database="billing")',
    "ReliableMQ": 'mq = ReliableMQ("shop", broker="127.0.0.1:9876", database="sqlite:///shop.db")',
}
"""How a call is written, by the name of the function."""


class NameUnknown(UsageError, TypeError):
    """There is no parameter or field of this name; the text has the nearest one."""


class CallIncomplete(UsageError, TypeError):
    """A call lacks an argument, or has one more than it takes; the text says how to write it."""


def meant(name: str, known: Iterable[str]) -> str:
    """Return the end of an error's text: "; did you mean tag?", or all names that there are."""
    names = list(known)
    if _OTHER_WORDS.get(name) in names:
        return f"; did you mean {_OTHER_WORDS[name]}?"
    if name in _WAIT_WORDS and "after" in names:
        return "; did you mean after?"
    if name in _BY_ITSELF and "max_attempts" in names:
        return _BY_ITSELF[name]
    if name in _ALIAS_WORDS and "using" in names:
        return "; did you mean using?"
    return did_you_mean(name, names) or f"; there are {', '.join(names)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error's text: "; did you mean tag?", or "" if no known name is near."""
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def check_names(of_what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Check names that were given.

    Raises:
        NameUnknown: one of them is not known.
    """
    names = list(known)
    for name in given:
        if name not in names:
            raise NameUnknown(f"{of_what} has no {name!r}{meant(name, names)}")


def names_checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function name the parameter that a misspelt one was meant to be.

    For functions that are not called for each message: it costs a call.
    """
    return names_checked_as(function)(function)


def names_checked_as(shown: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the calls of a function as `names_checked` does, by the parameters of another one.

    For a method that overrides `shown`, and passes most of its parameters on.
    """
    return _checked_as(shown, is_named=True)


def parentheses_checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make a decorator that needs parentheses say so; `names_checked` does that, too."""
    return parentheses_checked_as(function)(function)


def parentheses_checked_as(shown: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the calls of a decorator as `parentheses_checked` does, as `names_checked_as`."""
    return _checked_as(shown, is_named=False)


def _checked_as(
    shown: Callable[..., Any], *, is_named: bool
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    shape = signature(shown)
    own = shape.parameters.values()
    known = [each.name for each in own if each.kind is not Parameter.POSITIONAL_ONLY][1:]

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = function.__name__

        @wraps(function)
        def called(*args: P.args, **named: P.kwargs) -> R:
            _check_parentheses(name, args)
            if is_named:
                check_names(f"{name}()", named, known)
            _check_shape(name, shape, args, named)
            return function(*args, **named)

        return called

    return decorate


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """Make a call that lacks an argument, or has one too many, say how it is written.

    A right call is not looked at.
    """
    # A class is called by its own name.
    name, shape = function.__qualname__.removesuffix(".__init__"), signature(function)
    name = name.rpartition(".")[2]
    is_open = any(each.kind is Parameter.VAR_KEYWORD for each in shape.parameters.values())

    @wraps(function)
    def called(*args: P.args, **named: P.kwargs) -> R:
        try:
            return function(*args, **named)
        except TypeError:
            if not is_open:
                check_names(f"{name}()", named, [*shape.parameters][1:])
            _check_shape(name, shape, args, named)
            raise

    return called


def _check_shape(
    name: str, shape: Signature, args: tuple[object, ...], named: Mapping[str, object]
) -> None:
    """Check that nothing is missing, and nothing is given by its place that has a name.

    Raises:
        CallIncomplete: otherwise.
    """
    try:
        shape.bind(*args, **named)
    except TypeError as error:
        said = str(error).removeprefix("missing a required ").replace("'", "")
        lacks = said.rpartition(": ")[2] if said != str(error) else ""
        fault = f"{lacks} is missing" if lacks else "options are given by name"
        how = f": write {_EXAMPLES[name]}" if name in _EXAMPLES else ""
        raise CallIncomplete(f"{name}(): {fault}{how}") from None


def _check_parentheses(name: str, args: tuple[object, ...]) -> None:
    """Check that a decorator did not get its function at once: `@mq.consumer`.

    Raises:
        UsageError: it did.
    """
    if name in _DECORATORS and len(args) > 1 and isfunction(args[1]):
        raise UsageError(f"@mq.{name} needs parentheses: write @mq.{_DECORATORS[name]}")
