"""Prepares messages for sending: checks them, gives them ids, and makes send commands.

Source of limits and property names: Apache RocketMQ `Validators`, `MessageConst`,
`DefaultMQProducerImpl`.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from reliable_mq.client.connecting.routes import TEMPLATE_TOPIC
from reliable_mq.errors import MessageRefused
from reliable_mq.limits import (
    MESSAGE_BODY_SIZE_MAX,
)
from reliable_mq.message import Message, MessageQueue, new_message_id
from reliable_mq.message_checks import check_message, properties_of
from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import LANGUAGE, ONE_WAY_FLAG, VERSION, Command, request
from reliable_mq.wire.headers import SendMessageHeaderV2
from reliable_mq.wire.properties import (
    WAIT,
    encode_properties,
)

BATCH_ITEM_OVERHEAD = 22
Sign = Callable[[Message], Message]
"""Returns a message with its signature. The message has an id already."""


def fault_of(message: Message, body_size_max: int) -> Exception | None:
    """Return why a message cannot be sent, or None. No broker is asked."""
    try:
        check_message(message, body_size_max)
        properties_of(message)
    except (MessageRefused, AttributeError, TypeError) as error:
        return error
    return None


def check_is_message(message: object) -> None:
    """Refuse an object that is not a message.

    Raises:
        MessageRefused: when it is not a `Message`.
    """
    if not isinstance(message, Message):
        raise MessageRefused(_no_message(message))


def _no_message(message: object) -> str:
    return f"an object of type {type(message).__name__} cannot be sent: use a Message"


def _what_is_wrong(message: object, error: Exception) -> str:
    if not isinstance(message, Message):
        return _no_message(message)
    try:
        msgspec.convert(msgspec.structs.asdict(message), Message)
    except msgspec.ValidationError as why:
        return f"a field of the message is of a wrong type: {why}"
    return f"the message cannot be sent as it is: {error}"


def named(message: Message, now_ms: int, random_bytes: Callable[[int], bytes]) -> Message:
    """Return `message` with a message id: its own, or a new one."""
    if message.message_id:
        return message
    return msgspec.structs.replace(message, message_id=new_message_id(now_ms, random_bytes(10)))


class PreparedMessage(msgspec.Struct, frozen=True):
    """A checked message with its id and its stored properties.

    If the body is compressed, `packed` is the compressed body, and `packing` has the flags for the
    kind of compression.
    """

    message: Message
    properties: bytes
    packed: bytes | None = None
    packing: int = 0

    @property
    def body(self) -> bytes:
        """The body as it is sent."""
        return self.message.body if self.packed is None else self.packed

    @property
    def batch_size(self) -> int:
        """The number of bytes it takes in the body of a batch."""
        return BATCH_ITEM_OVERHEAD + len(self.message.body) + len(self.properties)


def letter(
    message: Message,
    now_ms: int,
    random_bytes: Callable[[int], bytes],
    body_size_max: int = MESSAGE_BODY_SIZE_MAX,
    sign: Sign | None = None,
) -> PreparedMessage:
    """Return `message` prepared for sending.

    Raises:
        MessageRefused: when it cannot be sent, or cannot be signed.
    """
    try:
        check_message(message, body_size_max)
        message = named(message, now_ms, random_bytes)
        if sign is not None:
            message = _signed(message, sign)
        return PreparedMessage(message, properties_of(message))
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise MessageRefused(_what_is_wrong(message, error)) from error


def _signed(message: Message, sign: Sign) -> Message:
    try:
        return sign(message)
    except Exception as error:
        raise MessageRefused(f"the message cannot be signed: {error!r:.200}") from error


def check_batch(batch: Sequence[PreparedMessage], size_max: int) -> None:
    """Check the size of a batch.

    Raises:
        MessageRefused: when the messages are too large together.
    """
    size = sum(out.batch_size for out in batch)
    if size > size_max:
        raise MessageRefused(
            f"the {len(batch)} messages of the batch have {size} bytes together, {size_max} are"
            " allowed: send fewer, or use send_many"
        )


class SenderFields(msgspec.Struct, frozen=True):
    """The fields that are equal in all send commands of one client."""

    producer_group: str
    new_topic_queues: int

    def command(
        self,
        out: PreparedMessage,
        queue: MessageQueue,
        now_ms: int,
        *,
        oneway: bool = False,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        max_reconsume_times: int | None = None,
        code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    ) -> Command:
        """Return the request that sends one message."""
        # The fields of `SendMessageHeaderV2` in its order. Not made through that class: the hot
        # path.
        ext = {
            "a": self.producer_group,
            "b": queue.topic,
            "c": TEMPLATE_TOPIC,
            "d": str(self.new_topic_queues),
            "e": str(queue.queue_id),
            "f": str(sys_flag | out.packing),
            "g": str(now_ms),
            "h": str(out.message.flag),
            "i": out.properties.decode(),
            "j": str(reconsume_times),
            "k": "false",
        }
        if max_reconsume_times is not None:
            ext["l"] = str(max_reconsume_times)
        ext["m"] = "false"
        return Command(
            code=code,
            flag=ONE_WAY_FLAG if oneway else 0,
            language=LANGUAGE,
            version=VERSION,
            ext_fields=ext,
            body=out.body,
        )

    def batch_command(
        self, batch: Sequence[PreparedMessage], queue: MessageQueue, now_ms: int
    ) -> Command:
        """Return the request that sends many messages of one topic to one queue."""
        header = SendMessageHeaderV2(
            producer_group=self.producer_group,
            topic=queue.topic,
            default_topic=TEMPLATE_TOPIC,
            default_topic_queue_nums=self.new_topic_queues,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=now_ms,
            flag=0,
            properties=encode_properties({WAIT: "true"}).decode(),
            reconsume_times=0,
            unit_mode=False,
            batch=True,
        )
        body = encode_batch(
            BatchItem(out.message.flag, out.message.body, out.properties) for out in batch
        )
        return request(RequestCode.SEND_BATCH_MESSAGE, header.to_ext(), body)


def same_topic(messages: Sequence[Message]) -> str:
    """Return the topic of a caller's batch.

    Raises:
        MessageRefused: when it is empty, mixes topics, or has a delayed message.
    """
    if not all(isinstance(message, Message) for message in messages):
        raise MessageRefused("a batch contains an object that is not a Message")
    topics = {message.topic for message in messages}
    if len(topics) != 1:
        raise MessageRefused(f"a batch must have one topic, this one has {sorted(topics)}")
    if any(message.is_delayed for message in messages):
        raise MessageRefused("a batch cannot contain a delayed message")
    return topics.pop()


def extra_properties(message: Message, extra: Mapping[str, str]) -> Message:
    """Return `message` with more properties."""
    return msgspec.structs.replace(message, properties={**message.properties, **extra})
