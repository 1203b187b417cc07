"""Options that several commands share, and that are read into one value."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

BROKER_VARIABLE = "RELIABLE_MQ_BROKER"
DATABASE_VARIABLE = "RELIABLE_MQ_DATABASE"


def takes_options_of(
    read: Callable[..., object],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `read`; what `read` makes of them is its parameter `wanted`.

    Args:
        read: takes options by name, as `filter_options.stub_filter` does.
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
        # Both are read by typer.
        called.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in named}
        return called

    return decorated
