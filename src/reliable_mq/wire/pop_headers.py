"""Headers of the requests that consume by the message: pop, acknowledge, extend, look, wait.

They are decoded and encoded as those of `headers`. Times are in milliseconds.
Source: Apache RocketMQ `remoting.protocol.header`.
"""

from reliable_mq.decodable import decodable
from reliable_mq.wire.headers import Header
from reliable_mq.wire.java_int import I32, I64
from reliable_mq.wire.pop_handle import PopHandle

FROM_FIRST, FROM_LAST = 0, 1  # `init_mode`


@decodable
class PopMessageHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """POP_MESSAGE (200050). `queue_id` -1: all queues. The wait ends at `born_time + poll_time`.

    `exp` and `exp_type` say which messages are wanted. With `order`, a queue hands out nothing
    else until its messages are acknowledged; the same `attempt_id` gets the same ones again.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    max_msg_nums: I32
    invisible_time: I64
    poll_time: I64
    born_time: I64 = 0
    init_mode: I32
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


@decodable
class AckMessageHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """ACK_MESSAGE (200051). `topic` is the real one; `extra_info` is the handle of the message."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64


class ReadAckHeader(AckMessageHeader, frozen=True, kw_only=True):
    """One whose handle is read already. The endpoint makes it; no peer can send it.

    `handle` may be without its offset.
    """

    handle: PopHandle


@decodable
class ChangeInvisibleTimeHeader(AckMessageHeader, frozen=True, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME (200053): the message comes back after `invisible_time`."""

    invisible_time: I64


@decodable
class PeekMessageHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """PEEK_MESSAGE (200052)."""

    consumer_group: str
    topic: str
    queue_id: I32
    max_msg_nums: I32


@decodable
class NotificationHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """NOTIFICATION (200054): wait until there is a message, and do not take it."""

    consumer_group: str
    topic: str
    queue_id: I32
    poll_time: I64
    born_time: I64 = 0
    order: bool | None = None
    attempt_id: str | None = None


@decodable
class PollingInfoHeader(Header, frozen=True, kw_only=True, rename="camel"):
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: I32
