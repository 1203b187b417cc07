"""Puts many messages into few requests, and keeps the order of each ordering key.

It receives prepared messages and the queues of their topics. It returns groups that may be sent at
the same time. The batches of one group must be sent one after another.
"""

from collections.abc import Callable, Sequence

import msgspec

from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.flow import Flow, now
from reliable_mq.client.sending.outgoing import PreparedMessage
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.sending.queue_choice import queue_of_key
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import MessageRefused, ReliableMQError
from reliable_mq.message import Message, MessageQueue

SPREAD_COUNT_MIN = 32  # smaller requests of unkeyed messages are not worth their cost

Item = tuple[int, PreparedMessage]


class QueueBatches(msgspec.Struct, frozen=True):
    """Batches for one queue, or for any queue of the topic when `queue` is None.

    `positions` has each message's position in the caller's sequence, in the order of the batches.
    """

    queue: MessageQueue | None
    batches: tuple[tuple[PreparedMessage, ...], ...]
    positions: tuple[int, ...]


def plan(
    items: Sequence[Item],
    queues_of: Callable[[str], Sequence[MessageQueue]],
    *,
    count_max: int,
    size_max: int,
    is_sent_alone: Callable[[PreparedMessage], bool] = lambda out: out.message.is_delayed,
    queue_of: Callable[[str, Sequence[MessageQueue]], MessageQueue] = queue_of_key,
) -> list[QueueBatches]:
    """Return the groups for `items`: pairs of a position and its prepared message.

    Messages with an ordering key stay in order within the group of their key's queue. Messages
    without one are spread over the queues of their topic.

    Args:
        items: the messages to send.
        queues_of: returns the writable queues of a topic.
        count_max: maximum messages in a batch.
        size_max: maximum bytes in a batch; a larger message is sent alone.
        is_sent_alone: returns whether a message of this kind cannot be in a batch.
        queue_of: returns the queue of an ordering key.
    """
    bound: dict[MessageQueue, list[Item]] = {}
    free: dict[str, list[Item]] = {}
    groups: list[QueueBatches] = []
    for item in items:
        message = item[1].message
        if not message.ordering_key and is_sent_alone(item[1]):
            groups.append(QueueBatches(None, ((item[1],),), (item[0],)))
        elif message.ordering_key:
            home = queue_of(message.ordering_key, queues_of(message.topic))
            bound.setdefault(home, []).append(item)
        else:
            free.setdefault(message.topic, []).append(item)
    for home, row in bound.items():
        groups.append(_group(home, _cut(row, count_max, size_max, is_sent_alone)))
    for topic, row in free.items():
        share = -(-len(row) // len(queues_of(topic)))
        share = min(max(share, SPREAD_COUNT_MIN), count_max)
        groups += [_group(None, [batch]) for batch in _cut(row, share, size_max, is_sent_alone)]
    return groups


def _group(queue: MessageQueue | None, batches: list[list[Item]]) -> QueueBatches:
    return QueueBatches(
        queue,
        tuple(tuple(out for _, out in batch) for batch in batches),
        tuple(position for batch in batches for position, _ in batch),
    )


def _cut(
    row: Sequence[Item],
    count_max: int,
    size_max: int,
    is_sent_alone: Callable[[PreparedMessage], bool],
) -> list[list[Item]]:
    batches: list[list[Item]] = []
    size = 0
    after_single = False
    for item in row:
        out = item[1]
        alone = is_sent_alone(out)
        full = not batches or len(batches[-1]) >= count_max or size + out.batch_size > size_max
        if full or alone or after_single:
            batches.append([])
            size = 0
        batches[-1].append(item)
        size += out.batch_size
        after_single = alone
    return batches


class SendPlan(msgspec.Struct, frozen=True):
    """The plan of a `send_many`: groups to send, and messages that have failed already."""

    groups: list[QueueBatches]
    failures: dict[int, Exception]


def plan_many(
    producer: SendFlows, routes: RouteCache, settings: ClientSettings, messages: Sequence[Message]
) -> Flow[SendPlan]:
    """Return how to send `messages` in as few requests as their order allows.

    A message that is refused, or whose topic has no route, fails without delaying the others.
    """
    instant = yield from now()
    items: list[Item] = []
    failures: dict[int, Exception] = {}
    queues: dict[str, tuple[MessageQueue, ...]] = {}
    unreachable: dict[str, ReliableMQError] = {}
    for position, message in enumerate(messages):
        try:
            out = producer.prepare(message, instant.epoch_ms)
        except MessageRefused as error:
            failures[position] = error
            continue
        topic = message.topic
        if topic not in queues and topic not in unreachable:
            try:
                route = yield from routes.to_send(topic)
                queues[topic] = route.writable
            except ReliableMQError as error:
                unreachable[topic] = error
        if topic in unreachable:
            failures[position] = unreachable[topic]
        else:
            items.append((position, out))
    groups = plan(
        items,
        queues.__getitem__,
        count_max=settings.batch_count_max,
        size_max=settings.batch_bytes_max,
        is_sent_alone=producer.is_sent_alone,
        queue_of=producer.queue_of,
    )
    return SendPlan(groups, failures)
