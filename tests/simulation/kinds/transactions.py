"""Transactions: halves, and what becomes of them."""

from tests.simulation.asked import Asked
from tests.simulation.client import Memory
from tests.simulation.facts import Entry, Expected, Violation
from tests.simulation.kinds.groups import PRODUCERS
from tests.simulation.kinds.sends import Send, new_body, send_request
from tests.simulation.model import Model

from reliable_mq.broker_core.names import HALF_TOPIC
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import EndTransactionHeader, SendResultHeader
from reliable_mq.wire.message_id import decode_offset_message_id
from reliable_mq.wire.properties import PRODUCER_GROUP, TRANSACTION_PREPARED
from reliable_mq.wire.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK


class SendHalf(Send):
    """A message that is seen when its transaction is committed."""

    def make(self, memory: Memory) -> Command | None:
        topic, queue_id = memory.place()
        extra = {TRANSACTION_PREPARED: "true", PRODUCER_GROUP: PRODUCERS}
        return send_request(memory, topic, queue_id, new_body(memory), extra=extra)

    def learn(self, memory: Memory, command: Command, reply: Command) -> None:
        if reply.code == ResponseCode.SUCCESS:
            result = SendResultHeader.decode(reply.ext_fields)
            place = decode_offset_message_id(result.msg_id).commit_log_offset
            memory.halves.append((place, result.queue_offset))


class EndTransaction:
    """Commit or rollback, now and then of one that has ended."""

    def make(self, memory: Memory) -> Command | None:
        if not memory.halves:
            return None
        index = memory.random.randrange(len(memory.halves))
        log_offset, queue_offset = memory.halves[index]
        if memory.random.random() < 0.5:
            del memory.halves[index]
        header = EndTransactionHeader(
            producer_group=PRODUCERS,
            tran_state_table_offset=queue_offset,
            commit_log_offset=log_offset,
            commit_or_rollback=memory.random.choice(
                (TRANSACTION_COMMIT, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
            ),
        )
        is_oneway = memory.random.random() < 0.5
        return request(RequestCode.END_TRANSACTION, header.to_ext(), oneway=is_oneway)

    def learn(self, memory: Memory, command: Command, reply: Command) -> None:
        pass

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        header = EndTransactionHeader.decode(asked.command.ext_fields)
        half = model.readable(header.commit_log_offset)
        is_there = (
            half is not None
            and half.topic == HALF_TOPIC
            and half.queue_offset == header.tran_state_table_offset
        )
        if half is None or not is_there:
            return []
        if not model.has_room:
            asked.facts = ResponseCode.SERVICE_NOT_AVAILABLE
            return []
        asked.facts = half
        if model.halves.is_ended(half):
            return []
        model.halves.end(half)
        if header.commit_or_rollback == TRANSACTION_ROLLBACK:
            return []
        return [Expected(half.real_topic, half.real_queue_id, half.body, half.tag)]

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        half = asked.facts
        wanted = ResponseCode.SUCCESS if half else ResponseCode.SYSTEM_ERROR
        if half == ResponseCode.SERVICE_NOT_AVAILABLE:
            wanted = half
        if reply.code != wanted:
            raise Violation(f"the end of a transaction is answered {reply}, not {wanted}")
        if isinstance(half, Entry):
            number = model.halves.safe_number(half)
            if number is None or number >= model.safe:
                raise Violation(f"the end of {half} is acknowledged and not stored")

    def may_wait(self, model: Model, asked: Asked) -> bool:
        return asked.facts is not None
