"""What a cluster told, with the names in it as an application knows them that has a namespace.

Flows know whole names only; the faces let what goes in be made whole and what comes out be named as
the application's own. Without a namespace nothing is touched.
"""

from collections.abc import Iterable
from typing import Any, TypeVar, cast

import msgspec

from reliable_mq.client.administering.cluster_facts import ClusterFacts
from reliable_mq.client.connecting.namespace import Namespace
from reliable_mq.message import MessageQueue, ReceivedMessage

T = TypeVar("T")


def owned(names: Namespace, told: T) -> T:
    """Return what was told, every queue and message in it named as the application's own."""
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
    """Return the topics or groups that are the application's or the brokers', by their own names.

    The values are the whole names; those of other namespaces are left out.
    """
    found = {names.own(whole): whole for whole in known}
    return {own: whole for own, whole in found.items() if names.whole(own) == whole}


def own_facts(names: Namespace, facts: ClusterFacts) -> ClusterFacts:
    """Return what a cluster said; its topics are the application's own ones and the brokers'."""
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
    """Return a message that `owned` gave, as it lies at its broker."""
    if not names.name:
        return message
    return msgspec.structs.replace(
        message, topic=names.whole(message.topic), queue=whole_queue(names, message.queue)
    )


def whole_queue(names: Namespace, queue: MessageQueue) -> MessageQueue:
    """Return a queue as brokers know it."""
    return msgspec.structs.replace(queue, topic=names.whole(queue.topic))
