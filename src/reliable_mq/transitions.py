"""State machines are literal tables, (state, event) -> state; here an illegal event is refused."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from reliable_mq.errors import UsageError

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


def after(table: Mapping[tuple[S, E], S], state: S, event: E, who: str) -> S:
    """Return the state after `event`.

    Args:
        table: the machine.
        state: where it is.
        event: what happens.
        who: what it is the state of, with its state, for a person: "a stub that is VOIDED".

    Raises:
        UsageError: when the event is illegal in this state; nothing has changed then.
    """
    found = table.get((state, event))
    if found is None:
        raise UsageError(f"{who} cannot take the event {event.value!r}")
    return found
