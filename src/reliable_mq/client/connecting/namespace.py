"""Namespaces: prefixes for the topics and groups of one tenant in a shared cluster.

Example: the application uses `orders` and brokers see `shop%orders`. The retry topic of its group
`payments` is `%RETRY%shop%payments`. The clients add the prefix to all input and remove it from all
output. Flows, logs, errors and brokers use whole names only.
Source: Apache RocketMQ `NamespaceUtil`, `TopicValidator`, `MixAll.isSysConsumerGroup`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar, cast, overload

import msgspec

from reliable_mq.client.connecting.routes import TEMPLATE_TOPIC, Route
from reliable_mq.client.consuming.allocation import Configured
from reliable_mq.client.consuming.subscription import Answer, Handler, Subscription
from reliable_mq.client.consuming.thread_handling import AnyHandler, SyncHandler, is_asynchronous
from reliable_mq.errors import UsageError
from reliable_mq.message import Message, MessageQueue, ReceivedMessage, SendResult
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

T = TypeVar("T")

SEPARATOR = "%"

_SYSTEM_TOPICS = frozenset(
    {TEMPLATE_TOPIC, "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "SELF_TEST_TOPIC"}
    | {"RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"}
    | {"RMQ_SYS_TRACE_TOPIC", "OFFSET_MOVED_EVENT"}
)
_SYSTEM_PREFIXES = ("rmq_sys_", "CID_RMQ_SYS_")


class Namespace:
    """Adds the namespace to names, and removes it. Without a namespace, names do not change.

    A name that is whole already does not change. Names of the brokers belong to no namespace.

    Args:
        name: the namespace, "" for none.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._lead = name + SEPARATOR

    def full_name(self, name: str) -> str:
        """Return the name of a topic or group as brokers know it."""
        # An invalid name is refused later, with a reason.
        if not self.name or not isinstance(name, str) or not name or is_of_system(name):
            return name
        prefix, bare = _apart(name)
        return name if bare.startswith(self._lead) else f"{prefix}{self._lead}{bare}"

    def own_name(self, name: str) -> str:
        """Return the name of a topic or group as the application knows it."""
        if not self.name:
            return name
        prefix, bare = _apart(name)
        return prefix + bare.removeprefix(self._lead)

    def whole_message(self, message: Message) -> Message:
        """Return the message to send for `message`. An object of another type is refused later."""
        if not self.name or not isinstance(message, Message):
            return message
        return msgspec.structs.replace(message, topic=self.full_name(message.topic))

    def whole_messages(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages to send for `messages`."""
        return [self.whole_message(each) for each in messages] if self.name else messages

    @overload
    def whole_queue(self, queue: MessageQueue) -> MessageQueue: ...

    @overload
    def whole_queue(self, queue: MessageQueue | None) -> MessageQueue | None: ...

    def whole_queue(self, queue: MessageQueue | None) -> MessageQueue | None:
        """Return a queue as brokers know it.

        Raises:
            UsageError: when it is not a MessageQueue.
        """
        if queue is None:
            return None
        if not isinstance(queue, MessageQueue):
            raise UsageError(f"{queue!r:.100} is not a MessageQueue: get one from `topic_route`")
        if not self.name:
            return queue
        return msgspec.structs.replace(queue, topic=self.full_name(queue.topic))

    def whole_subscription(self, subscription: Subscription) -> Subscription:
        """Return a subscription as brokers know it. Its allocation sees whole names too."""
        if not self.name:
            return subscription
        allocation = subscription.allocation
        if isinstance(allocation, Configured):
            allocation = Configured(tuple(map(self.whole_queue, allocation.queues)))
        return msgspec.structs.replace(
            subscription,
            group=self.full_name(subscription.group),
            topics={self.full_name(topic): wanted for topic, wanted in subscription.topics.items()},
            allocation=allocation,
        )

    def own_queue(self, queue: MessageQueue) -> MessageQueue:
        """Return a queue as the application knows it."""
        if not self.name:
            return queue
        return msgspec.structs.replace(queue, topic=self.own_name(queue.topic))

    def own_queues(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Return queues as the application knows them."""
        return set(map(self.own_queue, queues))

    def by_own_queue(self, table: Mapping[MessageQueue, T]) -> dict[MessageQueue, T]:
        """Return a table by queues as the application knows them."""
        return {self.own_queue(queue): value for queue, value in table.items()}

    def own_result(self, result: SendResult) -> SendResult:
        """Return the result of a send with the application's names."""
        if not self.name:
            return result
        return msgspec.structs.replace(result, queue=self.own_queue(result.queue))

    def own_results(self, results: list[SendResult | Exception]) -> list[SendResult | Exception]:
        """Return results of sends with the application's names; errors do not change."""
        if not self.name:
            return results
        return [r if isinstance(r, Exception) else self.own_result(r) for r in results]

    def own_message(self, message: ReceivedMessage) -> ReceivedMessage:
        """Return a delivery with the application's names."""
        if not self.name:
            return message
        return msgspec.structs.replace(
            message, topic=self.own_name(message.topic), queue=self.own_queue(message.queue)
        )

    def own_messages(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return deliveries with the application's names."""
        return [self.own_message(each) for each in messages] if self.name else messages

    def own_route(self, route: Route) -> Route:
        """Return a route with the application's names."""
        if not self.name:
            return route
        return msgspec.structs.replace(
            route,
            topic=self.own_name(route.topic),
            writable=tuple(map(self.own_queue, route.writable)),
            readable=tuple(map(self.own_queue, route.readable)),
        )

    def own_handler(self, handler: AnyHandler) -> AnyHandler:
        """Return a handler that calls `handler` with the application's names."""
        if not self.name:
            return handler
        if is_asynchronous(handler):
            awaited = cast("Handler", handler)

            async def handle(messages: Sequence[ReceivedMessage]) -> Answer:
                return await awaited([self.own_message(each) for each in messages])

            return handle
        called = cast("SyncHandler", handler)
        return lambda messages: called([self.own_message(each) for each in messages])


NO_NAMESPACE = Namespace("")


def is_of_system(name: str) -> bool:
    """Return whether a topic or group belongs to the brokers, and to no namespace."""
    return name in _SYSTEM_TOPICS or name.startswith(_SYSTEM_PREFIXES)


def _apart(name: str) -> tuple[str, str]:
    """Return the prefix of a retry or dead-letter topic, and the rest of the name."""
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
