"""What a send says on the wire: prepared messages, their requests, and the results in the replies.

A message is checked and gets its id before its request is made. The request of a single message
comes from a template: the common part of a queue's requests is rendered once.
Source of limits and property names: Apache RocketMQ `Validators`, `MessageConst`,
`DefaultMQProducerImpl`; of replies: `MQClientAPIImpl.processSendResponse`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from reliable_mq.client.connecting.routes import TEMPLATE_TOPIC
from reliable_mq.client.connecting.signature import Signing
from reliable_mq.client.sending.send_retries import BrokerAnswer
from reliable_mq.client.sending.templates import Template, cut_template
from reliable_mq.errors import MessageRefused, ProtocolError, ReliableMQError
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX
from reliable_mq.message import Message, MessageQueue, SendResult, SendStatus, new_message_id
from reliable_mq.message_checks import check_message, properties_of
from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import (
    LANGUAGE,
    ONE_WAY_FLAG,
    VERSION,
    Command,
    request,
)
from reliable_mq.wire.frame import JSON, encode_numbered
from reliable_mq.wire.headers import SendMessageHeaderV2, SendResultHeader
from reliable_mq.wire.properties import WAIT, encode_properties
from reliable_mq.wire.remote_faults import remote_error

BATCH_ITEM_OVERHEAD = 22
Sign = Callable[[Message], Message]
"""Returns a message with its signature. The message has an id already."""
TEMPLATES_MAX = 4096
"""Maximum templates, of some 300 bytes each. With more queues, a client makes them again."""

_STORED = {status.value: status for status in SendStatus}

_encode_text = msgspec.json.Encoder().encode


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


def _reason_of_refusal(message: object, error: Exception) -> str:
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


def prepared_message(
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
        if not message.message_id:
            message = named(message, now_ms, random_bytes)
        if sign is not None:
            message = _signed(message, sign)
        return PreparedMessage(message, properties_of(message))
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise MessageRefused(_reason_of_refusal(message, error)) from error


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


class SendFrames:
    """Renders the requests of one client from templates.

    A frame is equal byte for byte to the encoding of `SenderFields.command`, signed if this client
    signs, because templates are made from that.

    Args:
        sender: the fields that are equal in all requests.
        signing: signs each request. None, the default: nobody does.
    """

    def __init__(self, sender: SenderFields, signing: Signing | None = None) -> None:
        self._sender, self._signing = sender, signing
        self._templates: dict[MessageQueue, Template] = {}

    def render(
        self, out: PreparedMessage, queue: MessageQueue, now_ms: int
    ) -> Callable[[int], bytes]:
        """Return a function from an opaque to the request of a message with an uncompressed body.

        It raises FrameError when the request would be longer than 16 MiB.
        """
        front, back, content = self._templates.get(queue) or self._cut(queue)
        message = out.message
        text = _encode_text(out.properties.decode())
        if self._signing is None:
            front %= (now_ms, message.flag, text)
        else:
            content %= (now_ms, message.flag, out.properties)
            signature = self._signing.signer.of_content(content, message.body)
            front %= (now_ms, message.flag, text, signature)
        return partial(encode_numbered, JSON, front, back, message.body)

    def _cut(self, queue: MessageQueue) -> Template:
        template = cut_template(partial(self._marked, queue), self._signing)
        if len(self._templates) >= TEMPLATES_MAX:
            self._templates.clear()
        self._templates[queue] = template
        return template

    def _marked(self, queue: MessageQueue, born: int, flag: int, properties: int) -> Command:
        message = Message(topic=queue.topic, body=b"", flag=flag)
        return self._sender.command(PreparedMessage(message, b"%d" % properties), queue, born)


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


def read_answer(answer: BrokerAnswer, message_ids: Sequence[str]) -> list[SendResult]:
    """Return the results of messages that were sent together."""
    try:
        if len(message_ids) == 1:
            results = [read_result(answer.reply, message_ids[0], answer.queue)]
        else:
            results = read_batch_results(answer.reply, message_ids, answer.queue)
    except ReliableMQError as error:
        error.tries = answer.tries
        raise
    if answer.tries == 1:
        return results
    return [msgspec.structs.replace(each, tries=answer.tries) for each in results]


def read_result(reply: Command, message_id: str, queue: MessageQueue) -> SendResult:
    """Return the result in the reply to a send.

    Raises:
        RemoteError: when the message is not stored.
        ProtocolError: when the reply cannot be decoded.
    """
    status, header = _stored(reply)
    if "," in header.msg_id:
        raise _miscounted(1, header.msg_id.split(","))
    return _result(status, header, message_id, header.msg_id, _home(queue, header), 0)


def read_batch_results(
    reply: Command, message_ids: Sequence[str], queue: MessageQueue
) -> list[SendResult]:
    """Return one result for each message of a batch. Their queue offsets are consecutive.

    Raises:
        RemoteError: when the batch is not stored.
        ProtocolError: when the reply cannot be decoded.
    """
    status, header = _stored(reply)
    offset_ids = header.msg_id.split(",")
    if len(offset_ids) != len(message_ids):
        raise _miscounted(len(message_ids), offset_ids)
    home = _home(queue, header)
    return [
        _result(status, header, message_id, offset_id, home, index)
        for index, (message_id, offset_id) in enumerate(zip(message_ids, offset_ids, strict=True))
    ]


def _stored(reply: Command) -> tuple[SendStatus, SendResultHeader]:
    status = _STORED.get(reply.code)
    if status is None:
        raise remote_error(reply.code, reply.remark)
    return status, reply.send_result or SendResultHeader.decode(reply.ext_fields)


def _miscounted(count: int, offset_ids: Sequence[str]) -> ProtocolError:
    return ProtocolError(
        f"{count} messages were sent, the broker reports {len(offset_ids)} as stored"
    )


def _home(queue: MessageQueue, header: SendResultHeader) -> MessageQueue:
    """Return the queue in which the broker has stored the message; it may be another than asked."""
    if header.queue_id == queue.queue_id:
        return queue
    return MessageQueue(queue.topic, queue.broker_name, header.queue_id)


def _result(
    status: SendStatus,
    header: SendResultHeader,
    message_id: str,
    offset_id: str,
    home: MessageQueue,
    index: int,
) -> SendResult:
    return SendResult(
        status=status,
        message_id=message_id,
        offset_message_id=offset_id,
        queue=home,
        queue_offset=header.queue_offset + index,
        recall_handle=header.recall_handle or "",
        region=header.region or "",
        trace_on=header.trace_on != "false",
    )
