"""Receipt handles: the text by which a consumer acknowledges a message, or keeps it longer. Values.

A handle is the `POP_CK` of the message and its offset in the log, which a dead letter needs:

    startOffset popTime invisibleTime reviveQueue kind broker queue queueOffset [logOffset]

Source: Apache RocketMQ `ReceiptHandle`, `ExtraInfoUtil`, `KeyBuilder`.
"""

from typing import NamedTuple

from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.names import RETRY_PREFIX

_FIELDS_MIN = 8
_SIZE_MAX = 1024


class Handle(NamedTuple):
    """A receipt handle; times in milliseconds. `log_offset`: -1 if it has none."""

    start_offset: int
    popped_at: int
    invisible_ms: int
    revive_queue: int
    kind: str
    broker: str
    queue_id: int
    offset: int
    log_offset: int
    text: str

    @property
    def visible_at(self) -> int:
        """When the message appears again."""
        return self.popped_at + self.invisible_ms

    def real_topic(self, topic: str, group: str) -> str:
        """Return the topic in which the message lies: a message that came back is in a retry topic.

        Raises:
            RpcRefused: when the handle names none.
        """
        if self.kind == "0":
            return topic
        if self.kind == "1":
            return f"{RETRY_PREFIX}{group}_{topic}"
        if self.kind == "2":
            return f"{RETRY_PREFIX}{group}+{topic}"
        raise RpcRefused(Code.INTERNAL_SERVER_ERROR, "the receipt handle has an unknown kind")


def read_handle(text: str) -> Handle:
    """Return what a receipt handle says.

    Raises:
        RpcRefused: when it is none.
    """
    parts = text.split(" ") if len(text) <= _SIZE_MAX else []
    if len(parts) < _FIELDS_MIN:
        raise RpcRefused(
            Code.INTERNAL_SERVER_ERROR, f"Parse failed: a receipt handle of {len(parts)} fields"
        )
    try:
        return Handle(
            *(int(parts[0]), int(parts[1]), int(parts[2]), int(parts[3]), parts[4], parts[5]),
            *(int(parts[6]), int(parts[7])),
            int(parts[8]) if len(parts) > _FIELDS_MIN else -1,
            text,
        )
    except ValueError as error:
        raise RpcRefused(
            Code.INTERNAL_SERVER_ERROR, f"the receipt handle cannot be read: {error}"
        ) from error


def check_of(
    start_offset: str, popped_at: str, invisible_ms: str, revive_queue: str, kind: str,
    broker: str, queue_id: int, offset: int,
) -> str:  # fmt: skip
    """Return the `POP_CK` of a message that a broker has handed out."""
    return (
        f"{start_offset} {popped_at} {invisible_ms} {revive_queue} {kind} {broker} {queue_id}"
        f" {offset}"
    )
