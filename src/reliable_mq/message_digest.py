"""The digest of a message: one value for all that its sender wrote. Pure.

    head    topic 0x02, then NAME 0x01 VALUE 0x02 for each covered property, sorted by name
    digest  SHA-256 of the head and of the SHA-256 of the body

Two messages with one digest have the same topic, id, tag, key, ordering key, properties and body.
The id, the tag and the keys are properties too (`UNIQ_KEY`, `TAGS`, `KEYS`, `__SHARDINGKEY`). Names
and values cannot contain 0x01 or 0x02, so the head has one reading. The body is hashed separately,
so that a database can do it.

Two kinds of names are not covered. Clients, brokers and this library write `RESERVED` names, on the
way or at each send: a sender may not use them. Middleware may write `TRACE_NAMES` after the stub: a
sender may use them, and only a signature covers them. The namespace of a topic is not covered.

Source of the names that brokers and clients write: Apache RocketMQ 5.4.0, `MessageConst`.
"""

from collections.abc import Mapping
from hashlib import sha256

from reliable_mq.message import CONFIRM_TO, CONSUMED_BY, RESENT, SHARDING_KEY, SIGNATURE

DIGEST_SIZE = 16
"""Bytes of the digest for comparisons of ledgers: the first half of the whole digest."""

_NAME_END, _PAIR_END = b"\x01", b"\x02"
_NAMESPACE_END = "%"
_OF_OURS = {CONFIRM_TO, CONSUMED_BY, RESENT, SIGNATURE, "DEAD_LETTER_REASON"}
# `MessageConst` has more names. Names that only a sender writes are covered like any other:
# CORRELATION_ID, REPLY_TO_CLIENT, TTL, MSG_TYPE, INSTANCE_ID, BUYER_ID, _SYS_MSG_PRIORITY_.
_OF_CLIENTS_AND_BROKERS = {
    *("WAIT", "DELAY", "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP"),
    *("MIN_OFFSET", "MAX_OFFSET", "ORIGIN_MESSAGE_ID", "TRANSFER_FLAG", "CORRECTION_FLAG"),
    *("MQ2_FLAG", "RECONSUME_TIME", "MSG_REGION", "TRACE_ON", "EXTEND_UNIQ_INFO"),
    *("MAX_RECONSUME_TIMES", "CONSUME_START_TIME", "INNER_NUM", "INNER_BASE", "DUP_INFO"),
    *("CHECK_IMMUNITY_TIME_IN_SECONDS", "TRAN_PREPARED_QUEUE_OFFSET", "__transactionId__"),
    *("TRANSACTION_CHECK_TIMES", "TRANS_OFFSET", "ARRIVE_TIME", "PUSH_REPLY_TIME", "CLUSTER"),
    *("POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "ORIGIN_GROUP", "PROPERTY_FORWARD_QUEUE_ID"),
    *("REDIRECT", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "TIMER_DELAY_SEC"),
    *("TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"),
    *("TIMER_ROLL_TIMES", "TIMER_ROLL_LABEL", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY"),
    *("TIMER_DELAY_LEVEL", "__BORNHOST", "BORN_TIMESTAMP", "__CRC32#", "DLQ_ORIGIN_TOPIC"),
    *("DLQ_ORIGIN_MESSAGE_ID", "__RMQ.TRANSIENT.TOPIC_SYS_FLAG"),
    "__RMQ.TRANSIENT.GROUP_SYS_FLAG",
}
RESERVED = frozenset(_OF_OURS | _OF_CLIENTS_AND_BROKERS)
"""Names that clients, brokers and this library write. A sender may not use them."""
TRACE_NAMES = frozenset(
    {"traceparent", "tracestate", "baggage", "b3", "x-b3-traceid", "x-b3-spanid"}
    | {"x-b3-parentspanid", "x-b3-sampled", "x-b3-flags", "uber-trace-id", "ot-tracer-traceid"}
    | {"ot-tracer-spanid", "ot-tracer-sampled", "x-amzn-trace-id", "x-cloud-trace-context"}
    | {"x-datadog-trace-id", "x-datadog-parent-id", "x-datadog-sampling-priority"}
    | {"TRACE_CONTEXT"}
)
"""Names of trace contexts: of W3C, B3, Jaeger, OpenTracing, Amazon, Google, Datadog, Apache."""
NOT_COVERED = RESERVED | TRACE_NAMES
"""Names of properties that may differ between the stub and the stored message."""
_NOT_COVERED = frozenset(name.encode() for name in NOT_COVERED)


def sent_properties(
    message_id: str,
    tag: str,
    key: str,
    ordering_key: str,
    content_type: str,
    properties: Mapping[str, str],
) -> dict[str, str]:
    """Return the properties of a message by its stub, in the form that `digest_of` needs."""
    fixed = {
        "UNIQ_KEY": message_id,
        "TAGS": tag,
        "KEYS": key,
        SHARDING_KEY: ordering_key,
    }
    # As in `message_of`: an explicit content type wins over a property of this name.
    return {**properties, **fixed} | ({"CONTENT_TYPE": content_type} if content_type else {})


def digest_of(topic: str, properties: Mapping[str, str], body_hash: bytes) -> bytes:
    """Return the whole digest of a message, 32 bytes.

    Args:
        topic: the topic it was sent to, with or without its namespace.
        properties: all properties; one without a value does not count.
        body_hash: SHA-256 of the body as sent, not compressed.
    """
    covered = [
        f"{name}\x01{value}\x02"
        for name, value in properties.items()
        if value and name not in NOT_COVERED
    ]
    covered.sort()
    head = f"{_bare(topic)}\x02{''.join(covered)}"
    return sha256(head.encode("utf-8", "surrogateescape") + body_hash).digest()


def digest_of_stored(topic: str, stored: bytes, body_hash: bytes) -> bytes:
    """Return the same for properties in a record's form. Of two with one name, the last counts."""
    named = {
        pair.partition(_NAME_END)[0]: pair
        for pair in stored.split(_PAIR_END)
        if pair[-1:] != _NAME_END and pair[:1] != _NAME_END and _NAME_END in pair
    }
    covered = sorted([pair for name, pair in named.items() if name not in _NOT_COVERED])
    head = [_bare(topic).encode(), *covered, body_hash]
    return sha256(_PAIR_END.join(head)).digest()


def body_hash_of(body: bytes | memoryview) -> bytes:
    """Return the hash that represents a body in the digest."""
    return sha256(body).digest()


def _bare(topic: str) -> str:
    """Return a topic without its namespace.

    A topic may contain the separator, too. So everything before the last separator counts as a
    namespace.
    """
    if _NAMESPACE_END not in topic or topic.startswith(_NAMESPACE_END):
        return topic
    return topic.rpartition(_NAMESPACE_END)[2]
