"""Consumer groups: lists, creates, changes and deletes them at all brokers.

A group's settings are read from a broker's whole table: Apache's broker creates a group when it is
asked for it by name. Source: Apache RocketMQ `SubscriptionGroupConfig`, `MixAll`,
`DeleteSubscriptionGroupCommand`.
"""

from collections.abc import Collection
from typing import Any

import msgspec

from reliable_mq.client.administering import topic_changes
from reliable_mq.client.administering.cluster_reply import (
    AdminTarget,
    Brokers,
    ClusterReply,
    all_brokers,
    ask_all,
    change_each,
    check_found,
    decoded,
    first_failure,
    nothing,
)
from reliable_mq.client.administering.members import connections
from reliable_mq.client.checked import check_fields
from reliable_mq.client.flow import Flow
from reliable_mq.decodable import decodable
from reliable_mq.errors import ConfigurationError, NotFound, ProtocolError, UsageError
from reliable_mq.limits import GROUP_LENGTH_MAX
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_name
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import DeleteGroupHeader

_SYSTEM_GROUPS = frozenset(
    {"DEFAULT_CONSUMER", "TOOLS_CONSUMER", "SCHEDULE_CONSUMER", "FILTERSRV_CONSUMER"}
    | {"__MONITOR_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL"}
    | {"CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"}
)
_SYSTEM_PREFIX = "CID_RMQ_SYS_"

_Row = dict[str, Any]  # a group's settings as a broker writes them, including those unknown here


@decodable
class GroupSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A group's settings at one broker. Defaults are those of a new group.

    `may_consume`: it gets messages. `may_broadcast`: every member may read every queue.
    `is_ordered`: only for Apache's proxy. `retries_max`: number of redeliveries before a message
    becomes a dead letter, unless the consumer sets it. `retry_queues`: 0 ends retries.
    `handling_minutes_max`: for pop consumers. `tells_members`: notifies members of changes.
    """

    may_consume: bool = msgspec.field(name="consumeEnable", default=True)
    may_broadcast: bool = msgspec.field(name="consumeBroadcastEnable", default=True)
    is_ordered: bool = msgspec.field(name="consumeMessageOrderly", default=False)
    retries_max: int = msgspec.field(name="retryMaxTimes", default=16)
    retry_queues: int = msgspec.field(name="retryQueueNums", default=1)
    handling_minutes_max: int = msgspec.field(name="consumeTimeoutMinute", default=15)
    tells_members: bool = msgspec.field(name="notifyConsumerIdsChangedEnable", default=True)


class GroupChange(msgspec.Struct, frozen=True, kw_only=True):
    """New settings; None keeps a setting. See `GroupSettings`.

    Raises:
        ConfigurationError: when a number is negative, or a value has a wrong type.
    """

    may_consume: bool | None = None
    may_broadcast: bool | None = None
    is_ordered: bool | None = None
    retries_max: int | None = None
    retry_queues: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("retries_max", "retry_queues"):
            number = getattr(self, name)
            if number is not None and number < 0:
                raise ConfigurationError(f"{name} is {number}: it must not be negative")

    def row(self) -> _Row:
        """Return the given settings, under the brokers' names."""
        wire = dict(
            zip(
                GroupSettings.__struct_fields__, GroupSettings.__struct_encode_fields__, strict=True
            )
        )
        given = msgspec.structs.asdict(self)
        return {wire[name]: value for name, value in given.items() if value is not None}


@decodable
class _Table(msgspec.Struct):
    rows: dict[str, _Row] = msgspec.field(name="subscriptionGroupTable", default_factory=dict)


def groups(
    cluster: AdminTarget, *, everything: bool
) -> Flow[ClusterReply[dict[str, dict[str, GroupSettings]]]]:
    """Return the settings of all groups, by group name (sorted) and broker.

    Without `everything`, groups of the brokers are left out.

    Raises:
        NoRoute: when the name servers know no broker.
        RemoteError, Unavailable, ProtocolError: when no broker answers.
    """
    brokers = yield from all_brokers(cluster)
    answers = yield from _tables(cluster, brokers)
    if not answers.value:
        raise first_failure(answers.failures)
    by_group: dict[str, dict[str, GroupSettings]] = {}
    for name, table in answers.value.items():
        for group, row in table.items():
            if everything or not is_system(group):
                by_group.setdefault(group, {})[name] = _settings(row)
    return ClusterReply(dict(sorted(by_group.items())), answers.failures)


def is_system(group: str) -> bool:
    """Return whether brokers use this group themselves."""
    return group in _SYSTEM_GROUPS or group.startswith(_SYSTEM_PREFIX)


def settings(cluster: AdminTarget, group: str) -> Flow[ClusterReply[dict[str, GroupSettings]]]:
    """Return a group's settings at every broker that has it, by broker name.

    Raises:
        NotFound: when no broker has it.
        RemoteError, Unavailable, ProtocolError: when no broker answers.
    """
    brokers = yield from all_brokers(cluster)
    rows = check_found((yield from _rows(cluster, brokers, group)), f"no broker has group {group}")
    return ClusterReply({name: _settings(row) for name, row in rows.value.items()}, rows.failures)


