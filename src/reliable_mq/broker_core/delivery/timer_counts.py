"""How many timed messages of each topic wait: the file `config/timermetrics`.

A statistic that operators read. After a crash it may be a little off, as Apache's is.
Source: Apache RocketMQ `TimerMetrics`.
"""

from typing import Any

import msgspec

from reliable_mq.broker_core.topics import DataVersion
from reliable_mq.wire import fastjson

PATH = "config/timermetrics"


class _Count(msgspec.Struct, rename="camel"):
    count: int = 0
    time_stamp: int = 0


class _File(msgspec.Struct, rename="camel"):
    timing_count: dict[str, _Count] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)


class TimerCounts:
    """The counts by topic. `is_dirty` until they were dumped."""

    def __init__(self) -> None:
        self._file = _File()
        self.is_dirty = False

    def add(self, topic: str, change: int, now_ms: int) -> None:
        """Note that `change` more messages of a topic wait, fewer when it is negative."""
        count = self._file.timing_count.setdefault(topic, _Count())
        count.count += change
        count.time_stamp = now_ms
        self._file.data_version.advance(now_ms)
        self.is_dirty = True

    def of(self, topic: str) -> int:
        """Return how many messages of a topic wait."""
        count = self._file.timing_count.get(topic)
        return count.count if count else 0

    @property
    def total(self) -> int:
        """How many messages wait in all."""
        return sum(count.count for count in self._file.timing_count.values())

    def dump(self) -> str:
        """Return the text of the file."""
        self.is_dirty = False
        table: dict[str, Any] = msgspec.to_builtins(self._file)
        return fastjson.dumps(table).decode()

    def load(self, text: str) -> None:
        """Take the counts from the text of the file.

        Raises:
            ValueError: when the text is no such file.
        """
        self._file = msgspec.convert(fastjson.loads(text), _File, strict=False)
