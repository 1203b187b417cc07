"""How much is put and got: totals, rates, and sums over a minute, an hour and a day.

Receives counts, a few for each batch and each pull, never one for a message; hands on what tools
ask for, under Apache's names. What was put is counted by how far queues have grown.
Source: Apache RocketMQ `BrokerStatsManager`, `StatsItem`, `BrokerStats`, `StoreStatsService`.
"""

from collections import deque
from collections.abc import Iterable
from datetime import date, datetime
from typing import NamedTuple

from reliable_mq.broker_core.names import is_system_topic
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"
_WITHOUT_SYSTEM = "_WITHOUT_SYSTEM_TOPIC"

# How often a window is sampled, in ms, and how many samples it holds: minute, hour, day.
WINDOWS = ((10_000, 6), (600_000, 6), (3_600_000, 24))
_RATE_SECONDS = (10, 60, 600)
_SECOND_MS = 1_000


class Sum(NamedTuple):
    """What came in a window: how much, how much a second, and how much at a time."""

    sum: int
    tps: float
    avgpt: float


class StatsItem:
    """One counter: a value, how often it was added to, and how both were at sample times."""

    __slots__ = ("_created_ms", "_samples", "times", "value")

    def __init__(self, now_ms: int) -> None:
        self._created_ms = now_ms
        self.value = 0
        self.times = 0
        self._samples: tuple[deque[tuple[int, int, int]], ...] = tuple(
            deque(maxlen=count + 2) for _interval_ms, count in WINDOWS
        )

    def sample(self, window: int, now_ms: int) -> None:
        """Keep how it is now."""
        self._samples[window].append((now_ms, self.times, self.value))

    def over(self, window: int, now_ms: int) -> Sum:
        """Return what came in the last minute (0), hour (1) or day (2)."""
        interval_ms, count = WINDOWS[window]
        begin_ms = max(now_ms - interval_ms * count, self._created_ms - interval_ms)
        times = value = 0
        for at_ms, times_then, value_then in self._samples[window]:
            if at_ms > begin_ms:
                break
            times, value = times_then, value_then
        total = self.value - value
        often = self.times - times
        seconds = max(now_ms - begin_ms, 1) / 1000
        return Sum(total, total / seconds, total / often if often else 0.0)


class Totals(NamedTuple):
    """What came since the start: messages stored, pulls with and without any, messages given."""

    put: int = 0
    found: int = 0
    missed: int = 0
    given: int = 0


