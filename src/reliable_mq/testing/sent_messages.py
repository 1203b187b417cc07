"""Which of the messages that were sent are those that a test wants. Values only."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from reliable_mq.message import ReceivedMessage
from reliable_mq.outbox.payload import encode_payload

SHOWN_MAX = 10


class ExpectedMessage(msgspec.Struct, frozen=True):
    """What a message must be; None and an empty mapping ask for nothing."""

    payload: Any = None
    tag: str | None = None
    key: object = None
    ordering_key: object = None
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)

    def is_met_by(self, message: ReceivedMessage) -> bool:
        """Say whether a message is what is wanted."""
        return (
            (self.payload is None or _same(self.payload, message.body))
            and self.tag in (None, message.tag)
            and (self.key is None or str(self.key) in message.keys)
            and (self.ordering_key is None or str(self.ordering_key) == message.ordering_key)
            and self.properties.items() <= message.properties.items()
        )


def refuse_unless_sent(
    topic: str, sent: Sequence[ReceivedMessage], wanted: ExpectedMessage, times: int
) -> list[ReceivedMessage]:
    """Return the messages that are wanted.

    Raises:
        AssertionError: when there are not exactly `times`; shows what was sent instead.
    """
    found = [message for message in sent if wanted.is_met_by(message)]
    if len(found) == times:
        return found
    lines = [f"  {_line(message)}" for message in sent[:SHOWN_MAX]]
    if len(sent) > SHOWN_MAX:
        lines.append(f"  and {len(sent) - SHOWN_MAX} more")
    asked = ", ".join(
        f"{name}={value!r}"
        for name in wanted.__struct_fields__
        if (value := getattr(wanted, name)) not in (None, {})
    )
    text = f"{len(found)} messages of topic {topic} with {asked or 'anything'}, not {times}"
    raise AssertionError("\n".join([f"{text}; sent were:", *(lines or ["  none"])]))


def _same(payload: Any, body: bytes) -> bool:
    """Say whether a body is what this payload is on the wire, whatever the order of its fields."""
    encoded, _ = encode_payload(payload)
    if encoded == body:
        return True
    if isinstance(payload, bytes | str):
        return False
    try:
        return bool(msgspec.json.decode(encoded) == msgspec.json.decode(body))
    except msgspec.DecodeError:
        return False


def _line(message: ReceivedMessage) -> str:
    parts = [message.body.decode(errors="replace")[:200]]
    parts += [f"tag={message.tag}"] if message.tag else []
    parts += [f"key={' '.join(message.keys)}"] if message.keys else []
    parts += [f"ordering_key={message.ordering_key}"] if message.ordering_key else []
    return " ".join(parts)
