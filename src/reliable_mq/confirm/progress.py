"""How far consumer groups have come, and whether that is past a stub's message. Pure."""

from reliable_mq.message import MessageQueue
from reliable_mq.outbox.stub import Stub

Progress = dict[MessageQueue, tuple[int, int]]
"""(committed, maximum) offset of a consumer group by queue."""

_FIRST_LOOKS_MAX = 200_000


class FirstLooks:
    """Remembers what a topic looked like when a delayed stub was first looked at.

    The broker keeps a delayed message in another topic until its time has come; where it then
    stores it is not told. But it is below the ends that the queues had after that time, so a group
    that has come to those ends has passed it, however busy the topic is.

    Invariant: a stub's first look stays the same until it is forgotten. What is forgotten too
    early, because there are very many, is only missed later.
    """

    def __init__(self) -> None:
        self._looks: dict[str, Progress] = {}

    def of(self, stub: Stub, progress: Progress) -> Progress:
        """Return the first look at a stub's topic; this one, when there was none."""
        first = self._looks.setdefault(stub.message_id, progress)
        if len(self._looks) > _FIRST_LOOKS_MAX:
            del self._looks[next(iter(self._looks))]
        return first

    def forget(self, stub: Stub) -> None:
        """Forget the look at a stub that waits no longer."""
        self._looks.pop(stub.message_id, None)


def has_passed(
    stub: Stub, progress: Progress | None, first_look: Progress | None = None
) -> bool | None:
    """Say whether a group has gone past the place where the broker stored a stub's message.

    None when the broker could not be asked. A place that does not exist any more (its queue is
    gone, or ends before it) is passed: nobody will find the message there.

    Args:
        stub: the stub; a delayed one only after its `deliver_time`.
        progress: of the group in the stub's topic, now.
        first_look: for a delayed stub, the topic when it was first looked at; see `FirstLooks`.
    """
    position = stub.position
    if progress is None or position is None:
        return None
    if stub.deliver_time is not None:
        ends = progress if first_look is None else first_look
        return all(
            progress[queue][0] >= end for queue, (_, end) in ends.items() if queue in progress
        )
    queue = MessageQueue(stub.topic, position.broker_name, position.queue_id)
    if queue not in progress:
        return True
    committed, maximum = progress[queue]
    return maximum <= position.offset or committed > position.offset
