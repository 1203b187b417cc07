"""Sends: one message, a batch, a delayed one, one that must be refused, one that failed."""

from collections.abc import Mapping

from tests.simulation.asked import Asked
from tests.simulation.client import Memory
from tests.simulation.delays import DELAYS_MS
from tests.simulation.facts import Entry, Expected, Violation, due_ms
from tests.simulation.kinds.groups import PRODUCERS
from tests.simulation.model import Model
from tests.simulation.plan import BODY_SIZE_MAX

from reliable_mq.broker_core.names import (
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    dead_letter_topic,
    retry_topic,
)
from reliable_mq.limits import RETRY_ATTEMPTS_MAX
from reliable_mq.wire.batch_body import BatchItem, decode_batch, encode_batch
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import SendBackHeader, SendMessageHeader, SendMessageHeaderV2
from reliable_mq.wire.message_id import decode_offset_message_id
from reliable_mq.wire.properties import (
    DELAY,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRANSACTION_PREPARED,
    decode_properties,
    encode_properties,
)

TAGS_OF_ALL = ("", "red", "green", "blue")
_BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL)
_LEVEL_MAX = max(DELAYS_MS)
_UNTOLD = (TIMER_TOPIC, HALF_TOPIC)  # their queue means nothing to a client


def new_body(memory: Memory) -> bytes:
    """Return a body that no other message has."""
    memory.sent_count += 1
    body = b"%d:%d|" % (memory.number, memory.sent_count)
    if memory.random.random() < memory.plan.big_bodies:
        body = body.ljust(memory.random.randrange(BODY_SIZE_MAX), b".")
    return body


def send_request(
    memory: Memory,
    topic: str,
    queue_id: int,
    body: bytes,
    *,
    level: int = 0,
    is_batch: bool = False,
    is_oneway: bool = False,
    extra: Mapping[str, str] | None = None,
) -> Command:
    """Return a send, in the old or the new form of its header."""
    random = memory.random
    properties = {"UNIQ_KEY": f"{memory.number:08X}{memory.sent_count:024X}"}
    tag = random.choice(TAGS_OF_ALL)
    if tag:
        properties[TAGS] = tag
    if level:
        properties[DELAY] = str(level)
    properties |= extra or {}
    is_old = random.random() < 0.2 and not is_batch
    header = (SendMessageHeader if is_old else SendMessageHeaderV2)(
        producer_group=PRODUCERS,
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=memory.plan.topics.get(topic, 1),
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=memory.now_ms,
        flag=0,
        properties=encode_properties(properties).decode(),
        reconsume_times=0,
        batch=is_batch,
    )
    code = RequestCode.SEND_MESSAGE_V2
    if is_batch:
        code = RequestCode.SEND_BATCH_MESSAGE
    elif is_old:
        code = RequestCode.SEND_MESSAGE
    return request(code, header.to_ext(), body, oneway=is_oneway)


class Send:
    """A message, sometimes without asking for an answer."""

    def make(self, memory: Memory) -> Command | None:
        topic, queue_id = memory.place()
        is_oneway = memory.random.random() < 0.1
        return send_request(memory, topic, queue_id, new_body(memory), is_oneway=is_oneway)

    def learn(self, memory: Memory, command: Command, reply: Command) -> None:
        if reply.code == ResponseCode.SUCCESS:
            for part in reply.ext_fields["msgId"].split(","):
                memory.saw(decode_offset_message_id(part).commit_log_offset)

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        command = asked.command
        is_old = command.code == RequestCode.SEND_MESSAGE
        header = (SendMessageHeader if is_old else SendMessageHeaderV2).decode(command.ext_fields)
        asked.facts = model.refusal or _fault(model, header, command)
        if header.topic not in model.tables.saved_topics:
            asked.new_topic = header.topic
        if asked.facts is not None:
            return []
        if command.code == RequestCode.SEND_BATCH_MESSAGE:
            items = decode_batch(command.body)
        else:
            items = [BatchItem(0, command.body, (header.properties or "").encode())]
        return [_expected(header, item, asked.now_ms) for item in items]

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        if asked.facts is not None:
            if reply.code != asked.facts:
                raise Violation(f"a send is answered {reply.code}, not {asked.facts}: {reply}")
            return
        if reply.code:
            if reply.code not in _BUSY:
                raise Violation(f"a send is refused: {reply}")
            return
        entries = [model.log[number] for number in asked.entries]
        offsets = [
            decode_offset_message_id(part).commit_log_offset
            for part in reply.ext_fields["msgId"].split(",")
        ]
        place = (int(reply.ext_fields["queueId"]), int(reply.ext_fields["queueOffset"]))
        if offsets != [entry.log_offset for entry in entries]:
            raise Violation(f"a send is answered with places {offsets}, stored are {entries}")
        if entries[0].topic not in _UNTOLD and place != _answered_place(entries[0]):
            raise Violation(f"a send is answered with {place}, stored is {entries[0]}")

    def may_wait(self, model: Model, asked: Asked) -> bool:
        return False


def _fault(model: Model, header: SendMessageHeader, command: Command) -> int | None:
    """Return the code that a send must be refused with, None when it must be taken.

    The topic is created before the message is looked at, as Apache does.
    """
    queues = model.tables.topics.setdefault(header.topic, header.default_topic_queue_nums)
    if header.queue_id >= queues:
        return ResponseCode.INVALID_PARAMETER
    if len(command.body) > 2 * BODY_SIZE_MAX:
        return ResponseCode.MESSAGE_ILLEGAL
    return None


