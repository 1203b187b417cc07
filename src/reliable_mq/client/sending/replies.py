"""Reads brokers' replies to sends: one result for each message, or an error.

Source: Apache RocketMQ `MQClientAPIImpl.processSendResponse`.
"""

from collections.abc import Sequence

import msgspec

from reliable_mq.client.sending.send_retries import BrokerAnswer
from reliable_mq.errors import ProtocolError, ReliableMQError
from reliable_mq.message import MessageQueue, SendResult, SendStatus
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import SendResultHeader
from reliable_mq.wire.remote_faults import remote_error

_STORED = {status.value: status for status in SendStatus}


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