def _tables(
    cluster: AdminTarget, brokers: Brokers
) -> Flow[ClusterReply[dict[str, dict[str, _Row]]]]:
    asked = request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    return (yield from ask_all(cluster, brokers, asked, _read_table))


def _read_table(reply: Command) -> dict[str, _Row]:
    rows = decoded(reply, _Table, "the table of groups").rows
    for row in rows.values():
        _settings(row)
    return rows


def _rows(
    cluster: AdminTarget, brokers: Brokers, group: str
) -> Flow[ClusterReply[dict[str, _Row]]]:
    answers = yield from _tables(cluster, brokers)
    rows = {name: table[group] for name, table in answers.value.items() if group in table}
    return ClusterReply(rows, answers.failures)


def _settings(row: _Row) -> GroupSettings:
    try:
        return msgspec.convert(row, GroupSettings, strict=False)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"the settings of a group cannot be decoded: {error}") from error


def create(
    cluster: AdminTarget,
    group: str,
    wanted: GroupChange,
    *,
    only: Collection[str] = (),
    dry_run: bool = False,
) -> Flow[ClusterReply[list[str]]]:
    """Create a group at the masters of all brokers; return where, by broker name.

    Args:
        cluster: the cluster to ask.
        group: its name.
        wanted: its settings; None in it means as in a new `GroupSettings`.
        only: names of brokers; empty: all.
        dry_run: return where it would be created, but create nothing.

    Raises:
        ConfigurationError: when the name or a setting is invalid.
        UsageError: when a broker has it with other settings; then nothing is done.
        NoRoute: when the name servers know no broker.
        RemoteError, Unavailable, ProtocolError: when no broker creates it.
    """
    check_name("group", group, GROUP_LENGTH_MAX)
    brokers = yield from all_brokers(cluster, only)
    known = yield from _rows(cluster, brokers, group)
    row = wanted.row()
    for name, has in known.value.items():
        if has | row != has:
            raise UsageError(
                f"broker {name} has group {group} with other settings: change it by update"
            )
    put = _put_command({"groupName": group, **row})
    commands = {
        name: put for name in brokers if name not in known.value and name not in known.failures
    }
    return (yield from change_each(cluster, brokers, commands, known, dry_run=dry_run))


def update(
    cluster: AdminTarget,
    group: str,
    change: GroupChange,
    *,
    only: Collection[str] = (),
    dry_run: bool = False,
) -> Flow[ClusterReply[list[str]]]:
    """Change a group at every broker that has it; return where, by broker name.

    Each broker keeps its own settings that `change` does not contain. Otherwise as `create`.

    Raises:
        NotFound: when no broker has it.
        ConfigurationError, UsageError, NoRoute, RemoteError, Unavailable, ProtocolError: as
            `create`.
    """
    brokers = yield from all_brokers(cluster, only)
    known = check_found((yield from _rows(cluster, brokers, group)), f"no broker has group {group}")
    row = change.row()
    # Brokers read sent attributes as changes of attributes; no change is wanted here.
    commands = {
        name: _put_command({**has, **row, "attributes": {}})
        for name, has in known.value.items()
        if has | row != has
    }
    return (yield from change_each(cluster, brokers, commands, known, dry_run=dry_run))


def _put_command(row: _Row) -> Command:
    return request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=fastjson.dumps(row))


def delete(
    cluster: AdminTarget, group: str, *, offsets: bool, dry_run: bool = False
) -> Flow[ClusterReply[list[str]]]:
    """Delete a group at all brokers, with its retry topic and its dead letters.

    Args:
        cluster: the cluster to ask.
        group: its name.
        offsets: delete its offsets too; then a new group with this name starts without offsets.
        dry_run: return where it would be deleted, but delete nothing. A broker that does not tell
            of members is a failure then, too.

    Returns:
        Where it existed, by broker name.

    Raises:
        UsageError: when its members are connected: they would create it again.
        NotFound: when no broker has it.
        RemoteError, Unavailable, ProtocolError: when no broker does it.
    """
    brokers = yield from all_brokers(cluster)
    known = check_found((yield from _rows(cluster, brokers, group)), f"no broker has group {group}")
    online = yield from connections(cluster, group)
    if online.value.members:
        ids = ", ".join(member.client_id for member in online.value.members)
        raise UsageError(f"group {group} has members that are connected; stop them first: {ids}")
    if dry_run:
        return ClusterReply(sorted(known.value), known.failures | online.failures)
    header = DeleteGroupHeader(group_name=group, clean_offset=offsets)
    asked = request(RequestCode.DELETE_SUBSCRIPTIONGROUP, header.to_ext())
    deleted = yield from ask_all(cluster, brokers, asked, nothing, masters_only=True)
    failures = dict(deleted.failures)
    for topic in (RETRY_PREFIX + group, DEAD_LETTER_PREFIX + group):
        try:
            failures |= (yield from topic_changes.delete(cluster, topic)).failures
        except NotFound:
            continue
    if not deleted.value:
        raise first_failure(failures)
    return ClusterReply([name for name in deleted.value if name in known.value], failures)
