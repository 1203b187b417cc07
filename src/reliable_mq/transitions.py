"""State machines as literal tables, (state, event) -> state. An illegal event is refused."""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from reliable_mq.errors import UsageError

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


def after(table: Mapping[tuple[S, E], S], state: S, event: E, who: str) -> S:
    """Return the state after `event`.

    Args:
        table: the state machine.
        state: its current state.
        event: the event.
        who: the object and its state, for a person: "a stub that is VOIDED".

    Raises:
        UsageError: the event is illegal in this state; nothing has changed.
    """
    found = table.get((state, event))
    if found is None:
        raise UsageError(f"{who} cannot take the event {event.value!r}")
    return found