def _expected(header: SendMessageHeader, item: BatchItem, now_ms: int) -> Expected:
    properties = decode_properties(item.properties)
    level = min(int(properties.get(DELAY, "0")), _LEVEL_MAX)
    waits_in = SCHEDULE_TOPIC if level else ""
    if due_ms(properties, now_ms) > now_ms:
        waits_in = TIMER_TOPIC
    elif TRANSACTION_PREPARED in properties:
        waits_in = HALF_TOPIC
    return Expected(
        header.topic,
        header.queue_id,
        item.body,
        properties.get(TAGS, ""),
        level,
        header.reconsume_times or 0,
        waits_in,
    )


def _answered_place(entry: Entry) -> tuple[int, int]:
    """Return the queue that a send is told, and the offset: those where the message was stored."""
    if entry.topic == SCHEDULE_TOPIC:
        return entry.real_queue_id, entry.queue_offset
    return entry.queue_id, entry.queue_offset


class SendDelayed(Send):
    """A message for later; a level above the highest means the highest."""

    def make(self, memory: Memory) -> Command | None:
        topic, queue_id = memory.place()
        level = memory.random.randint(1, _LEVEL_MAX + 1)
        return send_request(memory, topic, queue_id, new_body(memory), level=level)


class SendTimed(Send):
    """A message for a certain time, which may have passed."""

    def make(self, memory: Memory) -> Command | None:
        random = memory.random
        topic, queue_id = memory.place()
        extra = random.choice(
            (
                {TIMER_DELAY_MS: str(random.randint(0, 4_000))},
                {TIMER_DELAY_SEC: str(random.randint(1, 4))},
                {TIMER_DELIVER_MS: str(memory.now_ms + random.randint(-500, 4_000))},
            )
        )
        return send_request(memory, topic, queue_id, new_body(memory), extra=extra)

    def learn(self, memory: Memory, command: Command, reply: Command) -> None:
        super().learn(memory, command, reply)
        handle = reply.ext_fields.get("recallHandle")
        if handle:
            header = SendMessageHeader if command.code == RequestCode.SEND_MESSAGE else None
            topic = (header or SendMessageHeaderV2).decode(command.ext_fields).topic
            memory.recall_handles.append((topic, handle))


class SendBatch(Send):
    """Some messages at once."""

    def make(self, memory: Memory) -> Command | None:
        topic, queue_id = memory.place()
        items = []
        for _ in range(memory.random.choice((1, 2, 3, 20))):
            tag = memory.random.choice(TAGS_OF_ALL)
            properties = encode_properties({TAGS: tag} if tag else {})
            items.append(BatchItem(0, new_body(memory), properties))
        return send_request(memory, topic, queue_id, encode_batch(items), is_batch=True)


class SendWrongly(Send):
    """A message that must be refused, and leave nothing behind."""

    def make(self, memory: Memory) -> Command | None:
        topic, queue_id = memory.place()
        body = new_body(memory)
        if memory.random.random() < 0.5:
            return send_request(memory, topic, memory.plan.topics[topic], body)
        return send_request(memory, topic, queue_id, body.ljust(2 * BODY_SIZE_MAX + 1, b"!"))


class SendBack:
    """A message that a consumer could not handle: later again, or among the dead."""

    def make(self, memory: Memory) -> Command | None:
        if not memory.log_offsets:
            return None
        random = memory.random
        header = SendBackHeader(
            offset=random.choice(memory.log_offsets) + random.choice((0, 0, 0, 0, 1)),
            group=memory.group,
            delay_level=random.choice((-1, 0, 1, 2)),
            max_reconsume_times=random.choice((RETRY_ATTEMPTS_MAX, 1)),
        )
        return request(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_ext())

    def learn(self, memory: Memory, command: Command, reply: Command) -> None:
        pass

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        header = SendBackHeader.decode(asked.command.ext_fields)
        model.tables.groups.add(header.group)
        entry = model.readable(header.offset)
        if entry is None or not model.has_room:
            return []
        model.tables.topics.setdefault(retry_topic(header.group), 1)
        attempts_max = header.max_reconsume_times
        attempts_max = RETRY_ATTEMPTS_MAX if attempts_max is None else attempts_max
        times = entry.reconsume_times + 1
        if header.delay_level < 0 or entry.reconsume_times >= attempts_max:
            dead = dead_letter_topic(header.group)
            model.tables.topics.setdefault(dead, 1)
            return [Expected(dead, 0, entry.body, entry.tag, 0, times)]
        level = min(header.delay_level or 3 + entry.reconsume_times, _LEVEL_MAX)
        retry = retry_topic(header.group)
        return [Expected(retry, 0, entry.body, entry.tag, level, times, SCHEDULE_TOPIC)]

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        wanted = ResponseCode.SUCCESS if asked.expected_count else ResponseCode.SYSTEM_ERROR
        if reply.code != wanted:
            raise Violation(f"a send-back is answered {reply.code}, not {wanted}: {reply}")

    def may_wait(self, model: Model, asked: Asked) -> bool:
        return False
