"""The settings of consumer groups, and their file `config/subscriptionGroup.json`.

Source: Apache RocketMQ `SubscriptionGroupManager`, `SubscriptionGroupConfig`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from reliable_mq.broker_core.json_rows import JsonRows, differences, plain_json
from reliable_mq.broker_core.names import group_fault, is_system_group
from reliable_mq.broker_core.store.disk import RowsText
from reliable_mq.broker_core.topics import READ, DataVersion
from reliable_mq.decodable import decodable
from reliable_mq.errors import InvariantBroken
from reliable_mq.limits import RETRY_ATTEMPTS_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire import fastjson
from reliable_mq.wire.java_int import I32, I64

log = limited_log(__name__)

PATH = "config/subscriptionGroup.json"

_SYSTEM_GROUPS = (
    *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY"),
    *("CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS"),
)


@decodable
class GroupConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """One consumer group's settings."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: I32 = 1
    retry_max_times: I32 = RETRY_ATTEMPTS_MAX
    broker_id: I64 = 0
    which_broker_when_consume_slowly: I64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: I32 = 0
    consume_timeout_minute: I32 = 15
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    group_retry_policy: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "CUSTOMIZED"}
    )


class GroupTable:
    """Groups by name. `version` advances with each change; `is_dirty` is True until the next dump.

    Invariant G1: a group is kept under its own name.
    """

    def __init__(self, *, auto_create: bool) -> None:
        self.by_name: dict[str, GroupConfig] = {}  # others only read it
        self._rows = JsonRows()
        for name in _SYSTEM_GROUPS:
            self._set(GroupConfig(group_name=name))
        self.forbidden: dict[str, dict[str, int]] = {}  # by group and topic; others only read it
        self._auto_create = auto_create
        self.version = DataVersion()
        self.is_dirty = False
        self.unsaved: set[str] = set()  # groups that a crash would take

    def invariants(self) -> None:
        """G1; see the class."""
        self._rows.check(self.by_name)
        for name, group in self.by_name.items():
            if group.group_name != name:
                raise InvariantBroken(f"G1: group {group.group_name!r} is kept as {name!r}")

    def find(self, name: str, now_ms: int, *, may_create: bool = True) -> GroupConfig | None:
        """Return the group's settings; a new group is created if that is allowed.

        None: creation is not allowed, the name is not legal, or the table is full.
        """
        group = self.by_name.get(name)
        if group is None and may_create and self.may_be_created(name):
            group = GroupConfig(group_name=name)
            if not self.has_room(group):
                broker_events.GROUP_NOT_CREATED.log(
                    log, group=name, reason="the table of groups is full"
                )
                return None
            self.set_group(group, now_ms)
        return group

    def may_be_created(self, name: str) -> bool:
        """Whether a first use may create a group of this name."""
        return (self._auto_create or is_system_group(name)) and not group_fault(name)

    @property
    def size(self) -> int:
        """Characters of JSON of all groups together."""
        return self._rows.size

    def has_room(self, group: GroupConfig) -> bool:
        """Whether a request may add or replace this group; see `JsonRows.has_room`."""
        return self._rows.has_room(group.group_name, group)

    def get(self, name: str) -> GroupConfig | None:
        """Return the group's settings, or None."""
        return self.by_name.get(name)

    def set_group(self, group: GroupConfig, now_ms: int) -> None:
        """Add or replace a group."""
        if group.group_name not in self.by_name:
            self.unsaved.add(group.group_name)
        self._set(group)
        self.version.advance(now_ms)
        self.is_dirty = True

    def _set(self, group: GroupConfig) -> None:
        self._rows.set(group.group_name, group)  # first: it raises for text that JSON cannot hold
        self.by_name[group.group_name] = group

    def saved(self, names: frozenset[str]) -> Callable[[], None]:
        """Return what notes that these groups are saved."""
        return lambda: self.unsaved.difference_update(names)

    def names(self) -> list[str]:
        """Return the names of all groups, sorted."""
        return sorted(self.by_name)

    def remove(self, name: str, now_ms: int) -> bool:
        """Remove a group's settings; return whether the group existed."""
        removed = self.by_name.pop(name, None)
        self._rows.remove(name)
        is_forbidden = self.forbidden.pop(name, None) is not None
        if removed is not None or is_forbidden:
            self.version.advance(now_ms)
            self.is_dirty = True
        return removed is not None

    def allow_creation(self, *, auto_create: bool) -> None:
        """Set whether a new group is created at first use."""
        self._auto_create = auto_create

    def is_read_forbidden(self, group: str, topic: str) -> bool:
        """Whether the group may not read this topic."""
        return bool(max(0, self.forbidden.get(group, {}).get(topic, 0)) & READ)

    @property
    def forbidden_count(self) -> int:
        """The number of (group, topic) pairs that are forbidden."""
        return sum(map(len, self.forbidden.values()))

    def forbid_reading(self, group: str, topic: str, now_ms: int, *, is_forbidden: bool) -> None:
        """Forbid a group to read a topic, or allow it again."""
        if is_forbidden == self.is_read_forbidden(group, topic):
            return
        topics = self.forbidden.setdefault(group, {})
        topics[topic] = max(0, topics.get(topic, 0)) ^ READ
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self.forbidden[group]
        self.version.advance(now_ms)
        self.is_dirty = True

    def dump(self) -> RowsText:
        """Return the content of the file, and clear `is_dirty`."""
        self.is_dirty = False
        return self._text()

    def __len__(self) -> int:
        return len(self.by_name)

    def page(self, begin: int, count: int) -> str:
        """Return `count` groups from index `begin` on, sorted by name, in the format of `text`."""
        names = self._rows.names()[begin : begin + count]
        forbidden = {name: self.forbidden[name] for name in names if name in self.forbidden}
        return (
            f'{{"dataVersion":{plain_json(self.version)},'
            f'"forbiddenTable":{plain_json(forbidden)},'
            f'"subscriptionGroupTable":{self._rows.table(names)}}}'
        )

    def text(self) -> str:
        """Return the table in the format of the file and of tools."""
        return str(self._text())

    def _text(self) -> RowsText:
        head = (
            f'{{\n\t"dataVersion":{plain_json(self.version)},'
            f'\n\t"forbiddenTable":{plain_json(self.forbidden)},'
            '\n\t"subscriptionGroupTable":'
        )
        return self._rows.indented(head, "\n}")

    def load(self, text: str) -> None:
        """Load the groups from the content of the file.

        Raises:
            ValueError: when the text is not in the format of this file.
        """
        file = fastjson.decode(text, _File)
        for name, group in file.subscription_group_table.items():
            self._set(msgspec.structs.replace(group, group_name=name))
        self.forbidden = file.forbidden_table
        self.version = file.data_version

    def take_over(self, text: str) -> bool:
        """Take over a master's table; return whether something has changed.

        Raises:
            ValueError: when the text is no such table. Nothing was changed then.
        """
        file = fastjson.decode(text, _File)
        groups = {
            name: msgspec.structs.replace(group, group_name=name)
            for name, group in file.subscription_group_table.items()
        }
        changed, gone = differences(self.by_name, groups)
        is_changed = bool(changed or gone) or self.forbidden != file.forbidden_table
        for name in changed:
            self._set(groups[name])
        for name in gone:
            del self.by_name[name]
            self._rows.remove(name)
        self.forbidden, self.version = file.forbidden_table, file.data_version
        return is_changed


@decodable
class _File(msgspec.Struct, rename="camel"):
    subscription_group_table: dict[str, GroupConfig] = msgspec.field(default_factory=dict)
    forbidden_table: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
