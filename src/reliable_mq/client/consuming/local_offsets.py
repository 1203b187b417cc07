"""Local offsets: in a broadcasting group, each member reads all queues and keeps its own offsets.

It converts offsets to and from the text of a file. The format is that of Apache's client, so each
of the two can use the other's files.
Source: Apache RocketMQ `LocalFileOffsetStore`, `OffsetSerializeWrapper`.
"""

from collections.abc import Mapping
from typing import Protocol

from reliable_mq.message import MessageQueue
from reliable_mq.wire import fastjson

OFFSET_NOT_KNOWN = -1


class LocalOffsets(Protocol):
    """The offsets of one member of a broadcasting group."""

    def find(self, queue: MessageQueue) -> int:
        """Return the next offset to be read in `queue`, or `OFFSET_NOT_KNOWN`."""

    def remember_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Remember `offsets`. Those of other queues stay, even of queues in no current route."""

    def save(self) -> None:
        """Make noted offsets survive the process.

        Raises:
            StoreError: when that fails.
        """

    def close(self) -> None:
        """Release them for another process."""


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
        ValueError: when it cannot be decoded.
    """
    try:
        table = fastjson.loads(text)["offsetTable"]
        return {
            MessageQueue(str(key["topic"]), str(key["brokerName"]), int(key["queueId"])): int(at)
            for key, at in ((dict(pairs), at) for pairs, at in table.items())
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a table of offsets: {error!r}") from error
