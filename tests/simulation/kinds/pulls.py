"""Pulls: what a queue shows from an offset on, at once or when something comes."""

from typing import NamedTuple

from tests.simulation.asked import Asked
from tests.simulation.client import Memory
from tests.simulation.facts import Entry, Expected, Violation, first_kept
from tests.simulation.model import Model
from tests.simulation.waiting import Wait

from reliable_mq.broker_core.names import SCHEDULE_TOPIC, dead_letter_topic, retry_topic
from reliable_mq.broker_core.requests.refusal import of_unverified
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import PullMessageHeader, PullResultHeader
from reliable_mq.wire.record import iter_records

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
_COUNT_MAX = 32
MOVED = ResponseCode.PULL_OFFSET_MOVED
_UNVERIFIED = of_unverified()
_SUBSCRIPTIONS = ("*", "*", "red", "green || blue")
_NOT_SUBSCRIBED = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
)


class _Reset(NamedTuple):
    """What a pull is told in the place of messages."""

    offset: int


class Pull:
    """A pull that says itself what it wants, and may wait for it."""

    def make(self, memory: Memory) -> Command | None:
        random = memory.random
        place = memory.place()
        if random.random() < 0.15:
            names = (retry_topic(memory.group), dead_letter_topic(memory.group), SCHEDULE_TOPIC)
            place = (random.choice(names), 0)
        known = memory.next_offsets.get(place, 0)
        offset = max(0, known + random.choice((0, 0, 0, 0, 0, -3, 1, 40)))
        header = PullMessageHeader(
            consumer_group=memory.group,
            topic=place[0],
            queue_id=place[1],
            queue_offset=offset,
            max_msg_nums=random.choice((1, 4, 32, 100)),
            sys_flag=SUBSCRIPTION | random.choice((0, SUSPEND)) | random.choice((0, COMMIT)),
            commit_offset=known,
            suspend_timeout_millis=random.choice((100, 1_000, 5_000)),
            subscription="*" if place[0] == SCHEDULE_TOPIC else random.choice(_SUBSCRIPTIONS),
        )
        return request(RequestCode.PULL_MESSAGE, header.to_ext())

    def learn(self, memory: Memory, command: Command, reply: Command) -> None:
        if "nextBeginOffset" in reply.ext_fields:
            header = PullMessageHeader.decode(command.ext_fields)
            place = (header.topic, header.queue_id)
            memory.next_offsets[place] = PullResultHeader.decode(reply.ext_fields).next_begin_offset
            for record in iter_records(reply.body):
                memory.saw(record.commit_log_offset)

    def expect(self, model: Model, asked: Asked) -> list[Expected]:
        header = PullMessageHeader.decode(asked.command.ext_fields)
        tables = model.tables
        tables.groups.add(header.consumer_group)
        asked.facts = header.topic in tables.topics
        if not asked.facts:
            return []
        place = (header.consumer_group, header.topic, header.queue_id)
        if place in tables.resets:
            offset = tables.resets.pop(place)
            if not model.waiting.has_reset(*place):
                asked.facts = _Reset(offset)
                return []
            tables.doubtful[place] = offset  # one that waits is told, this one, or both
        if header.sys_flag & COMMIT:
            tables.commit(*place, header.commit_offset)
        count = model.shown_count(header.topic, header.queue_id)
        finds_nothing = header.queue_offset == count
        if finds_nothing and header.sys_flag & SUSPEND and not asked.command.is_oneway:
            model.waiting.hold(
                Wait(
                    asked,
                    header.topic,
                    header.queue_id,
                    _tags(header),
                    asked.now_ms + header.suspend_timeout_millis,
                    group=header.consumer_group,
                )
            )
        return []

    def check(self, model: Model, asked: Asked, reply: Command) -> None:
        header = PullMessageHeader.decode(asked.command.ext_fields)
        wait = asked.facts
        if not wait or reply.code == ResponseCode.TOPIC_NOT_EXIST:
            if wait or reply.code != ResponseCode.TOPIC_NOT_EXIST:
                raise Violation(f"a pull of {header.topic}, known or not: {reply}")
            return
        if isinstance(wait, Wait) and wait.must_be_answered and is_of_fenced(model, reply):
            return
        if reply.code in _NOT_SUBSCRIBED and not header.sys_flag & SUBSCRIPTION:
            return
        result = PullResultHeader.decode(reply.ext_fields)
        place = (header.consumer_group, header.topic, header.queue_id)
        if isinstance(wait, Wait) and wait.must_be_answered and place in model.tables.resets:
            if wait.resets > 1:
                model.tables.doubtful[place] = model.tables.resets[place]
            wait = _Reset(model.tables.resets.pop(place))  # the first of its group's pulls
        if isinstance(wait, _Reset):
            if (reply.code, result.next_begin_offset) != (MOVED, wait.offset):
                raise Violation(f"{header} is not told of a reset to {wait.offset}, but {reply}")
            return
        told = (reply.code, result.next_begin_offset)
        if told == (MOVED, model.tables.doubtful.get(place)):
            return
        shown = _shown(model, asked, header, result.max_offset)
        if result.max_offset != len(shown):
            raise Violation(f"a pull says {result.max_offset}, the queue ends at {len(shown)}")
        if isinstance(wait, Wait) and not wait.must_be_answered:
            raise Violation(f"a pull of {header.topic} that waits is answered without reason")
        start = model.start if isinstance(wait, Wait) else asked.start
        _check_found(header, shown, reply, result.next_begin_offset, start)

    def may_wait(self, model: Model, asked: Asked) -> bool:
        return model.waiting.is_held(asked)


