"""Offsets of groups and of queues, and messages looked up by their place."""

from bisect import bisect_left, bisect_right

from tests.simulation.asked import Asked
from tests.simulation.client import Memory
from tests.simulation.facts import Expected, Violation, first_kept
from tests.simulation.model import Model

from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import (
    ConsumerOffsetHeader,
    QueueHeader,
    ResetOffsetHeader,
    SearchOffsetHeader,
    UpdateConsumerOffsetHeader,
)
from reliable_mq.wire.record import decode_record


class Question:
    """A request that changes nothing and is answered at once."""

    def learn(self, memory: Memory, command: Command, reply: Command) -> None:
        pass

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        return []

    def may_wait(self, model: Model, asked: Asked) -> bool:
        return False


class Commit(Question):
    """A group has come so far; never farther than it was told."""

    def make(self, memory: Memory) -> Command | None:
        topic, queue_id = memory.place()
        header = UpdateConsumerOffsetHeader(
            consumer_group=memory.group,
            topic=topic,
            queue_id=queue_id,
            commit_offset=memory.next_offsets.get((topic, queue_id), 0),
        )
        is_oneway = memory.random.random() < 0.5
        return request(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext(), oneway=is_oneway)

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        header = UpdateConsumerOffsetHeader.decode(asked.command.ext_fields)
        tables = model.tables
        asked.facts = ResponseCode.SUCCESS
        if header.consumer_group not in tables.groups:
            asked.facts = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        elif header.topic not in tables.topics:
            asked.facts = ResponseCode.TOPIC_NOT_EXIST
        else:
            place = (header.consumer_group, header.topic, header.queue_id)
            tables.commit(*place, header.commit_offset)
        return []

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        if reply.code != asked.facts:
            raise Violation(f"a commit is answered {reply.code}, not {asked.facts}")


class Reset(Question):
    """Somebody sets a group's offset; what it commits counts no more until a pull was told."""

    def make(self, memory: Memory) -> Command | None:
        topic, queue_id = memory.place()
        known = memory.next_offsets.get((topic, queue_id), 0)
        offset = memory.random.choice((-1, 0, max(0, known - 3), known, known + 10))
        if memory.plan.segments_kept:
            offset = -1  # an earlier one may have expired, or not yet
        header = ResetOffsetHeader(
            topic=topic, group=memory.group, timestamp=-1, queue_id=queue_id, offset=offset
        )
        return request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header.to_ext())

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        header = ResetOffsetHeader.decode(asked.command.ext_fields)
        tables = model.tables
        count = model.shown_count(header.topic, header.queue_id)
        offset = count if header.offset in (-1, None) else header.offset or 0
        asked.facts = ResponseCode.SUCCESS
        if header.topic not in tables.topics:
            asked.facts = ResponseCode.TOPIC_NOT_EXIST
        elif header.group not in tables.groups:
            asked.facts = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        elif offset > count + 1:
            asked.facts = ResponseCode.SYSTEM_ERROR
        else:
            tables.reset(header.group, header.topic, header.queue_id, offset)
            model.waiting.reset(header.group, header.topic, header.queue_id)
        return []

    def may_wait(self, model: Model, asked: Asked) -> bool:
        return True  # the answer says that the reset is on the medium

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        if reply.code != asked.facts:
            raise Violation(f"a reset is answered {reply}, not {asked.facts}")


class Committed(Question):
    """How far a group has come."""

    def make(self, memory: Memory) -> Command | None:
        topic, queue_id = memory.place()
        header = ConsumerOffsetHeader(
            consumer_group=memory.group, topic=topic, queue_id=queue_id, set_zero_if_not_found=False
        )
        return request(RequestCode.QUERY_CONSUMER_OFFSET, header.to_ext())

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        header = ConsumerOffsetHeader.decode(asked.command.ext_fields)
        key = (header.consumer_group, header.topic, header.queue_id)
        asked.facts = model.tables.offsets.get(key)
        return []

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        header = ConsumerOffsetHeader.decode(asked.command.ext_fields)
        place = (header.consumer_group, header.topic, header.queue_id)
        if place in model.tables.doubtful:
            return
        offset = int(reply.ext_fields["offset"]) if reply.code == ResponseCode.SUCCESS else None
        if offset is None and asked.facts is None:
            return
        is_asked_strictly = asked.command.ext_fields.get("setZeroIfNotFound") == "false"
        if offset != asked.facts and (is_asked_strictly or asked.facts is not None):
            raise Violation(f"a group is said to be at {offset}, it committed {asked.facts}")


class QueueEnds(Question):
    """Where a queue begins or ends."""

    def make(self, memory: Memory) -> Command | None:
        topic, queue_id = memory.place()
        code = memory.random.choice((RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET))
        return request(code, QueueHeader(topic=topic, queue_id=queue_id).to_ext())

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        header = QueueHeader.decode(asked.command.ext_fields)
        shown = model.shown(header.topic, header.queue_id, asked.visible)
        count = len(shown)
        offset = int(reply.ext_fields["offset"])
        is_end = asked.command.code == RequestCode.GET_MAX_OFFSET
        begins = range(first_kept(shown, asked.start) + 1)  # it follows the log a little later
        if offset not in ((count,) if is_end else begins) and (is_end or count or offset != -1):
            raise Violation(f"{header} of {count} messages is said to begin or end at {offset}")


class SearchByTime(Question):
    """Which message of a queue was stored at a time."""

    def make(self, memory: Memory) -> Command | None:
        topic, queue_id = memory.place()
        header = SearchOffsetHeader(
            topic=topic,
            queue_id=queue_id,
            timestamp=memory.now_ms - memory.random.randint(-100, 10_000),
            boundary_type=memory.random.choice((None, "lower", "upper")),
        )
        return request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header.to_ext())

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        header = SearchOffsetHeader.decode(asked.command.ext_fields)
        shown = model.shown(header.topic, header.queue_id, asked.visible)
        times = [entry.store_time_ms for entry in shown]
        if header.boundary_type == "upper":
            wanted = max(0, bisect_right(times, header.timestamp) - 1)
        else:
            wanted = bisect_left(times, header.timestamp)
        first, offset = first_kept(shown, asked.start), int(reply.ext_fields["offset"])
        if offset != wanted and not (wanted < first and offset <= first):
            raise Violation(f"{header} finds {reply.ext_fields['offset']}, not {wanted}")


class ViewById(Question):
    """The message at a place in the log."""

    def make(self, memory: Memory) -> Command | None:
        if not memory.log_offsets:
            return None
        offset = memory.random.choice(memory.log_offsets)
        return request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        asked.facts = model.readable(int(asked.command.ext_fields["offset"]))
        return []

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        entry = asked.facts
        if entry is None:
            if reply.code == ResponseCode.SUCCESS:
                raise Violation(f"a message that is not there is shown: {reply}")
            return
        if reply.code != ResponseCode.SUCCESS:
            raise Violation(f"{entry} cannot be looked up: {reply}")
        record = decode_record(reply.body)
        if (record.body, record.commit_log_offset) != (entry.body, entry.log_offset):
            raise Violation(f"{record} is shown, where {entry} is")
