"""Logs pulls that a broker refuses: one line when it begins, one when the topic is read again.

It receives the result of each pull and the time. All queues of a topic that get the same answer
share the line: a deleted topic would otherwise have one for each queue, again and again.
"""

import logging

from reliable_mq.errors import InvariantBroken, ProtocolError, RemoteError
from reliable_mq.message import MessageQueue
from reliable_mq.telemetry import client_events
from reliable_mq.telemetry.message_facts import queue_facts
from reliable_mq.telemetry.outages import Outages
from reliable_mq.wire.codes import ResponseCode

log = logging.getLogger(__name__)

_NO_SUBSCRIPTION = "the consumer's subscription not exist"
_OTHER_TOPICS = (
    "code {code}: the broker has no subscription of this group to this topic: probably another "
    "application has the same group name and subscribes to other topics, and each takes the "
    "other's queues; give each application a group name of its own (reliable-mq doctor names both)"
)


class PullFaults:
    """The pulls of one consumer group that fail now.

    Invariant: a queue is known only while its pulls fail; a topic has kinds of faults only while
    one of its queues is known.

    Args:
        group: the group's name.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._outages = Outages()
        self._failing: set[MessageQueue] = set()
        self._kinds: dict[str, set[str]] = {}  # by topic

    def failed(
        self, queue: MessageQueue, error: RemoteError | ProtocolError, seconds: float
    ) -> None:
        """Note that a pull failed at a time of the monotonic clock."""
        code = error.code if isinstance(error, RemoteError) else 0
        kind = f"{queue.topic} {type(error).__name__} {code}"
        self._failing.add(queue)
        self._kinds.setdefault(queue.topic, set()).add(kind)
        is_told = self._outages.lose(kind, seconds)
        event = client_events.PULL_FAILED if is_told else client_events.PULL_UNANSWERED
        event.log(log, group=self._group, **queue_facts(queue), error=_in_words(error))

    def works(self, queue: MessageQueue, seconds: float) -> None:
        """Note that the pulls of a queue work again."""
        lost = self._ended(queue, seconds)
        if lost is not None:
            client_events.PULLS_WORK.log(log, group=self._group, topic=queue.topic, seconds=lost)

    def left(self, queue: MessageQueue) -> None:
        """Forget a queue that is not read any more."""
        self._ended(queue, 0.0)

    def _ended(self, queue: MessageQueue, seconds: float) -> float | None:
        """Return how long a topic could not be read, if that was logged and no queue fails now."""
        self._failing.discard(queue)
        if any(each.topic == queue.topic for each in self._failing):
            return None
        kinds = self._kinds.pop(queue.topic, set())
        ended = [self._outages.find(kind, seconds) for kind in kinds]
        return max((lost for lost in ended if lost is not None), default=None)

    def invariants(self) -> None:
        """Check that a topic has kinds of faults if, and only if, one of its queues fails.

        Raises:
            InvariantBroken: it is not so.
        """
        if self._kinds.keys() != {each.topic for each in self._failing}:
            raise InvariantBroken(f"group {self._group}: a topic fails without a queue")


def _in_words(error: RemoteError | ProtocolError) -> object:
    """Return an error, or its likely reason, where the broker's words do not say it."""
    if (
        isinstance(error, RemoteError)
        and error.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        and error.remark.startswith(_NO_SUBSCRIPTION)
    ):
        return _OTHER_TOPICS.format(code=error.code)
    return error