def is_of_fenced(model: Model, reply: Command) -> bool:
    """Whether a master refuses to show messages because another broker was promoted."""
    is_refusal = (reply.code, reply.remark) == (_UNVERIFIED.code, _UNVERIFIED.remark)
    return model.is_fenced and is_refusal and not (reply.ext_fields or reply.body)


def _shown(model: Model, asked: Asked, header: PullMessageHeader, max_offset: int) -> list[Entry]:
    """Return what the queue showed when it had so many messages; if never, what it shows now."""
    is_held = isinstance(asked.facts, Wait)
    since = [model.visible, *model.visible_before] if is_held else [asked.visible]
    shown = [model.shown(header.topic, header.queue_id, visible) for visible in since]
    return next((each for each in shown if len(each) == max_offset), shown[0])


def _tags(header: PullMessageHeader) -> frozenset[str] | None:
    if not header.sys_flag & SUBSCRIPTION or header.subscription in ("", "*", None):
        return None
    return frozenset(tag.strip() for tag in (header.subscription or "").split("||"))


def _check_found(
    header: PullMessageHeader, shown: list[Entry], reply: Command, next_offset: int, start: int
) -> None:
    """Compare what was found with what the queue shows. A pull may end early, never with a gap.

    Of what has expired nothing is found; the queue follows the log's `start` a little later, and
    tells whoever is behind where it begins.
    """
    offset, tags = header.queue_offset, _tags(header)
    if reply.code == MOVED and offset < next_offset <= first_kept(shown, start):
        return
    found = [
        (r.topic, r.queue_id, r.queue_offset, r.body, r.commit_log_offset, r.reconsume_times)
        for r in iter_records(reply.body)
    ]
    if offset == len(shown):
        code, next_wanted = ResponseCode.PULL_NOT_FOUND, offset
    elif offset > len(shown):
        code, next_wanted = ResponseCode.PULL_OFFSET_MOVED, len(shown)
    else:
        code, next_wanted = ResponseCode.SUCCESS, next_offset
        if not offset < next_offset <= len(shown):
            raise Violation(f"a pull from {offset} of {len(shown)} goes on at {next_offset}")
    wanted = [
        (e.topic, e.queue_id, e.queue_offset, e.body, e.log_offset, e.reconsume_times)
        for e in shown[offset:next_offset]
        if e.log_offset >= start and (tags is None or e.tag in tags)
    ]
    if code == ResponseCode.SUCCESS and not wanted:
        code = ResponseCode.PULL_RETRY_IMMEDIATELY
    if (reply.code, next_offset) != (code, next_wanted):
        raise Violation(
            f"a pull of {header.topic}/{header.queue_id} from {offset} of {len(shown)} says "
            f"{reply.code} and {next_offset}, not {code} and {next_wanted}"
        )
    if found != wanted:
        raise Violation(f"a pull from {offset} of {header.topic} returns {found}, not {wanted}")
    if len(found) > max(1, min(header.max_msg_nums, _COUNT_MAX)):
        raise Violation(f"a pull for {header.max_msg_nums} returns {len(found)}")
