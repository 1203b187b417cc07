"""Offsets that a member keeps itself: of a group that broadcasts, every member reads every queue.

Receives offsets; hands on the text of a file of them, and reads one. The text is that of Apache's
client, so that the two can go on with each other's files.
Source: Apache RocketMQ `LocalFileOffsetStore`, `OffsetSerializeWrapper`.
"""

from collections.abc import Mapping
from typing import Protocol

from reliable_mq.message import MessageQueue
from reliable_mq.wire import fastjson

OFFSET_NOT_KNOWN = -1


class LocalOffsets(Protocol):
    """Where one member of a group that broadcasts has come to."""

    def find(self, queue: MessageQueue) -> int:
        """Return the next offset to be read in `queue`, or `OFFSET_NOT_KNOWN`."""

    def note(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Remember `offsets`. Other queues stay known, also those that no route names just now."""

    def save(self) -> None:
        """Make what was noted outlive the process.

        Raises:
            StoreError: when that does not succeed.
        """

    def close(self) -> None:
        """Let another process keep them."""


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the text of a file of `offsets`."""
    table = {
        (
            ("brokerName", queue.broker_name),
            ("queueId", queue.queue_id),
            ("topic", queue.topic),
        ): offset
        for queue, offset in sorted(offsets.items())
    }
    return fastjson.dumps({"offsetTable": table}, indent=True)


def decode_offsets(text: bytes) -> dict[MessageQueue, int]:
    """Return the offsets in the text of a file.

    Raises:
        ValueError: when it does not read.
    """
    try:
        table = fastjson.loads(text)["offsetTable"]
        return {
            MessageQueue(str(key["topic"]), str(key["brokerName"]), int(key["queueId"])): int(at)
            for key, at in ((dict(pairs), at) for pairs, at in table.items())
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no table of offsets: {error!r}") from error
