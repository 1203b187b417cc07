"""What consumers by the message have in flight: checkpoints without their acknowledgements. Pure.

A broker that hands out messages (POP) writes a checkpoint, and commits the offset behind them at
once. Each acknowledgement is a record, too. Both wait in the log until the time of the checkpoint
is over. So a group may have a message whose offset it has passed.

    tag ck    {"t": topic, "q": queue, "c": group, "so": start, "pt": popped at, "it": invisible ms,
               "n": count, "d": [offset - start, …]}
    tag ack   the same names, and "ao": offset
    tag bAck  the same names, and "aol": [offset, …]

Source: Apache RocketMQ `PopCheckPoint`, `AckMsg`, `BatchAckMsg`, `PopReviveService`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from reliable_mq.limits import TIMER_SECONDS_MAX
from reliable_mq.reconcile.brokers.log_roles import TIMER_TOPIC
from reliable_mq.reconcile.brokers.offset_table import Progress
from reliable_mq.wire import fastjson
from reliable_mq.wire.properties import REAL_TOPIC
from reliable_mq.wire.properties import TAGS as TAG

REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
CHECKPOINT, ACKNOWLEDGED, ALL_ACKNOWLEDGED = "ck", "ack", "bAck"
TAGS = frozenset((CHECKPOINT, ACKNOWLEDGED, ALL_ACKNOWLEDGED))
LATE_MS = 60_000
"""So late a broker may bring back what nobody acknowledged. Apache's takes 1 to 4 s."""
INVISIBLE_MS_MAX = TIMER_SECONDS_MAX * 1000
_COUNT_MAX = 32


def holds_checkpoints(topic: str) -> bool:
    """Return whether records of a topic may be checkpoints: they wait as timed messages."""
    return topic == TIMER_TOPIC or topic.startswith(REVIVE_PREFIX)


class PopOf(NamedTuple):
    """One hand-out of one message to a group.

    Attributes:
        group: the consumer group.
        topic: where the message lies: the topic, or a retry topic of the group.
        queue_id: its queue.
        offset: its offset there.
        popped_ms: when the broker handed it out, milliseconds since the epoch.
        back_ms: when it comes back, unless it is acknowledged.
        is_ended: whether it was acknowledged, or its time was changed, which begins another one.
    """

    group: str
    topic: str
    queue_id: int
    offset: int
    popped_ms: int
    back_ms: int
    is_ended: bool


class _HandedOut(NamedTuple):
    """The messages that a group got from one queue at one time."""

    offsets: frozenset[int]
    back_ms: int


IsWanted = Callable[[str, int, int], bool]
_Key = tuple[Any, ...]  # group, topic, queue id, start offset, popped at


def note_tag(topic: str, properties: Mapping[str, str]) -> str:
    """Return the tag of a checkpoint or an acknowledgement; "": the record is something else.

    Args:
        topic: where the record lies.
        properties: those of the record.
    """
    real = topic if topic.startswith(REVIVE_PREFIX) else properties.get(REAL_TOPIC, "")
    tag = properties.get(TAG, "")
    return tag if real.startswith(REVIVE_PREFIX) and tag in TAGS else ""


def in_flight(records: Iterable[tuple[str, bytes]], now_ms: int, newest_ms: int) -> Progress:
    """Return the first offset in flight of each group and queue.

    What comes back is stored again. So a checkpoint is not over while the log has no record from
    its time or later: its broker was down.

    Args:
        records: the tag and the body of each record, in any order.
        now_ms: the moment, by the broker's clock.
        newest_ms: when the newest record of the log was stored.
    """
    popped, ended = _read(open_notes(records, now_ms, newest_ms))
    first: Progress = {}
    for key, checkpoint in popped.items():
        left = checkpoint.offsets - ended.get(key, set())
        if left:
            group, topic, queue_id = key[:3]
            queues = first.setdefault((group, topic), {})
            queues[queue_id] = min(queues.get(queue_id, min(left)), *left)
    return first


