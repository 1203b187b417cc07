"""Recalls: a timed message is taken back before its second begins."""

from tests.simulation.asked import Asked
from tests.simulation.client import Memory
from tests.simulation.facts import Expected, Violation
from tests.simulation.kinds.groups import PRODUCERS
from tests.simulation.model import Model

from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import RecallMessageHeader
from reliable_mq.wire.recall_handle import decode_recall_handle

_TAG = "_RECALL_TAG_"
_BODY = b"0"


class Recall:
    """Take back a message by its handle; what was taken back in time never comes."""

    def make(self, memory: Memory) -> Command | None:
        if not memory.recall_handles:
            return None
        index = memory.random.randrange(len(memory.recall_handles))
        topic, handle = memory.recall_handles[index]
        if memory.random.random() < 0.8:
            del memory.recall_handles[index]
        header = RecallMessageHeader(topic=topic, recall_handle=handle, producer_group=PRODUCERS)
        return request(RequestCode.RECALL_MESSAGE, header.to_ext())

    def learn(self, memory: Memory, command: Command, reply: Command) -> None:
        pass

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        header = RecallMessageHeader.decode(asked.command.ext_fields)
        handle = decode_recall_handle(header.recall_handle)
        assert handle is not None
        is_over = header.topic not in model.tables.topics or int(handle.time) <= asked.now_ms
        if is_over or not model.has_room:
            return []
        return [Expected(handle.topic, 0, _BODY, _TAG, waits_in=TIMER_TOPIC)]

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        if asked.expected_count != (reply.code == ResponseCode.SUCCESS):
            raise Violation(f"a recall of {asked.expected_count} messages is answered {reply}")

    def may_wait(self, model: Model, asked: Asked) -> bool:
        return False
