"""What a person lets be deleted: a topic, a consumer group.

As `reliable-mq topic delete` and `group delete` do. The preview says what is lost, and the person
types the name: a topic that is deleted by mistake cannot be had back.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import func, select

from reliable_mq.cli.remote_words import words_of
from reliable_mq.client.administering.cluster_reply import ClusterReply
from reliable_mq.client.administering.thread_admin import Admin
from reliable_mq.console.deeds import Chosen, Deed, NothingToDo, Preview, Sealed
from reliable_mq.console.deeds_cluster import named_at_brokers, now_of, one_part
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.users import Role
from reliable_mq.console.work import Order, Part
from reliable_mq.database.row_values import StubStatus
from reliable_mq.errors import NoRoute, NotFound, ReliableMQError
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

_GROUPS_SHOWN = 20


def _where(answers: ClusterReply[list[str]]) -> str:
    """Return the brokers that have it.

    Raises:
        NothingToDo: a broker does not answer.
    """
    if answers.failures:
        away = [f"{name}: {words_of(error)}" for name, error in answers.failures.items()]
        raise NothingToDo(f"a broker does not answer, so nothing is deleted: {'; '.join(away)}")
    return ", ".join(answers.value) or "the name servers only"


def _stored(admin: Admin, topic: str) -> int:
    """Return how many messages a topic has."""
    try:
        status = admin.topics.status(topic).value
    except (NotFound, NoRoute):
        return 0
    return sum(each.end - each.first for each in status.queues)


def _lag_line(admin: Admin, group: str, topic: str) -> str:
    try:
        lag = admin.offsets.progress(group, topic).value.lag
    except ReliableMQError as error:
        return f"group {group}: its lag is not known: {words_of(error)}"
    return f"group {group} has not consumed {lag:,} of them" if lag else f"group {group}: all done"


def _open_stubs(sources: ConsoleSources, topic: str) -> int:
    """Return how many stubs of a topic are not confirmed. They have it without a namespace."""
    found, own = 0, sources.own_name(topic)
    for name in sources.databases:
        with sources.reading(name) as (database, connection):
            stub = database.stubs.c
            unconfirmed = stub.status == StubStatus.UNCONFIRMED.value
            counted = select(func.count()).select_from(database.stubs)
            found += connection.scalar(counted.where(unconfirmed, stub.topic == own)) or 0
    return found


def _look_topic(sources: ConsoleSources, chosen: Chosen) -> Preview:
    topic = named_at_brokers(sources, chosen, "topic")
    with sources.admin() as admin:
        where = _where(admin.topics.delete(topic, dry_run=True))
        stored = _stored(admin, topic)
        groups = admin.topics.consumers(topic).value
        lags = [_lag_line(admin, group, topic) for group in groups[:_GROUPS_SHOWN]]
    rest = len(groups) - len(lags)
    stubs = _open_stubs(sources, topic)
    happens = [
        "Nobody can read its messages any more; those that come until then are lost, too.",
        "A sender with the right to do so creates the topic again, without these messages.",
    ]
    if stubs:
        happens.append(
            f"{stubs:,} stubs of it are not confirmed: void them first, or they are sent again."
        )
    return Preview(
        total=1,
        lines=[
            f"topic {topic} at {where}, with {stored:,} messages",
            *(lags or ["no group has consumed it"]),
            *([f"and {rest} other groups"] if rest else []),
        ],
        happens=happens,
        doubles=[],
        seen_at=now_of(sources),
    )


def _delete_parts(
    sources: ConsoleSources,
    sealed: Sealed,
    order: Order,
    kind: str,
    delete: Callable[[Admin, str, bool], ClusterReply[list[str]]],
) -> Iterator[Part]:
    """Yield the one part of a delete.

    Args:
        kind: what is deleted, "topic" or "group".
        delete: deletes it; with True it only looks for it.
    """
    name = named_at_brokers(sources, sealed.chosen, kind)

    def act() -> tuple[dict[str, Any], Mapping[str, ReliableMQError]]:
        with sources.admin() as admin:
            _where(delete(admin, name, True))  # a broker may be away by now, a member have come
            done = delete(admin, name, False)
        return {kind: name, "brokers": list(done.value)}, done.failures

    yield one_part(sources, sealed, order, f"{kind} delete", act)


def _topic_parts(sources: ConsoleSources, sealed: Sealed, order: Order) -> Iterator[Part]:
    def delete(admin: Admin, topic: str, dry_run: bool) -> ClusterReply[list[str]]:
        return admin.topics.delete(topic, dry_run=dry_run)

    return _delete_parts(sources, sealed, order, "topic", delete)


def _with_offsets(chosen: Chosen) -> bool:
    return chosen.more.get("offsets") == "yes"


def _look_group(sources: ConsoleSources, chosen: Chosen) -> Preview:
    group = named_at_brokers(sources, chosen, "group")
    with sources.admin() as admin:
        where = _where(admin.groups.delete(group, dry_run=True))
        letters = _stored(admin, DEAD_LETTER_PREFIX + group)
        retries = _stored(admin, RETRY_PREFIX + group)
        queues = admin.offsets.progress(group).value.queues
    lags: dict[str, int] = {}
    for each in queues:
        lags[each.queue.topic] = lags.get(each.queue.topic, 0) + each.lag
    again = (
        "Its offsets are deleted: a new group of this name begins without."
        if _with_offsets(chosen)
        else "Its offsets stay: a new group of this name goes on from there."
    )
    return Preview(
        total=1,
        lines=[
            f"group {group} at {where}",
            *(f"topic {topic}: {lag:,} messages not consumed" for topic, lag in lags.items()),
            f"{letters:,} dead letters, and {retries:,} messages of its retry topic",
        ],
        happens=[
            "Its settings, its retry topic and its dead letters are deleted at all brokers.",
            again,
            "Its consume logs stay in the databases: it skips what it has consumed.",
        ],
        doubles=[],
        seen_at=now_of(sources),
    )


def _group_parts(sources: ConsoleSources, sealed: Sealed, order: Order) -> Iterator[Part]:
    offsets = _with_offsets(sealed.chosen)

    def delete(admin: Admin, group: str, dry_run: bool) -> ClusterReply[list[str]]:
        return admin.groups.delete(group, offsets=offsets, dry_run=dry_run)

    return _delete_parts(sources, sealed, order, "group", delete)


DELETE_TOPIC = Deed(
    name="topic-delete",
    title="Delete the topic",
    role=Role.ADMIN,
    of_list=None,
    look=_look_topic,
    parts=_topic_parts,
    is_final=True,
    back="/topics",
    typed=lambda sources, chosen: named_at_brokers(sources, chosen, "topic"),
)
DELETE_GROUP = Deed(
    name="group-delete",
    title="Delete the group",
    role=Role.ADMIN,
    of_list=None,
    look=_look_group,
    parts=_group_parts,
    is_final=True,
    back="/groups",
    typed=lambda sources, chosen: named_at_brokers(sources, chosen, "group"),
)
