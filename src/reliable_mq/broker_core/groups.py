"""The consumer groups' settings, and their file `config/subscriptionGroup.json`.

Source: Apache RocketMQ `SubscriptionGroupManager`, `SubscriptionGroupConfig`.
"""

from typing import Any

import msgspec

from reliable_mq.broker_core.topics import DataVersion
from reliable_mq.limits import RETRY_ATTEMPTS_MAX
from reliable_mq.wire import fastjson

PATH = "config/subscriptionGroup.json"


class GroupConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """One consumer group's settings."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = RETRY_ATTEMPTS_MAX
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: dict[str, str] = msgspec.field(default_factory=dict)
    group_retry_policy: dict[str, Any] = msgspec.field(
        default_factory=lambda: {"type": "CUSTOMIZED"}
    )


class GroupTable:
    """The groups by name. `version` moves with every change."""

    def __init__(self, *, auto_create: bool) -> None:
        self._groups: dict[str, GroupConfig] = {}
        self._auto_create = auto_create
        self.version = DataVersion()

    def find(self, name: str, now_ms: int) -> GroupConfig | None:
        """Return the group's settings; a group that is new is created when that is allowed."""
        group = self._groups.get(name)
        if group is None and self._auto_create:
            group = GroupConfig(group_name=name)
            self.put(group, now_ms)
        return group

    def get(self, name: str) -> GroupConfig | None:
        """Return the group's settings, or None."""
        return self._groups.get(name)

    def put(self, group: GroupConfig, now_ms: int) -> None:
        """Add or replace a group."""
        self._groups[group.group_name] = group
        self.version.advance(now_ms)

    def to_json(self) -> dict[str, Any]:
        """Return the table as the file has it."""
        return {
            "dataVersion": msgspec.to_builtins(self.version),
            "forbiddenTable": {},
            "subscriptionGroupTable": msgspec.to_builtins(self._groups),
        }

    def dump(self) -> str:
        """Return the text of the file."""
        return fastjson.dumps(self.to_json(), indent=True).decode()

    def load(self, text: str) -> None:
        """Take the groups from the text of the file.

        Raises:
            ValueError: when the text is no such file.
        """
        loaded = fastjson.loads(text)
        table = loaded.get("subscriptionGroupTable", {})
        self._groups.update(msgspec.convert(table, dict[str, GroupConfig]))
        self.version = msgspec.convert(loaded.get("dataVersion", {}), DataVersion)
