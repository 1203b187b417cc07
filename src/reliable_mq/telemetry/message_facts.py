"""What a log line says of the messages and the queue that it is about."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

NAMED_MAX = 3
"""How many messages of a call a line names."""
NO_KEY = "-"


class ToldMessage(Protocol):
    """A message that was sent, or received."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def message_id(self) -> str:
        """The message id."""

    @property
    def keys(self) -> Sequence[str]:
        """The business keys."""


class ToldQueue(Protocol):
    """A queue of a topic at a broker."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def broker_name(self) -> str:
        """The broker."""

    @property
    def queue_id(self) -> int:
        """The number of the queue."""


def facts_of(message: ToldMessage) -> dict[str, Any]:
    """Return the fields `topic`, `message_id` and `key` of a line about one message."""
    return {"topic": message.topic, "message_id": message.message_id, "key": key_of(message)}


def facts_of_many(messages: Sequence[ToldMessage]) -> dict[str, Any]:
    """Return the fields `topic`, `message_ids` and `keys` of a line about a handler call."""
    named = messages[:NAMED_MAX]
    more = " …" if len(messages) > len(named) else ""
    return {
        "topic": messages[0].topic,
        "message_ids": ", ".join(each.message_id for each in named) + more,
        "keys": ", ".join(map(key_of, named)) + more,
    }


def key_of(message: ToldMessage) -> str:
    """Return the business keys of a message with spaces between them; "-": it has none."""
    return " ".join(message.keys) or NO_KEY


def facts_in(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields `message_id` and `key` of a line about a message, from its properties."""
    return {
        "message_id": properties.get("UNIQ_KEY", NO_KEY),
        "key": properties.get("KEYS") or NO_KEY,
    }


def queue_facts(queue: ToldQueue) -> dict[str, Any]:
    """Return the fields `topic`, `broker` and `queue_id` of a line about a queue."""
    return {"topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
