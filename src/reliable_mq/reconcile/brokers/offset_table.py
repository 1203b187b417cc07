"""The table of committed offsets, as brokers write it in files and replies. Pure.

Source: Apache RocketMQ `ConsumerOffsetManager`.
"""

from typing import Any

from reliable_mq.wire import fastjson

Progress = dict[tuple[str, str], dict[int, int]]
"""(consumer group, topic) -> queue id -> the offset of the next message."""


def committed_offsets(text: bytes) -> Progress:
    """Return the offsets in the text of a broker's offset table.

    Raises:
        ValueError: when the text is no such table.
    """
    try:
        table: dict[str, Any] = fastjson.loads(text)["offsetTable"]
        return {
            (group, topic): {int(queue): int(offset) for queue, offset in offsets.items()}
            for (topic, _, group), offsets in (
                (key.partition("@"), offsets) for key, offsets in table.items()
            )
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a table of offsets: {error!r}") from error


def group_names(text: bytes) -> frozenset[str]:
    """Return the consumer groups in the text of a broker's table of groups.

    Raises:
        ValueError: when it is no such table.
    """
    return _names(text, "subscriptionGroupTable", "consumer groups")


def topic_names(text: bytes) -> frozenset[str]:
    """Return the topics in the text of a broker's table of topics.

    Raises:
        ValueError: when it is no such table.
    """
    return _names(text, "topicConfigTable", "topics")


def _names(text: bytes, table: str, what: str) -> frozenset[str]:
    try:
        return frozenset(fastjson.loads(text)[table])
    except (KeyError, TypeError) as error:
        raise ValueError(f"no table of {what}: {error!r}") from error
