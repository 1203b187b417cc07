"""Recalls of timed messages whose slot is loaded, until the slot is over.

Receives recalls, and messages that are due. Says which of these are not delivered. A recall and its
message are due in the same slot, as a rule. But a message that came when its slot was over is in a
later one. If the clock is set back and the broker starts again, a recall of it may be in its own
slot. So all recalls are kept while such a message waits.
Source: Apache RocketMQ `TimerMessageStore`.
"""

from reliable_mq.broker_core.delivery.timed_message import TimedMessage
from reliable_mq.broker_core.delivery.topic_counts import TopicCounts
from reliable_mq.broker_core.delivery.written_notes import WrittenNote
from reliable_mq.broker_core.store.timer_log import DELETE, ROLL, TimerEntry


class Recalls:
    """The recalls of the loaded slots.

    Args:
        counts: how many messages wait; a recall without its message counts until its slot is over.
        is_within_topic: whether a recall finds only messages of the topic that it was sent to.
    """

    def __init__(self, counts: TopicCounts, *, is_within_topic: bool) -> None:
        self._counts = counts
        self._is_within_topic = is_within_topic
        # By slot: the key, and the topic of the message ("" once the message was found).
        self._by_slot: dict[int, dict[str, str]] = {}

    def add(self, entry: TimerEntry, timed: TimedMessage | WrittenNote) -> None:
        """Note a message of a loaded slot, if it is a recall that does not enter the wheel again.

        Args:
            entry: it, in the timer log.
            timed: the message.
        """
        if entry.magic & DELETE and not entry.magic & ROLL:
            recalls = self._by_slot.setdefault(timed.out_ms, {})
            recalls[self._place(timed.topic, timed.deleted_key)] = timed.topic

    def _place(self, topic: str, key: str) -> str:
        return f"{topic}\0{key}" if self._is_within_topic else key

    def takes_back(self, timed: TimedMessage, *, is_recall: bool) -> bool:
        """Whether a message that is due is not delivered: it is recalled, or a recall itself."""
        recalls = self._by_slot.get(timed.out_ms, {})
        own = [self._place(timed.topic, key) for key in timed.own_keys]
        met = [key for key in own if key in recalls and not is_recall]
        recalls.update(dict.fromkeys(met, ""))
        return is_recall or bool(met)

    @property
    def first_ms(self) -> int | None:
        """TIMER_OUT_MS of the first slot with a recall; None: there is no recall."""
        return min(self._by_slot, default=None)

    def end(self, read_ms: int, now_ms: int) -> None:
        """Forget those of the slots before a time, which are over."""
        for out_ms in [out_ms for out_ms in self._by_slot if out_ms < read_ms]:
            for topic in filter(None, self._by_slot.pop(out_ms).values()):
                self._counts.add(topic, 1, now_ms)
