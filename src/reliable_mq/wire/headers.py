"""Typed headers of the requests that carry more than a name or two.

Each class knows its field names on the wire. Values travel as text; a missing required field or a
value that does not read raises `HeaderInvalid` with the field's name.
Source: Apache RocketMQ `remoting.protocol.header`.
"""

from collections.abc import Mapping
from typing import Self

import msgspec

from reliable_mq.errors import ProtocolError


class HeaderInvalid(ProtocolError):
    """A header lacks a required field, or a value does not read."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Encodes itself to, and decodes itself from, the ext fields of a command."""

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> Self:
        """Return the header in `ext`; fields that it does not know are ignored.

        Raises:
            HeaderInvalid: when a required field is missing or a value does not read.
        """
        try:
            return msgspec.convert(ext, cls, strict=False)
        except msgspec.ValidationError as error:
            raise HeaderInvalid(str(error)) from error

    def to_ext(self) -> dict[str, str]:
        """Return the ext fields; a field that is None is left out."""
        return {
            name: _as_text(value)
            for name, value in msgspec.to_builtins(self).items()
            if value is not None
        }


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class SendMessageHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """SEND_MESSAGE (10)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: int | None = None


class SendMessageHeaderV2(SendMessageHeader, frozen=True, kw_only=True):
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): the same fields under one letter each."""

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> Self:
        """Return the header in `ext`; see `Header.decode`."""
        return super().decode({_V2_NAMES[x]: ext[x] for x in ext if x in _V2_NAMES})

    def to_ext(self) -> dict[str, str]:
        """Return the ext fields; a field that is None is left out."""
        long_form = super().to_ext()
        return {x: long_form[name] for x, name in _V2_NAMES.items() if name in long_form}


_V2_NAMES = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
}


class SendResultHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """The reply to a send; all result codes that mean "stored" carry it."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None


class PullMessageHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361). `suspend_timeout_millis` holds a long poll."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_millis: int
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None
    max_msg_bytes: int | None = None


class PullResultHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """The reply to a pull."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int


class ConsumerOffsetHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


class QueueHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: int


class SearchOffsetHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """SEARCH_OFFSET_BY_TIMESTAMP (29); `timestamp` in milliseconds."""

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None


class SendBackHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """CONSUMER_SEND_MSG_BACK (36); `offset` is the commit-log offset of the message."""

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None


class TopicConfigHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    default_topic: str = "TBW102"
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int | None = None
    order: bool | None = None
    attributes: str | None = None


class UnregisterClientHeader(Header, frozen=True, kw_only=True):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = msgspec.field(name="producerGroup", default=None)
    consumer_group: str | None = msgspec.field(name="consumerGroup", default=None)


class RegisterBrokerHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """REGISTER_BROKER (103)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str | None = None
    broker_id: int
    heartbeat_timeout_millis: int | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: int = 0
