"""A topic together with the type of its payloads. Values only."""

from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Topic(msgspec.Struct, Generic[T], frozen=True):
    """A topic whose payloads have one type; `mq.topic("orders", payload=OrderPlaced)` returns it.

    Use it instead of the name, in `send` and in `@mq.consumer`. Then a type checker compares each
    payload and each handler with the type. When the program runs, only `name` counts.
    """

    name: str
    payload: Any

    def __str__(self) -> str:
        return self.name


def name_of(topic: str | Topic[Any]) -> str:
    """Return the name of a topic. What is no `Topic` is returned as it is."""
    return topic.name if isinstance(topic, Topic) else topic
