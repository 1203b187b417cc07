"""How long the newest messages took on their way to the broker and from it.

Receives deliveries that a database knows. Asks brokers for their records: these have the time of
the send and of the store. A record that is not found is left out.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from reliable_mq.client.administering.thread_admin import Admin
from reliable_mq.errors import ReliableMQError
from reliable_mq.measuring.sql_latency import Leg, LegTimes, SeenDelivery, times_of
from reliable_mq.message import MessageQueue, ReceivedMessage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def broker_legs(
    admin: Admin, deliveries: Iterable[SeenDelivery], whole_name: Callable[[str], str]
) -> dict[Leg, LegTimes]:
    """Return the times of the legs that only brokers know.

    Args:
        admin: asks them.
        deliveries: the newest deliveries; a message counts once.
        whole_name: returns the name of a topic at brokers.
    """
    seconds: dict[Leg, list[float]] = {}
    first = {each.message_id: each for each in deliveries}
    for each in first.values():
        record = _record(admin, each, whole_name(each.topic))
        if record is None:
            continue
        sent, stored = _time(record.born_time_ms), _time(record.store_time_ms)
        way = (each.committed, sent, stored, each.delivered)
        legs = (Leg.RELAYED, Leg.STORED, Leg.FETCHED)
        for leg, begin, end in zip(legs, way, way[1:], strict=False):
            seconds.setdefault(leg, []).append(max(0.0, (end - begin).total_seconds()))
    return {leg: times for leg, some in seconds.items() if (times := times_of(some)) is not None}


def _record(admin: Admin, delivery: SeenDelivery, topic: str) -> ReceivedMessage | None:
    queue = MessageQueue(topic, delivery.broker_name, delivery.queue_id)
    try:
        found = admin.messages.at(queue, delivery.offset)
    except ReliableMQError:  # removed since, or its broker is away
        return None
    return next((each for each in found if each.message_id == delivery.message_id), None)


def _time(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)
