"""A topic's settings at a broker: queues and permissions, and their changes. Pure.

Source: Apache RocketMQ `TopicConfig`, `PermName`, `AttributeParser`.
"""

from collections.abc import Mapping

import msgspec

from reliable_mq.client.administering.cluster_reply import decoded
from reliable_mq.client.checked import check_fields
from reliable_mq.decodable import decodable
from reliable_mq.errors import ConfigurationError
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import TopicConfigHeader

PERMISSIONS = {"rw": 6, "r": 4, "w": 2, "none": 0}
"""Permissions of clients on a topic: read, write, both, neither."""
QUEUES = 8
_LETTERS = (("r", 4), ("w", 2), ("x", 1))


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's settings at one broker.

    `permission`: one of `PERMISSIONS`; a template for new topics has an additional "x".
    `attributes`: Apache's, such as `message.type`.
    """

    read_queues: int = QUEUES
    write_queues: int = QUEUES
    permission: str = "rw"
    is_ordered: bool = False
    attributes: Mapping[str, str] = {}
    filter_type: str = "SINGLE_TAG"
    system_flag: int = 0


class TopicChange(msgspec.Struct, frozen=True, kw_only=True):
    """New settings; None keeps a setting. An attribute with the value None is removed.

    Raises:
        ConfigurationError: when a value has a wrong type.
    """

    read_queues: int | None = None
    write_queues: int | None = None
    permission: str | None = None
    is_ordered: bool | None = None
    attributes: Mapping[str, str | None] = {}

    def __post_init__(self) -> None:
        check_fields(self)

    def applied(self, before: TopicSettings) -> TopicSettings:
        """Return the settings after this change."""
        attributes = {**before.attributes, **self.attributes}
        given = {
            name: value
            for name in ("read_queues", "write_queues", "permission", "is_ordered")
            if (value := getattr(self, name)) is not None
        }
        kept = {name: value for name, value in attributes.items() if value is not None}
        return msgspec.structs.replace(before, **given, attributes=kept)


@decodable
class _TopicConfig(msgspec.Struct, rename="camel"):
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None


def read_settings(reply: Command) -> TopicSettings:
    """Return the settings in a reply to GET_TOPIC_CONFIG.

    Raises:
        ProtocolError: when it cannot be decoded.
    """
    config = decoded(reply, _TopicConfig, "the settings of a topic")
    return TopicSettings(
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        permission=permission_text(config.perm),
        is_ordered=config.order,
        attributes=config.attributes or {},
        filter_type=config.topic_filter_type,
        system_flag=config.topic_sys_flag,
    )


def to_put(topic: str, after: TopicSettings, before: Mapping[str, str]) -> Command:
    """Return the request that creates or changes a topic.

    It has only changed attributes: some may not be set a second time.

    Args:
        topic: its name.
        after: its new settings.
        before: its current attributes.

    Raises:
        ConfigurationError: when a setting is invalid.
    """
    if min(after.read_queues, after.write_queues) < 0:
        raise ConfigurationError(
            f"{after.read_queues} queues to read and {after.write_queues} to write: give 0 or more"
        )
    changed = {name: value for name, value in after.attributes.items() if before.get(name) != value}
    added = [f"+{name}={value}" for name, value in changed.items()]
    gone = [f"-{name}" for name in before if name not in after.attributes]
    header = TopicConfigHeader(
        topic=topic,
        read_queue_nums=after.read_queues,
        write_queue_nums=after.write_queues,
        perm=permission_number(after.permission),
        topic_filter_type=after.filter_type,
        topic_sys_flag=after.system_flag,
        order=after.is_ordered,
        attributes=",".join(added + gone) or None,
    )
    return request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())


def permission_text(number: int) -> str:
    """Return a permission as users write it: 6 is "rw"."""
    return "".join(letter for letter, bit in _LETTERS if number & bit) or "none"


def permission_number(text: str) -> int:
    """Return the brokers' number of a permission.

    Raises:
        ConfigurationError: when the text is not a permission.
    """
    if text in PERMISSIONS:
        return PERMISSIONS[text]
    number = sum(bit for letter, bit in _LETTERS if letter in text)
    if permission_text(number) != text:
        raise ConfigurationError(
            f"{text!r} is not a permission: give one of {', '.join(PERMISSIONS)}"
        )
    return number
