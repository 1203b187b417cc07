"""Statistics of messages put and got: totals, rates, and sums per minute, hour and day.

Receives counts, a few per batch and per pull, never one per message. Returns the figures that tools
ask for, under Apache's names. Messages put are counted from the growth of the queues. Latencies are
measured per turn; the queues of one second share them in proportion to their messages and pulls.
Source: Apache RocketMQ `BrokerStatsManager`, `StatsItem`, `BrokerStats`, `StoreStatsService`.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from itertools import chain, islice
from typing import NamedTuple, TypeVar

from reliable_mq.broker_core.names import DEAD_LETTER_PREFIX, GIVEN_UP_TOPIC, OP_TOPIC
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.limits import COUNTERS_MAX

TOPIC_PUT_NUMS = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE = "TOPIC_PUT_SIZE"
TOPIC_PUT_LATENCY = "TOPIC_PUT_LATENCY"
GROUP_GET_NUMS = "GROUP_GET_NUMS"
GROUP_GET_SIZE = "GROUP_GET_SIZE"
GROUP_GET_LATENCY = "GROUP_GET_LATENCY"
SNDBCK_PUT_NUMS = "SNDBCK_PUT_NUMS"
BROKER_PUT_NUMS = "BROKER_PUT_NUMS"
BROKER_GET_NUMS = "BROKER_GET_NUMS"
_OF_BROKER = "BROKER_"
_WITHOUT_SYSTEM = "_WITHOUT_SYSTEM_TOPIC"
# Apache does not count the broker's own messages in these topics, nor dead letters.
_UNCOUNTED = frozenset({OP_TOPIC, GIVEN_UP_TOPIC})

# Sampling interval in ms, and number of samples per window: minute, hour, day.
WINDOWS = ((10_000, 6), (600_000, 6), (3_600_000, 24))
MINUTE = 0
_BY_WINDOW = ("_minute", "_hour", "_day")
_SAMPLE_SIZE = 3  # numbers: time, additions, value
_NO_SAMPLES = array("q")
_RATE_SECONDS = (10, 60, 600)
_SECOND_MS = 1_000
# Work of one slice, in microseconds of queues, in pulls, and in counters: up to 0.2 ms.
_SLICE_US = 200
_QUEUE_US = 5
_NEW_COUNTER_US = 2  # a new topic has three counters
_PULLS_AT_ONCE = 24
_ITEMS_AT_ONCE = 192
_NOTHING = object()
_T = TypeVar("_T")


class WindowSum(NamedTuple):
    """The sum of a window: the total, the total per second, and the average per addition."""

    sum: int
    tps: float
    avgpt: float


class StatsItem:
    """One counter: its value, the number of additions, and samples of both.

    There are three for each topic. So samples are in arrays, one for each window that has any.
    """

    __slots__ = ("_created_ms", "_day", "_hour", "_minute", "times", "value")

    def __init__(self, now_ms: int) -> None:
        self._created_ms = now_ms
        self.value = 0
        self.times = 0
        self._minute = self._hour = self._day = _NO_SAMPLES

    def sample(self, window: int, now_ms: int) -> None:
        """Store a sample of the current values."""
        samples: array[int] = getattr(self, _BY_WINDOW[window])
        if samples is _NO_SAMPLES:
            setattr(self, _BY_WINDOW[window], array("q", (now_ms, self.times, self.value)))
            return
        samples.extend((now_ms, self.times, self.value))
        if len(samples) > _SAMPLE_SIZE * (WINDOWS[window][1] + 2):
            del samples[:_SAMPLE_SIZE]

    def over(self, window: int, now_ms: int) -> WindowSum:
        """Return the sum of the last minute (0), hour (1) or day (2)."""
        interval_ms, count = WINDOWS[window]
        begin_ms = max(now_ms - interval_ms * count, self._created_ms - interval_ms)
        times = value = 0
        samples: array[int] = getattr(self, _BY_WINDOW[window])
        for at in range(0, len(samples), _SAMPLE_SIZE):
            if samples[at] > begin_ms:
                break
            times, value = samples[at + 1], samples[at + 2]
        total = self.value - value
        often = self.times - times
        seconds = max(now_ms - begin_ms, 1) / 1000
        return WindowSum(total, total / seconds, total / often if often else 0.0)


class Totals(NamedTuple):
    """Totals since the start: messages put, pulls with and without messages, messages got."""

    put: int = 0
    found: int = 0
    missed: int = 0
    given: int = 0


class _Time:
    """Total duration of a number of sends or pulls, in ms."""

    __slots__ = ("_count", "_spent_ms")

    def __init__(self) -> None:
        self._count = 0
        self._spent_ms = 0

    def add(self, count: int, each_ms: int) -> None:
        """Add `count` operations; a negative time, after the clock went back, counts as 0."""
        self._count += count
        if each_ms > 0:
            self._spent_ms += count * each_ms

    def of(self, count: int) -> int:
        """Return the share of `count` of the operations."""
        return round(count * self._spent_ms / self._count) if self._count else 0


class Statistics:
    """The counters of a broker. Invariant T1: no total ever decreases.

    Beyond COUNTERS_MAX counters, new topics, groups and queues count only in the broker's totals.

    Args:
        cluster: the broker's cluster.
        is_system: whether a topic is the broker's own.
    """

    def __init__(self, cluster: str, is_system: Callable[[str], bool]) -> None:
        self._cluster = cluster
        self._is_system = is_system
        self._items: dict[tuple[str, str], StatsItem] = {}
        self._touched: list[set[StatsItem]] = [set() for _ in WINDOWS]
        self._sampled_ms = [0] * len(WINDOWS)
        self._pulls: dict[tuple[str, str, int], list[int]] = {}
        self._batched: dict[str, int] = {}  # by topic: messages of batches, less one per batch
        self._handed: deque[tuple[int, int]] = deque()  # (log end, begin) of turns not stored yet
        self.put_time = _Time()
        self._get_time = _Time()
        self._shared_put, self._shared_get = self.put_time, self._get_time  # being counted now
        self._under_way: Iterator[None] = iter(())
        self.is_under_way = False
        self.turn_pulls = 0  # pulls with messages since the last turn
        self._seconds: deque[tuple[int, Totals]] = deque(maxlen=max(_RATE_SECONDS) + 1)
        self._day: date | None = None
        self._missed = 0
        self.totals = Totals()
        self.put_size = 0  # bytes
        self.got_size = 0  # bytes
        self.wait_ms_max = 0
        # Messages put and got, without system topics, at the last midnight and at the one before
        self.this_morning = (0, 0)
        self.yesterday_morning = (0, 0)

    def pulled(self, group: str, topic: str, queue_id: int, count: int, size: int) -> None:
        """Count a pull with `count` messages of `size` bytes in total; no messages is a miss."""
        if not count:
            self._missed += 1
            return
        counts = self._pulls.get((topic, group, queue_id))
        if counts is None:
            counts = self._pulls[topic, group, queue_id] = [0, 0, 0]
        counts[0] += count
        counts[1] += size
        counts[2] += 1
        self.turn_pulls += 1

    def batched(self, topic: str, count: int) -> None:
        """Note that one send had `count` messages."""
        self._batched[topic] = self._batched.get(topic, 0) + count - 1

    def note_turn_end(self, end: int | None, began_ms: int, now_ms: int) -> None:
        """Note the end of a turn.

        Args:
            end: the log's end after the turn; None when the turn appended nothing.
            began_ms: arrival time of its first command; `now_ms` without commands.
            now_ms: the time.
        """
        if end is not None:
            self._handed.append((end, began_ms))
        if self.turn_pulls:
            self._get_time.add(self.turn_pulls, now_ms - began_ms)
            self.turn_pulls = 0

    def stored(self, end: int, released: int, now_ms: int) -> None:
        """Note that the log is stored up to `end`, and that `released` sends were answered."""
        handed = self._handed
        if not handed or handed[0][0] > end:
            return
        oldest_ms = newest_ms = handed.popleft()[1]
        while handed and handed[0][0] <= end:
            newest_ms = handed.popleft()[1]
        if released:
            self.put_time.add(released, now_ms - (oldest_ms + newest_ms) // 2)

    def sent_back(self, group: str, topic: str, now_ms: int) -> None:
        """Count a message that a group sent back."""
        self._add(SNDBCK_PUT_NUMS, f"{topic}@{group}", 1, 1, now_ms)

    def collect(self, grown: Iterable[ConsumeQueue], now_ms: int) -> None:
        """Count messages put and pulled since the last call.

        Args:
            grown: the queues that have grown since then.
            now_ms: the time.
        """
        self._finish(self._under_way)
        self._finish(self._counting(grown, now_ms))

    def begin_sampling(self, grown: Iterable[ConsumeQueue], now_ms: int) -> None:
        """Begin `collect` and then `sample`, in slices; each `run_some` runs the next slice.

        Call this only when no such work is under way.
        """
        self._under_way = chain(self._counting(grown, now_ms), self._sampling(now_ms))
        self.is_under_way = True

    def run_some(self) -> None:
        """Run one slice of the work that is under way."""
        self.is_under_way = next(self._under_way, _NOTHING) is not _NOTHING

    def _finish(self, work: Iterator[None]) -> None:
        for _ in work:
            pass

    def _counting(self, grown: Iterable[ConsumeQueue], now_ms: int) -> Iterator[None]:
        """Count messages put and pulled; yield after each slice."""
        pulls, self._pulls = self._pulls, {}
        missed, self._missed = self._missed, 0
        self._shared_put, self.put_time = self.put_time, _Time()
        self._shared_get, self._get_time = self._get_time, _Time()
        self._add_to_totals(Totals(missed=missed))
        put = cost = 0
        for queue in grown:
            known = len(self._items)
            put += self._count_growth(queue, now_ms)
            cost += _QUEUE_US + _NEW_COUNTER_US * (len(self._items) - known)
            if cost >= _SLICE_US:
                self._add_to_totals(Totals(put=put))
                put = cost = 0
                yield
        self._add_to_totals(Totals(put=put))
        for some in _slices(pulls.items(), _PULLS_AT_ONCE):
            for (topic, group, queue_id), counts in some:
                self._count_pulls(topic, group, queue_id, counts, now_ms)
            found = sum(times for _key, (_count, _size, times) in some)
            given = sum(count for _key, (count, _size, _times) in some)
            self.got_size += sum(size for _key, (_count, size, _times) in some)
            self._add_to_totals(Totals(found=found, given=given))
            if len(some) == _PULLS_AT_ONCE:
                yield

    def _add_to_totals(self, more: Totals) -> None:
        self.totals = Totals(*(a + b for a, b in zip(self.totals, more, strict=True)))

    def _count_growth(self, queue: ConsumeQueue, now_ms: int) -> int:
        """Count the growth of a queue; return the number of new messages."""
        topic = queue.topic
        count, size = queue.take_growth()
        self.put_size += size
        if not count or topic in _UNCOUNTED or topic.startswith(DEAD_LETTER_PREFIX):
            return count
        together = 0
        if self._batched:
            batched = self._batched.pop(topic, 0)
            together = min(batched, count - 1)
            if batched > together:  # the rest is not dispatched yet, or is in other queues
                self._batched[topic] = batched - together
        times = count - together
        self._add(TOPIC_PUT_NUMS, topic, count, times, now_ms)
        self._add(TOPIC_PUT_SIZE, topic, size, times, now_ms)
        taken_ms = self._shared_put.of(times)
        self._add(TOPIC_PUT_LATENCY, f"{queue.queue_id}@{topic}", taken_ms, times, now_ms)
        self._add_of_broker(BROKER_PUT_NUMS, topic, count, now_ms)
        return count

    def _count_pulls(
        self, topic: str, group: str, queue_id: int, counts: list[int], now_ms: int
    ) -> None:
        count, size, times = counts
        key = f"{topic}@{group}"
        self._add(GROUP_GET_NUMS, key, count, times, now_ms)
        self._add(GROUP_GET_SIZE, key, size, times, now_ms)
        taken_ms = self._shared_get.of(times)
        self._add(GROUP_GET_LATENCY, f"{queue_id}@{key}", taken_ms, times, now_ms)
        self._add_of_broker(BROKER_GET_NUMS, topic, count, now_ms)

    def _add_of_broker(self, name: str, topic: str, value: int, now_ms: int) -> None:
        """Count for the whole broker. Apache does not count the number of additions here."""
        self._add(name, self._cluster, value, 0, now_ms)
        if not self._is_system(topic):
            self._add(f"{name}{_WITHOUT_SYSTEM}", self._cluster, value, 0, now_ms)

    def _add(self, name: str, key: str, value: int, times: int, now_ms: int) -> None:
        item = self._items.get((name, key))
        if item is None:
            if len(self._items) >= COUNTERS_MAX and not name.startswith(_OF_BROKER):
                return
            item = self._items[name, key] = StatsItem(now_ms)
        item.value += value
        item.times += times
        self._touched[0].add(item)

    def sample(self, now_ms: int) -> None:
        """Store samples of the counters. Call this once a second, after `collect`."""
        self._finish(self._sampling(now_ms))

    def _sampling(self, now_ms: int) -> Iterator[None]:
        """Store samples of the counters; yield after each slice."""
        self._seconds.append((now_ms, self.totals))
        for window, (interval_ms, _count) in enumerate(WINDOWS):
            if self._sampled_ms[window] <= now_ms < self._sampled_ms[window] + interval_ms:
                break  # longer windows are not due either
            self._sampled_ms[window] = now_ms
            touched, self._touched[window] = self._touched[window], set()
            for items in _slices(touched, _ITEMS_AT_ONCE):
                for item in items:
                    item.sample(window, now_ms)
                if window + 1 < len(WINDOWS):
                    self._touched[window + 1].update(items)
                if len(items) == _ITEMS_AT_ONCE:
                    yield
        today = datetime.fromtimestamp(now_ms / 1000).date()  # noqa: DTZ006 - midnight here
        if today != self._day:
            if self._day is not None:
                self.yesterday_morning, self.this_morning = self.this_morning, self.today()
            self._day = today

    def today(self) -> tuple[int, int]:
        """Return the messages put and got since the start, without system topics."""
        put = self.item(f"{BROKER_PUT_NUMS}{_WITHOUT_SYSTEM}", self._cluster)
        got = self.item(f"{BROKER_GET_NUMS}{_WITHOUT_SYSTEM}", self._cluster)
        return put.value if put else 0, got.value if got else 0

    def item(self, name: str, key: str) -> StatsItem | None:
        """Return a counter; None when nothing was counted under this name and key."""
        return self._items.get((name, key))

    def forget_topic(self, topic: str) -> None:
        """Remove the counters of a topic."""
        self._forget(lambda words: words[0] == topic)

    def forget_group(self, group: str) -> None:
        """Remove the counters of a group."""
        self._forget(lambda words: words[1:] == [group])

    def _forget(self, is_gone: Callable[[list[str]], bool]) -> None:
        """Remove the counters for which `is_gone` accepts [topic] or [topic, group]."""
        for name, key in list(self._items):
            words = key.split("@")
            if name in (TOPIC_PUT_LATENCY, GROUP_GET_LATENCY):  # their keys begin with a queue id
                words = words[1:]
            if not name.startswith(_OF_BROKER) and is_gone(words):
                del self._items[name, key]

    def rates(self) -> list[Totals | None]:
        """Return the rates of the last 10, 60 and 600 seconds, in thousandths per second.

        None: the broker has not run that long yet.
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


def _slices(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield the items in lists of `size`."""
    rest = iter(items)
    while some := list(islice(rest, size)):
        yield some
