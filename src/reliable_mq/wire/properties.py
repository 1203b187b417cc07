"""The properties of a message: `name 0x01 value 0x02`, repeated, as UTF-8.

Older writers leave out the last 0x02, so the reader asks for none. Of two values for one name the
last counts. Source: Apache RocketMQ `MessageDecoder`, `MessageConst`.
"""

from collections.abc import Mapping

from reliable_mq.errors import MessageRefused

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
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


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the stored form; each pair ends with 0x02.

    Raises:
        MessageRefused: when a name or value holds one of the two separators.
    """
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    if text.count("\x01") != len(properties) or text.count("\x02") != len(properties):
        raise MessageRefused("a property holds one of the separators 0x01 and 0x02")
    return text.encode()


def decode_properties(stored: bytes) -> dict[str, str]:
    """Return the pairs of the stored form; pairs without name or value are dropped."""
    properties: dict[str, str] = {}
    for pair in stored.decode("utf-8", "replace").split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties
