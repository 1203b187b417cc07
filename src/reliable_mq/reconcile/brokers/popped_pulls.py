"""The notes of a running broker about popped messages, read by pulls as any consumer may. Pure.

Receives a function that sends a request and returns the reply. It pulls two topics with the tags of
checkpoints and acknowledgements: that of timed messages, where a note waits for its time, and the
revive log, where it is then. Apache's brokers and ours answer alike. It commits no offsets.

Apache's broker keeps no notes in its log with `popConsumerKVServiceEnable=true`, and keeps them in
memory first with `enablePopBufferMerge=true`. Both are false by default.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from reliable_mq.errors import ProtocolError, RecordError, RemoteError
from reliable_mq.reconcile.brokers import topic_pulls
from reliable_mq.reconcile.brokers.log_roles import TIMER_TOPIC
from reliable_mq.reconcile.brokers.offset_table import Progress
from reliable_mq.reconcile.brokers.popped import (
    ACKNOWLEDGED,
    ALL_ACKNOWLEDGED,
    CHECKPOINT,
    INVISIBLE_MS_MAX,
    LATE_MS,
    REVIVE_PREFIX,
    in_flight,
    note_tag,
    oldest_open,
    open_notes,
)
from reliable_mq.reconcile.brokers.topic_pulls import PullStatus
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.record import iter_records

Ask = Callable[[Command], Command]
Note = tuple[str, bytes]
_Place = tuple[str, topic_pulls.QueueRange]  # a topic, and what one of its queues has

ENDS = (ACKNOWLEDGED, ALL_ACKNOWLEDGED)
_PULL_SIZE = 1024 * 1024
_NO_LIMIT = 2**62


class PulledNotes(NamedTuple):
    """Tag and body of each note; `is_whole`: none was left out because there are too many."""

    notes: list[Note]
    is_whole: bool


def pulled_in_flight(ask: Ask, cluster: str, now_ms: int, newest_ms: int) -> Progress:
    """Return the first offset that each group has in flight in each queue, by the message.

    Checkpoints are read as far back as a broker lets messages be invisible; acknowledgements from
    the first checkpoint on whose time is not over. Both are read up to the same place: the broker
    may acknowledge a checkpoint meanwhile, and have written another one for its message before.

    Args:
        ask: sends a request to the broker.
        cluster: the name of its cluster.
        now_ms: the moment, by the broker's clock.
        newest_ms: when the newest record of the log was stored.

    Raises:
        RemoteError, ProtocolError, Unavailable: when a topic cannot be read.
    """
    oldest_ms = now_ms - INVISIBLE_MS_MAX - LATE_MS
    places = _places(ask, cluster)
    pulled = _notes(ask, places, oldest_ms, (CHECKPOINT,))
    popped = list(open_notes(pulled, now_ms, newest_ms))
    first_ms = oldest_open(popped, now_ms, newest_ms)
    if first_ms is None:
        return {}
    ended = _notes(ask, places, first_ms - LATE_MS, ENDS)
    return in_flight(chain(popped, ended), now_ms, newest_ms)


def pulled_notes(
    ask: Ask,
    cluster: str,
    since_ms: int,
    tags: Iterable[str] = (CHECKPOINT, *ENDS),
    most: int = _NO_LIMIT,
) -> PulledNotes:
    """Return the notes that were stored since a time.

    Args:
        ask: sends a request to the broker.
        cluster: the name of its cluster.
        since_ms: milliseconds since the epoch, by the broker's clock.
        tags: those of the wanted notes.
        most: look at the newest records of each queue only, so many.

    Raises:
        RemoteError, ProtocolError, Unavailable: when a topic cannot be read.
    """
    places = [
        (topic, _since(ask, topic, queue, since_ms)) for topic, queue in _places(ask, cluster)
    ]
    is_whole = all(queue.end - queue.begin <= most for _, queue in places)
    newest = [
        (topic, queue._replace(begin=max(queue.begin, queue.end - most))) for topic, queue in places
    ]
    return PulledNotes(list(_pulled_all(ask, newest, tags)), is_whole)


def _places(ask: Ask, cluster: str) -> list[_Place]:
    """Return what the queues with notes have now.

    To change a time, a broker first writes the new checkpoint, for later, and then acknowledges the
    old one. So the topic of timed messages is asked last: it has the checkpoints of what is read.
    """
    topics = f"{REVIVE_PREFIX}{cluster}", TIMER_TOPIC
    return [(topic, queue) for topic in topics for queue in _queues(ask, topic)]


def _notes(
    ask: Ask, places: Iterable[_Place], since_ms: int, tags: Iterable[str]
) -> Iterator[Note]:
    """Yield the notes that were stored since a time."""
    since = [(topic, _since(ask, topic, queue, since_ms)) for topic, queue in places]
    return _pulled_all(ask, since, tags)


def _since(
    ask: Ask, topic: str, queue: topic_pulls.QueueRange, since_ms: int
) -> topic_pulls.QueueRange:
    """Return the part of a queue that was stored since a time."""
    if queue.begin >= queue.end:
        return queue
    question = topic_pulls.ask_first_since(topic, queue.queue_id, max(0, since_ms))
    return queue._replace(begin=max(queue.begin, topic_pulls.first_in(ask(question))))


def _pulled_all(ask: Ask, places: Iterable[_Place], tags: Iterable[str]) -> Iterator[Note]:
    wanted = " || ".join(tags)
    for topic, (queue_id, begin, end) in places:
        yield from _pulled(ask, topic, queue_id, begin, end, wanted)


def _queues(ask: Ask, topic: str) -> list[topic_pulls.QueueRange]:
    """Return the queues of a topic; none if the broker has no such topic, as nobody has popped."""
    answer = ask(topic_pulls.ask_ranges(topic))
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return []
    return topic_pulls.ranges_in(answer)


def _pulled(ask: Ask, topic: str, queue_id: int, begin: int, end: int, tags: str) -> Iterator[Note]:
    at = begin
    while at < end:
        answer = ask(topic_pulls.ask_messages(topic, queue_id, at, end, _PULL_SIZE, tags))
        pulled = topic_pulls.messages_in(answer, at)
        if pulled.came is PullStatus.END:
            return
        at = pulled.next_offset
        try:
            for record in iter_records(pulled.body):
                if record.queue_offset >= end:
                    return
                if tag := note_tag(topic, record.property_map()):
                    yield tag, record.body
        except RecordError as error:
            raise ProtocolError(f"a record of {topic} is invalid: {error}") from error


def why_unknown(ask: Ask) -> str:
    """Return why the log of a broker does not say what is in flight; "": it does.

    Args:
        ask: sends a request to the broker.

    Raises:
        ProtocolError, Unavailable: when the reply is invalid, or none comes.
    """
    try:
        settings = topic_pulls.settings_in(ask(topic_pulls.ask_settings()))
    except RemoteError:  # only administrators may see them
        return ""
    for name in ("popConsumerKVServiceEnable", "enablePopBufferMerge"):
        if settings.get(name) == "true":
            return f"its setting {name}=true keeps popped messages outside of the log"
    return ""
