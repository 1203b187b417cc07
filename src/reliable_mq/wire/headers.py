"""Typed headers of the requests with more than one or two fields.

Each class knows its field names on the wire. Values travel as text. Decoding raises `HeaderInvalid`
with the field's name in three cases: a required field is missing, a value does not parse, or a
number does not fit into Java's int or long. So each decoded number fits into its field of a record.
Source: Apache RocketMQ `remoting.protocol.header`.
"""

from collections.abc import Mapping
from typing import Self

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.errors import ProtocolError
from reliable_mq.wire.java_int import I32, I64


class HeaderInvalid(ProtocolError):
    """A required field of a header is missing, or a value does not parse."""


def fault_of(error: Exception) -> str:
    """Return the remark for a request that does not parse; `KeyError` means a missing field."""
    if isinstance(error, KeyError) and isinstance(error.args[0], str):
        return f"{HeaderInvalid.__name__}: missing required field `{error.args[0]}`"
    return f"{type(error).__name__}: {error}"


class Header(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A header that is encoded to, and decoded from, the ext fields of a command."""

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> Self:
        """Return the header in `ext`; unknown fields are ignored.

        Raises:
            HeaderInvalid: when a required field is missing or a value does not parse.
        """
        try:
            return msgspec.convert(ext, cls, strict=False)
        except msgspec.ValidationError as error:
            raise HeaderInvalid(str(error)) from error

    def to_ext(self) -> dict[str, str]:
        """Return the ext fields; fields that are None are omitted."""
        ext: dict[str, str] = {}
        for name, value in msgspec.to_builtins(self).items():
            if isinstance(value, bool):
                ext[name] = "true" if value else "false"
            elif value is not None:
                ext[name] = str(value)
        return ext


class SendMessageHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """SEND_MESSAGE (10)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: I32 | None = None


class SendMessageHeaderV2(SendMessageHeader, frozen=True, kw_only=True):
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): the same fields with one-letter names."""

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c")
    default_topic_queue_nums: I32 = msgspec.field(name="d")
    queue_id: I32 = msgspec.field(name="e")
    sys_flag: I32 = msgspec.field(name="f")
    born_timestamp: I64 = msgspec.field(name="g")
    flag: I32 = msgspec.field(name="h")
    properties: str | None = msgspec.field(name="i", default=None)
    reconsume_times: I32 | None = msgspec.field(name="j", default=None)
    unit_mode: bool | None = msgspec.field(name="k", default=None)
    max_reconsume_times: I32 | None = msgspec.field(name="l", default=None)
    batch: bool | None = msgspec.field(name="m", default=None)


class SignedSendHeader(SendMessageHeaderV2, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same as Apache's client signs it. With any other field, it does not parse."""

    broker_name: str | None = msgspec.field(name="n", default=None)
    access_key: str = msgspec.field(name="AccessKey")
    signature: str = msgspec.field(name="Signature")


class SendResultHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """The reply to a send, for every result code that means "stored"."""

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    recall_handle: str | None = None
    region: str | None = msgspec.field(name="MSG_REGION", default=None)
    trace_on: str | None = msgspec.field(name="TRACE_ON", default=None)


class PullMessageHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """PULL_MESSAGE (11), LITE_PULL_MESSAGE (361). `suspend_timeout_millis`: long-poll timeout."""

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64
    suspend_timeout_millis: I64
    subscription: str | None = None
    sub_version: I64 = 0
    expression_type: str | None = None
    max_msg_bytes: I32 | None = None


class PullResultHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """The reply to a pull."""

    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64


class ConsumerOffsetHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffsetHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64


class QueueHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: I32


class SearchOffsetHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """SEARCH_OFFSET_BY_TIMESTAMP (29); `timestamp` in milliseconds."""

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None


class RecallMessageHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """RECALL_MESSAGE (370)."""

    topic: str
    recall_handle: str = ""
    producer_group: str | None = None


class SendBackHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """CONSUMER_SEND_MSG_BACK (36); `offset` is the commit-log offset of the message."""

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: I32 | None = None


class EndTransactionHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """END_TRANSACTION (37); both offsets are offsets of the half message."""

    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None


class CheckTransactionHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """CHECK_TRANSACTION_STATE (39); both offsets are offsets of the half message."""

    topic: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str
    broker_name: str = msgspec.field(name="bname")


class PushReplyHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326); hosts are "ip:port"."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool
    born_host: str
    store_host: str
    store_timestamp: I64


class TopicConfigHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """UPDATE_AND_CREATE_TOPIC (17)."""

    topic: str
    default_topic: str = "TBW102"
    read_queue_nums: I32
    write_queue_nums: I32
    perm: I32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: I32 | None = None
    order: bool | None = None
    attributes: str | None = None


class DeleteGroupHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """DELETE_SUBSCRIPTIONGROUP (207)."""

    group_name: str
    clean_offset: bool = False


class GroupForbiddenHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """UPDATE_AND_GET_GROUP_FORBIDDEN (353)."""

    group: str
    topic: str
    readable: bool | None = None


class ResumeHalfHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """RESUME_CHECK_HALF_MESSAGE (323): `msg_id` is an offset message id."""

    msg_id: str
    topic: str | None = None


class ConsumeQueueHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """QUERY_CONSUME_QUEUE (321); `index` is the queue offset of the first entry."""

    topic: str
    queue_id: I32
    index: I64
    count: I32
    consumer_group: str | None = None


class UnregisterClientHeader(Header, frozen=True, kw_only=True):
    """UNREGISTER_CLIENT (35)."""

    client_id: str = msgspec.field(name="clientID", default="")
    producer_group: str | None = msgspec.field(name="producerGroup", default=None)
    consumer_group: str | None = msgspec.field(name="consumerGroup", default=None)


SECOND_MASTER = "secondMaster"
"""Our own field of the refusal of a broker whose name and id another one has."""


class RegisterBrokerHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """REGISTER_BROKER (103)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str | None = None
    broker_id: I64
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I32 = 0
    broker_epoch: I64 | None = None  # our own: of the last promotion; Apache ignores it


class ResetOffsetHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """INVOKE_BROKER_TO_RESET_OFFSET (222): `timestamp` in ms, -1 for the end of each queue."""

    topic: str
    group: str
    timestamp: I64 = 0
    is_force: bool = False
    queue_id: I32 = -1
    offset: I64 | None = None


class CloneGroupOffsetHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


class CorrectionOffsetHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """QUERY_CORRECTION_OFFSET (308); `filter_groups` are separated by commas."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class QueryMessageHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """QUERY_MESSAGE (12). Times in milliseconds."""

    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64
    index_type: str | None = None


class TopicPageHeader(Header, frozen=True, kw_only=True):
    """GET_ALL_TOPIC_CONFIG (21) since 5.3.3. Older clients send no field and expect all topics."""

    data_version: str | None = msgspec.field(name="dataVersion", default=None)
    begin: I32 | None = msgspec.field(name="topicSeq", default=None)
    count_max: I32 | None = msgspec.field(name="maxTopicNum", default=None)

    @property
    def is_whole(self) -> bool:
        """Whether the request has no paging fields."""
        return self.data_version is None and self.begin is None and self.count_max is None


class GroupPageHeader(TopicPageHeader, frozen=True, kw_only=True):
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), paged in the same way."""

    begin: I32 | None = msgspec.field(name="groupSeq", default=None)
    count_max: I32 | None = msgspec.field(name="maxGroupNum", default=None)


def _look_at(header: type[Header]) -> None:
    for each in header.__subclasses__():
        decodable(each)
        _look_at(each)


_look_at(Header)
