"""Options that several commands share, and that become one value."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

BROKER_VARIABLE = "RELIABLE_MQ_BROKER"
DATABASE_VARIABLE = "RELIABLE_MQ_DATABASE"


def takes_options_of(
    read: Callable[..., object],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of `read` to a command; the result of `read` is its parameter `wanted`.

    Args:
        read: a function of options by name, such as `filter_options.stub_filter`.
    """
    of_read = inspect.signature(read).parameters

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters

        @wraps(command)
        def called(**given: Any) -> None:
            wanted = read(**{name: given.pop(name) for name in of_read})
            command(wanted=wanted, **given)

        named = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in (*own.values(), *of_read.values())
            if each.name != "wanted"
        ]
        # typer reads both attributes.
        called.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in named}
        return called

    return decorated
