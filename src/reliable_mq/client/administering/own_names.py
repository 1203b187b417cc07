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


def owned(names: Namespace, answer: T) -> T:
    """Return an answer with all its queues and messages under the application's names."""
    return cast("T", _owned(names, answer)) if names.name else answer


def _owned(names: Namespace, answer: Any) -> Any:
    if isinstance(answer, MessageQueue):
        return names.own_queue(answer)
    if isinstance(answer, ReceivedMessage):
        return names.own_message(answer)
    if isinstance(answer, list | tuple):
        return type(answer)([_owned(names, each) for each in answer])
    if isinstance(answer, dict):
        return {name: _owned(names, each) for name, each in answer.items()}
    if isinstance(answer, msgspec.Struct):
        fields = {name: getattr(answer, name) for name in answer.__struct_fields__}
        return type(answer)(**{name: _owned(names, each) for name, each in fields.items()})
    return answer


def own_of(names: Namespace, known: Iterable[str]) -> dict[str, str]:
    """Return the topics or groups of the application and the brokers, by the application's names.

    Values are the whole names. Names of other namespaces are left out.
    """
    found = {names.own_name(whole): whole for whole in known}
    return {own: whole for own, whole in found.items() if names.full_name(own) == whole}


def own_facts(names: Namespace, facts: ClusterFacts) -> ClusterFacts:
    """Return a cluster's facts; only topics of the application's namespace and of the brokers."""
    return msgspec.structs.replace(
        facts,
        topics=frozenset(own_of(names, facts.topics)),
        consumed=frozenset(map(names.own_name, facts.consumed)),
        subscriptions={
            names.own_name(group): {names.own_name(topic): tags for topic, tags in wanted.items()}
            for group, wanted in facts.subscriptions.items()
        },
        readers={
            names.own_name(topic): frozenset(map(names.own_name, groups))
            for topic, groups in facts.readers.items()
        },
    )


def whole_message(names: Namespace, message: ReceivedMessage) -> ReceivedMessage:
    """Return a message from `owned` with the names of its broker."""
    if not names.name:
        return message
    return msgspec.structs.replace(
        message, topic=names.full_name(message.topic), queue=whole_queue(names, message.queue)
    )


def whole_queue(names: Namespace, queue: MessageQueue) -> MessageQueue:
    """Return a queue as brokers know it."""
    return msgspec.structs.replace(queue, topic=names.full_name(queue.topic))