def oldest_open(records: Iterable[tuple[str, bytes]], now_ms: int, newest_ms: int) -> int | None:
    """Return when the oldest checkpoint was written whose time is not over; None: there is none.

    Only later acknowledgements can say what is in flight. The arguments are those of `in_flight`.
    """
    popped, _ = _read(open_notes(records, now_ms, newest_ms))
    return min((key[4] for key in popped), default=None)


def open_notes(
    records: Iterable[tuple[str, bytes]], now_ms: int, newest_ms: int
) -> Iterator[tuple[str, bytes]]:
    """Yield all but the checkpoints whose time is over: of three days, these are nearly all.

    The arguments are those of `in_flight`.
    """
    for tag, body in records:
        if tag == CHECKPOINT:
            try:
                fields = fastjson.loads(body)
                back_ms = int(fields["pt"]) + int(fields["it"])
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            if not is_open(back_ms, now_ms, newest_ms):
                continue
        yield tag, body


def is_open(back_ms: int, now_ms: int, newest_ms: int) -> bool:
    """Return whether a checkpoint with this time may not be over yet."""
    return back_ms + LATE_MS >= now_ms or back_ms > newest_ms


def pops_of(records: Iterable[tuple[str, bytes]], is_wanted: IsWanted) -> list[PopOf]:
    """Return how often some messages were handed out, in the order of time.

    Args:
        records: the tag and the body of each record, in any order.
        is_wanted: whether the message at a place is one of them: topic, queue id, offset.
    """
    popped, ended = _read(records)
    found: list[PopOf] = []
    for key, each in popped.items():
        group, topic, queue_id, _, popped_ms = key
        gone = ended.get(key, set())
        found += [
            PopOf(group, topic, queue_id, offset, popped_ms, each.back_ms, offset in gone)
            for offset in sorted(each.offsets)
            if is_wanted(topic, queue_id, offset)
        ]
    return sorted(found, key=lambda pop: (pop.popped_ms, pop.group))


def _read(
    records: Iterable[tuple[str, bytes]],
) -> tuple[dict[_Key, _HandedOut], dict[_Key, set[int]]]:
    """Return the checkpoints, and the offsets that are acknowledged, both by their names."""
    popped: dict[_Key, _HandedOut] = {}
    ended: dict[_Key, set[int]] = {}
    for tag, body in records:
        try:
            fields = fastjson.loads(body)
            key: _Key = (
                *(str(fields[name]) for name in ("c", "t")),
                *(int(fields[name]) for name in ("q", "so", "pt")),
            )
            if tag == CHECKPOINT:
                popped[key] = _with(popped.get(key), _offsets(fields), key[4] + int(fields["it"]))
            elif tag == ACKNOWLEDGED:
                ended.setdefault(key, set()).add(int(fields["ao"]))
            else:
                ended.setdefault(key, set()).update(map(int, fields["aol"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a note of the broker that is not understood says nothing
    return popped, ended


def _with(known: _HandedOut | None, offsets: Iterable[int], back_ms: int) -> _HandedOut:
    """Return a checkpoint with what another record of the same names says."""
    before = known or _HandedOut(frozenset(), back_ms)
    return _HandedOut(before.offsets.union(offsets), max(before.back_ms, back_ms))


def _offsets(fields: Mapping[str, Any]) -> list[int]:
    start, differences = int(fields["so"]), fields.get("d")
    if differences:
        return [start + int(each) for each in differences[:_COUNT_MAX]]
    return [start + each for each in range(min(int(fields["n"]), _COUNT_MAX))]


def not_beyond(progress: Progress, flying: Progress) -> Progress:
    """Return committed offsets that are not beyond what is in flight.

    What the group has consumed behind that offset, its consume log says.
    """
    known = dict(progress)
    for names, queues in flying.items():
        found = dict(known.get(names, {}))
        for queue_id, offset in queues.items():
            found[queue_id] = min(found.get(queue_id, offset), offset)
        known[names] = found
    return known
