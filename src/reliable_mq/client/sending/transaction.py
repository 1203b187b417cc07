"""Half messages: flows that send and end them and read check-backs, and their wire format.

The broker stores a half message invisibly until its producer group decides the transaction. Until
then, the broker asks a client of that group (check-back). The real queue is chosen when the half is
sent, so that a message with an ordering key keeps its queue.
Source: Apache RocketMQ `DefaultMQProducerImpl.sendMessageInTransaction`, `endTransaction`,
`checkTransactionState`; `EndTransactionProcessor`.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from reliable_mq.client.connecting.routes import RouteCache
from reliable_mq.client.consuming.offsets import offset_in
from reliable_mq.client.consuming.pulling import received
from reliable_mq.client.consuming.unpacking import unpacked
from reliable_mq.client.flow import Call, Flow, Post, call, call_all, now, succeeded
from reliable_mq.client.sending.outgoing import (
    PreparedMessage,
    SenderFields,
    extra_properties,
    read_answer,
)
from reliable_mq.client.sending.producer import SendFlows
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import (
    MessageRefused,
    NotSent,
    ReliableMQError,
    Unavailable,
    UsageError,
)
from reliable_mq.message import (
    CheckBack,
    Decision,
    Half,
    Message,
    MessageQueue,
    SendResult,
    SendStatus,
)
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import CheckTransactionHeader, EndTransactionHeader, QueueHeader
from reliable_mq.wire.message_id import decode_offset_message_id
from reliable_mq.wire.properties import PRODUCER_GROUP, TRANSACTION_PREPARED
from reliable_mq.wire.record import (
    COMPRESSED,
    TRANSACTION_COMMIT,
    TRANSACTION_ROLLBACK,
    decode_record,
)
from reliable_mq.wire.record import (
    TRANSACTION_PREPARED as PREPARED_FLAG,
)
from reliable_mq.wire.remote_faults import remote_error

_SAID: Mapping[Decision, int] = {
    Decision.COMMIT: TRANSACTION_COMMIT,
    Decision.ROLLBACK: TRANSACTION_ROLLBACK,
}


class TransactionFlows:
    """The flows that send and end the half messages of one client."""

    def __init__(
        self,
        settings: ClientSettings,
        routes: RouteCache,
        producer: SendFlows,
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._producer = producer

    def send(self, message: Message, group: str, *, timeout: float) -> Flow[Half]:
        """Send a half message for a producer group. The broker may send check-backs to its clients.

        Args:
            message: the message, without a delay.
            group: the producer group.
            timeout: seconds for all attempts together.

        Raises:
            MessageRefused: when the message is delayed or cannot be sent for another reason.
            RemoteError: when the broker refuses it, perhaps because it supports no transactions.
            Unavailable: when no broker stores it safely in time. A broker that did sends
                check-backs.
        """
        if message.is_delayed:
            raise MessageRefused(
                "a half message cannot be delayed: a broker ignores the delay or the transaction"
            )
        marks = {TRANSACTION_PREPARED: "true", PRODUCER_GROUP: group}
        instant = yield from now()
        marked = extra_properties(message, marks)
        out = yield from self._producer.packed(self._producer.prepare(marked, instant.epoch_ms))
        bind = _binding(SenderFields(group, self._settings.new_topic_queues), out)
        key = message.ordering_key
        answer = yield from self._producer.deliver(message.topic, key, None, timeout, bind)
        queue = answer.queue
        (result,) = read_answer(answer, [out.message.message_id])
        half = Half(
            message_id=result.message_id,
            group=group,
            queue=queue,
            ordering_key=key,
            half_offset=result.queue_offset,
            commit_log_offset=decode_offset_message_id(result.offset_message_id).commit_log_offset,
            stored=result,
        )
        if result.status is not SendStatus.SEND_OK:
            yield from self.post(half, Decision.ROLLBACK)
            raise Unavailable(f"{result.status.name}: the half message may be lost in a crash")
        return half

    def post(self, half: Half, decision: Decision) -> Flow[None]:
        """End a half without waiting for an answer. If the broker misses it, it sends a check-back.

        Raises:
            Unavailable: when the broker cannot be reached.
        """
        if decision is not Decision.UNKNOWN:
            address = yield from self._address(half)
            yield Post(address, _end_command(half, decision, oneway=True))

    def end(self, half: Half, decision: Decision) -> Flow[None]:
        """End a half; return when the broker has stored the decision.

        Raises:
            UsageError: when the decision is neither COMMIT nor ROLLBACK.
            RemoteError: when the broker knows no such half.
            Unavailable: when it does not answer; the half may have ended nevertheless.
        """
        if decision is Decision.UNKNOWN:
            raise UsageError(
                "a half message is ended by COMMIT or ROLLBACK; while the result is unknown, do "
                "not end it"
            )
        address, timeout = (yield from self._address(half)), self._settings.request_timeout_seconds
        reply = yield from call(address, _end_command(half, decision), timeout)
        if reply.code == ResponseCode.ILLEGAL_OPERATION:
            # The property limits how long only the producer may decide. That time is over.
            late = _end_command(half, decision, from_check=True)
            reply = yield from call(address, late, timeout)
        succeeded(reply)

    def commit_many(self, halves: Sequence[Half]) -> Flow[list[SendResult | Exception]]:
        """Commit half messages; those with the same ordering key and topic one after another.

        Results are in the order of `halves`. Brokers do not return where they put a message. So
        `queue_offset` is the last offset of its queue right after the commit, and the message is
        at or before it. With Apache's brokers, queues follow the log with a delay, so it may also
        be one or two offsets after it. After a failure, later halves of the same key are not
        committed; their result is `NotSent`.
        """
        results: dict[int, SendResult | Exception] = {}
        lanes: dict[tuple[str, str], list[int]] = {}
        for at, half in enumerate(halves):
            key = half.ordering_key
            lanes.setdefault((half.queue.topic, key) if key else ("", str(at)), []).append(at)
        while lanes:
            heads = [lane.pop(0) for lane in lanes.values()]
            answers = yield from self._commit_side_by_side([halves[at] for at in heads])
            results.update(zip(heads, answers, strict=True))
            for (name, lane), answer in zip(list(lanes.items()), answers, strict=True):
                if isinstance(answer, Exception):
                    reason = NotSent(f"an earlier message of its key was not committed: {answer}")
                    results.update((at, reason) for at in lane)
                if isinstance(answer, Exception) or not lane:
                    del lanes[name]
        return [results[at] for at in range(len(halves))]

    def _commit_side_by_side(
        self, halves: Sequence[Half]
    ) -> Flow[list[SendResult | ReliableMQError]]:
        timeout = self._settings.request_timeout_seconds
        answers: dict[int, Command | ReliableMQError] = {}
        calls: dict[int, Call] = {}
        for at, half in enumerate(halves):
            try:
                command = _end_command(half, Decision.COMMIT)
                calls[at] = Call((yield from self._address(half)), command, timeout)
            except ReliableMQError as error:
                answers[at] = error
        answers |= zip(calls, (yield from call_all(list(calls.values()))), strict=True)
        for at, answer in list(answers.items()):
            if isinstance(answer, Command) and answer.code == ResponseCode.ILLEGAL_OPERATION:
                try:
                    yield from self.end(halves[at], Decision.COMMIT)
                    answers[at] = answer
                except ReliableMQError as error:
                    answers[at] = error
            elif isinstance(answer, Command) and answer.code != ResponseCode.SUCCESS:
                answers[at] = remote_error(answer.code, answer.remark)
        committed = {at for at, answer in answers.items() if isinstance(answer, Command)}
        ends = yield from self._ends({halves[at].queue for at in committed})
        return [
            _result(half, ends[half.queue]) if at in committed else _failure(answers[at])
            for at, half in enumerate(halves)
        ]

    def _ends(self, queues: set[MessageQueue]) -> Flow[dict[MessageQueue, int | ReliableMQError]]:
        """Return the next offset of each queue, read right after the commits."""
        timeout = self._settings.request_timeout_seconds
        calls: dict[MessageQueue, Call] = {}
        ends: dict[MessageQueue, int | ReliableMQError] = {}
        for queue in sorted(queues):
            header = QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
            command = request(RequestCode.GET_MAX_OFFSET, header.to_ext())
            try:
                calls[queue] = Call((yield from self._master(queue)), command, timeout)
            except ReliableMQError as error:
                ends[queue] = error
        answers = yield from call_all(list(calls.values()))
        for queue, answer in zip(calls, answers, strict=True):
            try:
                ends[queue] = answer if isinstance(answer, ReliableMQError) else offset_in(answer)
            except ReliableMQError as error:
                ends[queue] = error
        return ends

    def _address(self, half: Half) -> Flow[str]:
        return half.asked_by or (yield from self._master(half.queue))

    def _master(self, queue: MessageQueue) -> Flow[str]:
        broker = self._routes.broker(queue.broker_name)
        if broker is None:  # another client has sent the half
            route = yield from self._routes.to_send(queue.topic)
            broker = route.brokers.get(queue.broker_name)
        if broker is None or broker.master is None:
            raise Unavailable(f"no master of broker {queue.broker_name} is known")
        return broker.master


def read_check_back(command: Command, asked_by: str) -> CheckBack:
    """Return the check-back in a CHECK_TRANSACTION_STATE request.

    Args:
        command: the request.
        asked_by: the address of the broker that sent it.

    Raises:
        ProtocolError: when it cannot be decoded.
    """
    header = CheckTransactionHeader.decode(command.ext_fields)
    record = decode_record(command.body)
    if record.sys_flag & COMPRESSED:
        record = msgspec.structs.replace(record, body=unpacked(record))
    queue = MessageQueue(record.topic, header.broker_name, record.queue_id)
    message = received(record, queue)
    half = Half(
        message_id=message.message_id,
        group=message.properties.get(PRODUCER_GROUP, ""),
        queue=queue,
        ordering_key=message.ordering_key,
        half_offset=header.tran_state_table_offset,
        commit_log_offset=header.commit_log_offset,
        asked_by=asked_by,
    )
    return CheckBack(half, message)


def _binding(sender: SenderFields, out: PreparedMessage) -> Callable[[MessageQueue, int], Command]:
    return lambda to, now_ms: sender.command(out, to, now_ms, sys_flag=PREPARED_FLAG)


def _end_command(
    half: Half, decision: Decision, *, oneway: bool = False, from_check: bool = False
) -> Command:
    if not isinstance(decision, Decision):
        raise UsageError(
            f"{decision!r:.100} is not a Decision: give Decision.COMMIT or Decision.ROLLBACK"
        )
    header = EndTransactionHeader(
        producer_group=half.group,
        tran_state_table_offset=half.half_offset,
        commit_log_offset=half.commit_log_offset,
        commit_or_rollback=_SAID[decision],
        from_transaction_check=from_check or bool(half.asked_by),
        msg_id=half.message_id,
        transaction_id=half.message_id,
    )
    return request(RequestCode.END_TRANSACTION, header.to_ext(), oneway=oneway)


def _result(half: Half, end: int | ReliableMQError) -> SendResult | ReliableMQError:
    if isinstance(end, ReliableMQError):
        return end
    return SendResult(
        status=SendStatus.SEND_OK,
        message_id=half.message_id,
        offset_message_id="",
        queue=half.queue,
        queue_offset=max(0, end - 1),
    )


def _failure(answer: Command | ReliableMQError) -> ReliableMQError:
    if isinstance(answer, Command):
        return remote_error(answer.code, answer.remark)
    return answer
