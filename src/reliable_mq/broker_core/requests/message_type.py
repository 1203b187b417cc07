"""Check of messages against their topic's message type (attribute `message.type`).

Apache's broker stores the attribute but does not check it. Apache's proxy checks it for all
clients, unless `enableTopicMessageTypeCheck=false`. This broker checks by the same rule, with the
same reply, if that property is true.
Source: Apache RocketMQ `TopicMessageType`, `DefaultTopicMessageTypeValidator`,
`proxy.remoting.activity.SendMessageActivity`.
"""

from collections.abc import Mapping

from reliable_mq.broker_core.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.requests.timed import TIMER_WISHES
from reliable_mq.broker_core.topics import TopicConfig
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.properties import DELAY, SHARDING_KEY, TRANSACTION_PREPARED

ATTRIBUTE = "message.type"
MIXED = "MIXED"
_DELAYS = (DELAY, *TIMER_WISHES)
_PRIORITY = "_SYS_MSG_PRIORITY_"
_TRANSFERRED = "TRANSFER_FLAG"  # forwarded by another broker: not checked again


def message_type(properties: Mapping[str, str]) -> str:
    """Return the message type that follows from these properties."""
    if properties.get(TRANSACTION_PREPARED, "").lower() == "true":
        return "TRANSACTION"
    if any(name in properties for name in _DELAYS):
        return "DELAY"
    if SHARDING_KEY in properties:
        return "FIFO"
    return "PRIORITY" if _PRIORITY in properties else "NORMAL"


def check_message_type(topic: TopicConfig, properties: Mapping[str, str]) -> None:
    """Refuse a message whose type is not its topic's type.

    Raises:
        RequestRefused: in the words of Apache's proxy.
    """
    is_checked = not topic.topic_name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    if not is_checked or _TRANSFERRED in properties:
        return
    expected, actual = topic.attributes.get(ATTRIBUTE, "NORMAL"), message_type(properties)
    if expected not in (actual, MIXED):
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"TopicMessageType validate failed, the expected type is {expected}, "
            f"but actual type is {actual}",
        )
