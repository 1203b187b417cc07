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

from collections.abc import Iterable, Mapping
from typing import Any

from reliable_mq.limits import TIMER_SECONDS_MAX
from reliable_mq.reconcile.brokers.log_roles import TIMER_TOPIC
from reliable_mq.reconcile.brokers.offset_table import Progress
from reliable_mq.wire import fastjson

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


def in_flight(records: Iterable[tuple[str, bytes]], now_ms: int, newest_ms: int) -> Progress:
    """Return the first offset in flight of each group and queue.

    What comes back is stored again. So a checkpoint is not over while the log has no record from
    its time or later: its broker was down.

    Args:
        records: the tag and the body of each record, in any order.
        now_ms: the moment, by the broker's clock.
        newest_ms: when the newest record of the log was stored.
    """
    popped: dict[tuple[Any, ...], set[int]] = {}
    ended: dict[tuple[Any, ...], set[int]] = {}
    for tag, body in records:
        try:
            fields = fastjson.loads(body)
            key = tuple(fields[name] for name in ("c", "t", "q", "so", "pt"))
            if tag == CHECKPOINT:
                back_ms = fields["pt"] + fields["it"]
                if back_ms + LATE_MS >= now_ms or back_ms > newest_ms:
                    popped.setdefault(key, set()).update(_offsets(fields))
            elif tag == ACKNOWLEDGED:
                ended.setdefault(key, set()).add(int(fields["ao"]))
            else:
                ended.setdefault(key, set()).update(map(int, fields["aol"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a note of the broker that is not understood says nothing
    first: Progress = {}
    for key, offsets in popped.items():
        left = offsets - ended.get(key, set())
        if left:
            group, topic, queue_id = str(key[0]), str(key[1]), int(key[2])
            queues = first.setdefault((group, topic), {})
            queues[queue_id] = min(queues.get(queue_id, min(left)), *left)
    return first


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
