"""The properties of a message: `name 0x01 value 0x02`, repeated, as UTF-8.

Older writers omit the last 0x02, so the reader does not require it. If a name occurs twice, the
last value counts. Source: Apache RocketMQ `MessageDecoder`, `MessageConst`.
"""

from collections.abc import Mapping

from reliable_mq.errors import MessageRefused
from reliable_mq.limits import PROPERTIES_SIZE_MAX

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
_END = PROPERTY_SEPARATOR.encode()

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
TRANSACTION_FIRST_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"  # of a half that was stored again
CHECK_IMMUNITY_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
MESSAGE_TYPE = "MSG_TYPE"
TTL = "TTL"  # how many milliseconds the requester waits for a reply
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
UNIQ_KEY = "UNIQ_KEY"
CLUSTER = "CLUSTER"
SHARDING_KEY = "__SHARDINGKEY"
POP_CK = "POP_CK"
POP_CK_OFFSET = "POP_CK_OFFSET"  # of a message that came back: its checkpoint, and its place there
FIRST_POP_TIME = "1ST_POP_TIME"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"  # a producer sets this instant or one of the two delays
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELETED_KEY = "TIMER_DEL_UNIQKEY"  # UNIQ_KEY of the timed message that this one recalls
TIMER_OUT_MS = "TIMER_OUT_MS"  # the message's slot of the timer wheel
TIMER_TAKEN_MS = "TIMER_ENQUEUE_MS"
TIMER_DELIVERED_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLLS = "TIMER_ROLL_TIMES"


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the encoded form; each pair ends with 0x02.

    Raises:
        MessageRefused: when a name or value contains a separator, when the text is not valid
            Unicode, or when the whole is too long for a record.
    """
    if not properties:
        return b""
    text = PROPERTY_SEPARATOR.join(map(NAME_VALUE_SEPARATOR.join, properties.items()))
    count = len(properties)
    if text.count(NAME_VALUE_SEPARATOR) != count or text.count(PROPERTY_SEPARATOR) != count - 1:
        raise MessageRefused("a property contains one of the separators 0x01 and 0x02")
    try:
        stored = (text + PROPERTY_SEPARATOR).encode()
    except UnicodeEncodeError as error:
        raise MessageRefused(f"a property is not valid Unicode text: {error}") from error
    if len(stored) > PROPERTIES_SIZE_MAX:
        raise MessageRefused(
            f"properties of {len(stored)} bytes; at most {PROPERTIES_SIZE_MAX} can be stored"
        )
    return stored


def decode_properties(stored: bytes | str) -> dict[str, str]:
    """Return the properties of the stored form, or of the text in a send header.

    Pairs without a name or a value are dropped, as Apache does.
    """
    text = stored if isinstance(stored, str) else str(stored, "utf-8", "replace")
    properties: dict[str, str] = {}
    for pair in text.split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


def property_value(properties: bytes, name: bytes) -> bytes | None:
    """Return a value in the stored form; `name` ends with its separator."""
    at = properties.find(name)
    if at < 0:
        return None
    begin = at + len(name)
    is_plain = at == 0 or properties[at - 1] == _END[0]
    if not is_plain or properties.find(name, begin) >= 0:  # use the decoder
        value = decode_properties(properties).get(name[:-1].decode())
        return None if value is None else value.encode()
    end = properties.find(_END, begin)
    return properties[begin:end] if end >= 0 else properties[begin:]
