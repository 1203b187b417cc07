"""Recall handles: a producer names a timed message by its handle to take the message back.

    base64url of `v1 TOPIC BROKER TIME UNIQ_KEY`

`TIME` is an instant in the message's slot, in milliseconds. Source: Apache RocketMQ
`RecallMessageHandle`.
"""

import base64
import binascii
from typing import NamedTuple

_VERSION = "v1"


class RecallHandle(NamedTuple):
    """Names one timed message. `time` is an instant in its slot, in milliseconds, as text."""

    topic: str
    broker: str
    time: str
    unique_key: str


def encode_recall_handle(handle: RecallHandle) -> str:
    """Return the handle as text, in the form that brokers return to producers."""
    return base64.urlsafe_b64encode(" ".join((_VERSION, *handle)).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle | None:
    """Return the parts of a handle; None when the text is not a recall handle."""
    try:
        padding = "" if text.endswith("=") else "=" * (-len(text) % 4)
        raw = base64.b64decode(text + padding, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    version, *fields = raw.decode("utf-8", "replace").split(" ")
    if version != _VERSION or len(fields) < 4:
        return None
    return RecallHandle(*fields[:4])
