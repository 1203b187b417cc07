"""How many timed messages and half messages of each topic wait: two files for operators.

The counts are statistics: no decision depends on them. Apache's broker shows them as metrics. After
a crash the counts of timers may be slightly wrong, as in Apache. Half messages are counted again
when the broker opens.
"""

import msgspec

from reliable_mq.broker_core.topics import DataVersion
from reliable_mq.decodable import decodable
from reliable_mq.wire import fastjson

TIMERS_PATH = "config/timermetrics"
HALVES_PATH = "config/transactionMetrics"
OF_TIMERS = "timingCount"
OF_HALVES = "transactionCount"


@decodable
class _Count(msgspec.Struct, rename="camel"):
    count: int = 0
    time_stamp: int = 0


class TopicCounts:
    """Counts by topic. `is_dirty` is True from a change until the next dump.

    Args:
        name: the name of the counts in the file: `OF_TIMERS` or `OF_HALVES`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts: dict[str, _Count] = {}
        self._version = DataVersion()
        self.is_dirty = False

    def add(self, topic: str, change: int, now_ms: int) -> None:
        """Add `change` to the number of waiting messages of a topic; it may be negative."""
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = _Count()
        count.count += change
        count.time_stamp = now_ms
        self._version.advance(now_ms)
        self.is_dirty = True

    def of(self, topic: str) -> int:
        """Return the number of waiting messages of a topic."""
        count = self._counts.get(topic)
        return count.count if count else 0

    @property
    def total(self) -> int:
        """The number of waiting messages of all topics."""
        return sum(count.count for count in self._counts.values())

    def clear(self) -> None:
        """Forget all counts: the messages are counted again."""
        self.is_dirty = self.is_dirty or bool(self._counts)
        self._counts.clear()

    def dump(self) -> str:
        """Return the content of the file, and clear `is_dirty`."""
        self.is_dirty = False
        return self.text()

    def text(self) -> str:
        """Return the counts in the format of the file and of slaves."""
        table = {"dataVersion": self._version, self._name: self._counts}
        return fastjson.dumps(msgspec.to_builtins(table)).decode()

    def load(self, text: str) -> None:
        """Load the counts from the content of the file.

        Raises:
            ValueError: when the text is not in the format of this file.
        """
        table = msgspec.convert(fastjson.loads(text), dict[str, object])
        counts, version = table.get(self._name, {}), table.get("dataVersion", {})
        self._counts = msgspec.convert(counts, dict[str, _Count], strict=False)
        self._version = msgspec.convert(version, DataVersion, strict=False)
