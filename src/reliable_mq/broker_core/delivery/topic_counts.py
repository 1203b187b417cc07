"""How many messages of each topic wait, timed ones and halves: two files that operators look at.

Statistics: nothing is decided by them, and Apache's broker shows them among its metrics. After a
crash those of timers may be a little off, as Apache's are; halves are counted when a broker opens.
Source: Apache RocketMQ `TimerMetrics`, `TransactionMetrics`.
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
    """The counts by topic. `is_dirty` until they were dumped.

    Args:
        name: what the file calls them: `OF_TIMERS` or `OF_HALVES`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._counts: dict[str, _Count] = {}
        self._version = DataVersion()
        self.is_dirty = False

    def add(self, topic: str, change: int, now_ms: int) -> None:
        """Note that `change` more messages of a topic wait, fewer when it is negative."""
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = _Count()
        count.count += change
        count.time_stamp = now_ms
        self._version.advance(now_ms)
        self.is_dirty = True

    def of(self, topic: str) -> int:
        """Return how many messages of a topic wait."""
        count = self._counts.get(topic)
        return count.count if count else 0

    @property
    def total(self) -> int:
        """How many messages wait in all."""
        return sum(count.count for count in self._counts.values())

    def dump(self) -> str:
        """Return the text of the file."""
        self.is_dirty = False
        table = {"dataVersion": self._version, self._name: self._counts}
        return fastjson.dumps(msgspec.to_builtins(table)).decode()

    def load(self, text: str) -> None:
        """Take the counts from the text of the file.

        Raises:
            ValueError: when the text is no such file.
        """
        table = msgspec.convert(fastjson.loads(text), dict[str, object])
        counts, version = table.get(self._name, {}), table.get("dataVersion", {})
        self._counts = msgspec.convert(counts, dict[str, _Count], strict=False)
        self._version = msgspec.convert(version, DataVersion, strict=False)
