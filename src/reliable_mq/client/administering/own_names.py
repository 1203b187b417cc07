"""Translates names in a cluster's answers into those of an application with a namespace.

Flows use whole names only. The clients add the namespace to input and remove it from output.
Without a namespace nothing changes.
"""

from collections.abc import Iterable
from typing import Any, TypeVar, cast

import msgspec

from reliable_mq.client.administering.cluster_facts import ClusterFacts
from reliable_mq.client.connecting.namespace import Namespace
from reliable_mq.message import MessageQueue, ReceivedMessage

T = TypeVar("T")


def owned(names: Namespace, told: T) -> T:
    """Return an answer with all its queues and messages under the application's names."""
    return cast("T", _owned(names, told)) if names.name else told


def _owned(names: Namespace, told: Any) -> Any:
    if isinstance(told, MessageQueue):
        return names.own_queue(told)
    if isinstance(told, ReceivedMessage):
        return names.own_message(told)
    if isinstance(told, list | tuple):
        return type(told)([_owned(names, each) for each in told])
    if isinstance(told, dict):
        return {name: _owned(names, each) for name, each in told.items()}
    if isinstance(told, msgspec.Struct):
        fields = {name: getattr(told, name) for name in told.__struct_fields__}
        return type(told)(**{name: _owned(names, each) for name, each in fields.items()})
    return told


def own_of(names: Namespace, known: Iterable[str]) -> dict[str, str]:
    """Return the topics or groups of the application and the brokers, by the application's names.

    Values are the whole names. Names of other namespaces are left out.
    """
    found = {names.own(whole): whole for whole in known}
    return {own: whole for own, whole in found.items() if names.whole(own) == whole}


def own_facts(names: Namespace, facts: ClusterFacts) -> ClusterFacts:
    """Return a cluster's facts; only topics of the application's namespace and of the brokers."""
    return msgspec.structs.replace(
        facts,
        topics=frozenset(own_of(names, facts.topics)),
        consumed=frozenset(map(names.own, facts.consumed)),
        subscriptions={
            names.own(group): {names.own(topic): tags for topic, tags in wanted.items()}
            for group, wanted in facts.subscriptions.items()
        },
        readers={
            names.own(topic): frozenset(map(names.own, groups))
            for topic, groups in facts.readers.items()
        },
    )


def whole_message(names: Namespace, message: ReceivedMessage) -> ReceivedMessage:
    """Return a message from `owned` with the names of its broker."""
    if not names.name:
        return message
    return msgspec.structs.replace(
        message, topic=names.whole(message.topic), queue=whole_queue(names, message.queue)
    )


def whole_queue(names: Namespace, queue: MessageQueue) -> MessageQueue:
    """Return a queue as brokers know it."""
    return msgspec.structs.replace(queue, topic=names.whole(queue.topic))
