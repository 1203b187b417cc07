"""How far each consumer group has come in each queue, and `config/consumerOffset.json`.

An offset is the queue offset of the next message to consume.
Source: Apache RocketMQ `ConsumerOffsetManager`.
"""

from typing import Any

import msgspec

from reliable_mq.broker_core.topics import DataVersion
from reliable_mq.wire import fastjson

PATH = "config/consumerOffset.json"
_SEPARATOR = "@"


class OffsetTable:
    """Offsets by (topic, group) and queue. `is_dirty` until it was dumped."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.version = DataVersion()
        self.is_dirty = False

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the group's offset, or None when it never committed one."""
        return self._offsets.get((topic, group), {}).get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the group's offset. It may go back: a reset does that."""
        self._offsets.setdefault((topic, group), {})[queue_id] = offset
        self.is_dirty = True

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has an offset."""
        return sorted(topic for topic, owner in self._offsets if owner == group)

    def remove_topic(self, topic: str) -> None:
        """Forget all groups' offsets of a topic."""
        for key in [key for key in self._offsets if key[0] == topic]:
            del self._offsets[key]
            self.is_dirty = True

    def to_json(self) -> dict[str, Any]:
        """Return the table as the file has it."""
        return {
            "dataVersion": msgspec.to_builtins(self.version),
            "offsetTable": {
                f"{topic}{_SEPARATOR}{group}": queues
                for (topic, group), queues in self._offsets.items()
            },
        }

    def dump(self) -> str:
        """Return the text of the file."""
        self.is_dirty = False
        return fastjson.dumps(self.to_json(), indent=True).decode()

    def load(self, text: str) -> None:
        """Take the offsets from the text of the file.

        Raises:
            ValueError: when the text is no such file.
        """
        loaded = fastjson.loads(text)
        for name, queues in loaded.get("offsetTable", {}).items():
            topic, _, group = name.partition(_SEPARATOR)
            offsets = {int(queue_id): int(offset) for queue_id, offset in queues.items()}
            self._offsets[topic, group] = offsets
        self.version = msgspec.convert(loaded.get("dataVersion", {}), DataVersion)
