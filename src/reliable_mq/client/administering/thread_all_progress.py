"""The progress of every consumer group of a cluster, one line for each: for commands and pages."""

import msgspec

from reliable_mq.client.administering.cluster_reply import ClusterReply
from reliable_mq.client.administering.thread_admin import Admin
from reliable_mq.errors import NotFound, ReliableMQError


class GroupLine(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group in one line.

    Attributes:
        group: its name.
        members: how many members are connected.
        version: their versions, sorted.
        kind: how they get messages.
        model: whether they share the messages.
        per_second: messages that it got a second, in the last minute.
        lag: messages that it has not consumed.
    """

    group: str
    members: int
    version: tuple[str, ...]
    kind: str
    model: str
    per_second: float
    lag: int


def all_progress(admin: Admin) -> ClusterReply[list[GroupLine]]:
    """Return the lines of all groups.

    Raises:
        NoRoute: the name servers know no broker.
        RemoteError, Unavailable, ProtocolError: no broker answers.
    """
    known = admin.groups.all_settings()
    failures: dict[str, ReliableMQError] = dict(known.failures)
    lines: list[GroupLine] = []
    for group in known.value:
        try:
            come = admin.offsets.progress(group)
            online = admin.groups.connections(group)
        except NotFound:  # deleted meanwhile
            continue
        failures |= {**come.failures, **online.failures}
        lines.append(
            GroupLine(
                group=group,
                members=len(online.value.members),
                version=tuple(sorted({member.version for member in online.value.members})),
                kind=online.value.kind,
                model=online.value.model,
                per_second=come.value.per_second,
                lag=come.value.lag,
            )
        )
    return ClusterReply(lines, failures)