class Statistics:
    """The counters of a broker. Invariant T1: no total ever decreases."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._items: dict[tuple[str, str], StatsItem] = {}
        self._touched: tuple[set[StatsItem], ...] = tuple(set() for _ in WINDOWS)
        self._sampled_ms = [0] * len(WINDOWS)
        self._pulls: dict[tuple[str, str], list[int]] = {}
        self._seconds: deque[tuple[int, Totals]] = deque(maxlen=max(_RATE_SECONDS) + 1)
        self._day: date | None = None
        self._missed = 0
        self.totals = Totals()
        self.put_size = 0
        self.wait_ms_max = 0
        # Messages put and given without system topics, until last midnight and the one before it
        self.this_morning = (0, 0)
        self.yesterday_morning = (0, 0)

    def pulled(self, group: str, topic: str, count: int, size: int) -> None:
        """Count a pull that gave `count` messages of `size` bytes together; none is a miss."""
        if not count:
            self._missed += 1
            return
        counts = self._pulls.get((topic, group))
        if counts is None:
            counts = self._pulls[topic, group] = [0, 0, 0]
        counts[0] += count
        counts[1] += size
        counts[2] += 1

    def sent_back(self, group: str, topic: str, now_ms: int) -> None:
        """Count a message that a group sent back."""
        self._add(SNDBCK_PUT_NUMS, f"{topic}@{group}", 1, 1, now_ms)

    def collect(self, grown: Iterable[ConsumeQueue], now_ms: int) -> None:
        """Count what was put and pulled since the last call.

        Args:
            grown: the queues that have grown since.
            now_ms: the time.
        """
        put = found = given = 0
        for queue in grown:
            count, size = queue.take_growth()
            if count:
                put += count
                self._count_put(queue.topic, count, size, now_ms)
        pulls, self._pulls = self._pulls, {}
        for (topic, group), (count, size, times) in pulls.items():
            found += times
            given += count
            key = f"{topic}@{group}"
            self._add(GROUP_GET_NUMS, key, count, times, now_ms)
            self._add(GROUP_GET_SIZE, key, size, times, now_ms)
            self._add_of_broker(BROKER_GET_NUMS, topic, count, times, now_ms)
        put_before, found_before, missed_before, given_before = self.totals
        missed, self._missed = self._missed, 0
        self.totals = Totals(
            put_before + put, found_before + found, missed_before + missed, given_before + given
        )

    def _count_put(self, topic: str, count: int, size: int, now_ms: int) -> None:
        self.put_size += size
        self._add(TOPIC_PUT_NUMS, topic, count, count, now_ms)
        self._add(TOPIC_PUT_SIZE, topic, size, count, now_ms)
        self._add_of_broker(BROKER_PUT_NUMS, topic, count, count, now_ms)

    def _add_of_broker(self, name: str, topic: str, value: int, times: int, now_ms: int) -> None:
        self._add(name, self._cluster, value, times, now_ms)
        if not is_system_topic(topic):
            self._add(f"{name}{_WITHOUT_SYSTEM}", self._cluster, value, times, now_ms)

    def _add(self, name: str, key: str, value: int, times: int, now_ms: int) -> None:
        item = self._items.get((name, key))
        if item is None:
            item = self._items[name, key] = StatsItem(now_ms)
        item.value += value
        item.times += times
        self._touched[0].add(item)

    def sample(self, now_ms: int) -> None:
        """Keep how the counters are. Call it once a second, after `collect`."""
        self._seconds.append((now_ms, self.totals))
        for window, (interval_ms, _count) in enumerate(WINDOWS):
            if self._sampled_ms[window] <= now_ms < self._sampled_ms[window] + interval_ms:
                break  # the longer ones are not due either
            self._sampled_ms[window] = now_ms
            touched = self._touched[window]
            for item in touched:
                item.sample(window, now_ms)
            if window + 1 < len(WINDOWS):
                self._touched[window + 1].update(touched)
            touched.clear()
        today = datetime.fromtimestamp(now_ms / 1000).date()  # noqa: DTZ006 - midnight here
        if today != self._day:
            if self._day is not None:
                self.yesterday_morning, self.this_morning = self.this_morning, self.today()
            self._day = today

    def today(self) -> tuple[int, int]:
        """Return how many messages were put and given since the start, without system topics."""
        put = self.item(f"{BROKER_PUT_NUMS}{_WITHOUT_SYSTEM}", self._cluster)
        got = self.item(f"{BROKER_GET_NUMS}{_WITHOUT_SYSTEM}", self._cluster)
        return put.value if put else 0, got.value if got else 0

    def item(self, name: str, key: str) -> StatsItem | None:
        """Return a counter, None when nothing was counted under that name and key."""
        return self._items.get((name, key))

    def forget_topic(self, topic: str) -> None:
        """Forget the counters of a topic."""
        for name, key in list(self._items):
            if key.partition("@")[0] == topic and not name.startswith("BROKER"):
                del self._items[name, key]

    def rates(self) -> list[Totals | None]:
        """Return what a second brought over the last 10, 60 and 600 seconds, each in thousandths.

        None stands for a time that the broker does not run yet.
        """
        samples = self._seconds
        rates: list[Totals | None] = []
        for seconds in _RATE_SECONDS:
            if len(samples) <= seconds:
                rates.append(None)
                continue
            (then_ms, then), (now_ms, now) = samples[-seconds - 1], samples[-1]
            span_ms = max(now_ms - then_ms, 1)
            millis = (
                (b - a) * 1000 * _SECOND_MS // span_ms for a, b in zip(then, now, strict=True)
            )
            rates.append(Totals(*millis))
        return rates
