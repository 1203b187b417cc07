"""Receipt handles: the text by which a consumer acknowledges a message, or keeps it longer. Values.

A handle is the `POP_CK` of the message (`wire/pop_handle.py`) and its offset in the log, which a
dead letter needs.
Source: Apache RocketMQ `ReceiptHandle`.
"""

from typing import NamedTuple

from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.wire.pop_handle import (
    NORMAL,
    RETRY,
    RETRY_V2,
    HandleInvalid,
    PopHandle,
    parse_handle,
    stored_topic,
)

_LOG_OFFSET = 8  # its place
_SIZE_MAX = 1024


class Handle(NamedTuple):
    """A receipt handle. `log_offset`: -1 if it has none."""

    popped: PopHandle
    log_offset: int
    text: str

    def real_topic(self, topic: str, group: str) -> str:
        """Return the topic in which the message lies: a message that came back is in a retry topic.

        Raises:
            RpcRefused: when the handle names none.
        """
        return real_topic(self.popped, topic, group)


def real_topic(popped: PopHandle, topic: str, group: str) -> str:
    """Return `Handle.real_topic` of a handle."""
    if popped.kind not in (NORMAL, RETRY, RETRY_V2):
        raise RpcRefused(Code.INTERNAL_SERVER_ERROR, "the receipt handle has an unknown kind")
    return stored_topic(topic, group, popped.kind)


def read_handle(text: str) -> Handle:
    """Return what a receipt handle says.

    Raises:
        RpcRefused: when it is none.
    """
    fields = text.count(" ") + 1 if len(text) <= _SIZE_MAX else 0
    if fields < _LOG_OFFSET:
        raise RpcRefused(
            Code.INTERNAL_SERVER_ERROR, f"Parse failed: a receipt handle of {fields} fields"
        )
    try:
        has_place = fields > _LOG_OFFSET
        log_offset = int(text.split(" ", _LOG_OFFSET + 1)[_LOG_OFFSET]) if has_place else -1
        return Handle(parse_handle(text), log_offset, text)
    except (HandleInvalid, ValueError) as error:
        raise RpcRefused(
            Code.INTERNAL_SERVER_ERROR, f"the receipt handle cannot be read: {error}"
        ) from error
