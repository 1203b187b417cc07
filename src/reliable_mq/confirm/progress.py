"""The progress of consumer groups, and whether it is past a stub's message. Pure."""

from reliable_mq.message import MessageQueue
from reliable_mq.outbox.stub import Stub

Progress = dict[MessageQueue, tuple[int, int]]
"""(committed, maximum) offset of a consumer group by queue."""

_FIRST_LOOKS_MAX = 200_000


class FirstLooks:
    """Remembers the state of a topic at the first look at a delayed stub.

    The broker keeps a delayed message in another topic until its time. It does not say where it
    stores the message then. But that place is below the queue ends that were seen after that time.
    So a group that has reached those ends has passed the message, however busy the topic is.

    Invariant: a stub's first look stays the same until it is forgotten. If a look is forgotten too
    early, because there are very many, its stub is only found missed later.
    """

    def __init__(self) -> None:
        self._looks: dict[str, Progress] = {}

    def of(self, stub: Stub, progress: Progress) -> Progress:
        """Return the first look at a stub's topic; without one, this look becomes it."""
        first = self._looks.setdefault(stub.message_id, progress)
        if len(self._looks) > _FIRST_LOOKS_MAX:
            del self._looks[next(iter(self._looks))]
        return first

    def forget(self, stub: Stub) -> None:
        """Forget the look at a stub that does not wait any more."""
        self._looks.pop(stub.message_id, None)


def has_reached(progress: Progress, first_look: Progress) -> bool:
    """Return whether a group has reached the queue ends of a first look.

    A queue that is gone, or that ends earlier now, has lost what was there: its broker's store was
    restored, or is a new one. Nothing more than up to its present end can be reached.
    """
    return all(
        max(0, progress[queue][0]) >= min(end, progress[queue][1])
        for queue, (_, end) in first_look.items()
        if queue in progress
    )


def has_passed(
    stub: Stub, progress: Progress | None, first_look: Progress | None = None
) -> bool | None:
    """Return whether a group has passed the place where the broker stored a stub's message.

    None: the broker did not answer. A place that does not exist any more (its queue is gone, or
    ends before it) counts as passed: no group will find the message there.

    Args:
        stub: the stub; a delayed one only after its `deliver_time`.
        progress: the group's present progress in the stub's topic.
        first_look: for a delayed stub, the topic at the first look; see `FirstLooks`.
    """
    position = stub.position
    if progress is None or position is None:
        return None
    if stub.deliver_time is not None:
        return has_reached(progress, progress if first_look is None else first_look)
    queue = MessageQueue(stub.topic, position.broker_name, position.queue_id)
    if queue not in progress:
        return True
    committed, maximum = progress[queue]
    return maximum <= position.offset or committed > position.offset
