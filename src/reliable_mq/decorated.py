"""What our decorators are given: a function and the annotations of its parameters. Pure."""

import inspect
from typing import Any, get_type_hints

from reliable_mq.errors import UsageError, error_text


def check_function(given: object, begin: str, wanted: str = "a def or an async def") -> None:
    """Check that a decorator is given a function, or a method.

    The constructor of a class would be called for each message. An object with `__call__` does not
    say whether it is to be awaited, and has no annotations of its own.

    Args:
        given: what is decorated.
        begin: begins the error, such as "a handler is".
        wanted: what it must be, for the error.

    Raises:
        UsageError: it is something else.
    """
    if inspect.isroutine(given) or hasattr(given, "__wrapped__"):  # a wrapper of a function
        return
    if inspect.isclass(given):
        raise UsageError(f"{begin} {wanted}, not the class {given.__qualname__}")
    more = ": write a def that calls it" if callable(given) else ""
    raise UsageError(f"{begin} {wanted}, not {given!r:.100}{more}")


def annotations_of(function: Any, owner: str) -> dict[str, Any]:
    """Return the annotations of a function by parameter; texts are evaluated.

    Args:
        function: the function.
        owner: begins the error, such as "handler pay".

    Raises:
        UsageError: one of them cannot be read.
    """
    try:
        return get_type_hints(function)
    except NameError as error:
        raise UsageError(f"{owner}: {error}; import it at module level") from error
    except Exception as error:  # a text as an annotation is any code
        said = error_text(error)
        raise UsageError(f"{owner}: its annotations cannot be read: {said}") from error
