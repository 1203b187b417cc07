"""After the handler: finished, held, sent back, or a dead letter, and never dropped."""

import msgspec
import pytest
from tests.client.script import World, fails, group_of, in_turn, says

from reliable_mq.client.consuming.assigned_queue import AssignedQueue
from reliable_mq.client.consuming.consumer_group import ConsumerGroup
from reliable_mq.client.consuming.settling import delay_level_of, settle
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.errors import ConnectionLost, UsageError
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome, Reject, Retry, checked_outcomes
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.headers import SendBackHeader, SendMessageHeaderV2
from reliable_mq.wire.message_id import ledger_id
from reliable_mq.wire.properties import decode_properties

SEND = RequestCode.SEND_MESSAGE_V2
BACK = RequestCode.CONSUMER_SEND_MSG_BACK
QUEUE = MessageQueue("t", "a", 0)
STORED = says(ext={"msgId": "X", "queueId": "0", "queueOffset": "0"})


class Scene:
    """One running message of a group, and what becomes of it."""

    def __init__(
        self,
        *,
        key: str = "",
        ordered: bool = True,
        attempts: int = 3,
        failed: int = 0,
        waits: tuple[float, ...] = (),
    ) -> None:
        self.world = World({SEND: STORED, BACK: says()})
        subscription = Subscription(
            group="g",
            topics={"t": "*"},
            ordered=ordered,
            max_attempts=attempts,
            retry_waits=waits,
        )
        self.group: ConsumerGroup = group_of(self.world, subscription, queues={"a": 1})
        self.queue: AssignedQueue = self.group.assign(QUEUE)
        self.queue.start_at(0)
        self.queue.lock_until(self.world.seconds + 3600)
        message = ReceivedMessage(
            topic="t",
            body=b"body",
            tag="paid",
            keys=("k",),
            message_id="ID",
            ordering_key=key,
            properties={"UNIQ_KEY": "ID", "TAGS": "paid", "colour": "red", "CLUSTER": "c"},
            queue=QUEUE,
            queue_offset=0,
            commit_log_offset=4711,
            offset_message_id="7F00000100002A9F0000000000001267",
            reconsume_times=failed,
        )
        self.queue.add_pulled([message], 1)
        (self.message,) = self.queue.take_ready(1, self.world.seconds)

    def settle(self, outcome: Outcome) -> None:
        self.world.play(settle(self.group, self.queue, self.message, outcome))
        self.group.invariants()

    @property
    def is_finished(self) -> bool:
        return self.queue.unfinished == 0

    def back(self) -> SendBackHeader:
        return SendBackHeader.decode(self.world.calls_of(BACK)[-1].command.ext_fields)

    def sent(self) -> tuple[SendMessageHeaderV2, dict[str, str]]:
        header = SendMessageHeaderV2.decode(self.world.calls_of(SEND)[-1].command.ext_fields)
        return header, decode_properties((header.properties or "").encode())


def test_a_consumed_message_is_finished_without_a_word() -> None:
    scene = Scene()
    scene.settle(CONSUMED)
    assert scene.is_finished
    assert scene.world.calls == []


@pytest.mark.parametrize("ordered", [True, False])
def test_a_message_without_a_key_is_sent_back(ordered: bool) -> None:
    scene = Scene(ordered=ordered)
    scene.settle(Retry())
    assert scene.is_finished
    header = scene.back()
    assert (header.offset, header.group, header.delay_level) == (4711, "g", 0)
    assert (header.origin_topic, header.max_reconsume_times) == ("t", 3)


def test_a_keyed_message_is_sent_back_when_order_does_not_count() -> None:
    scene = Scene(key="k", ordered=False)
    scene.settle(Retry(after=30))
    assert scene.back().delay_level == 4


def test_a_keyed_message_is_held_and_handed_out_again_as_the_next_attempt() -> None:
    scene = Scene(key="k")
    scene.settle(Retry(after=2.5))
    assert scene.world.calls == []
    assert scene.group.wake(scene.world.seconds) == scene.world.seconds + 2.5
    scene.group.wake(scene.world.seconds + 2.5)
    (again,) = scene.group.take_ready(scene.world.seconds + 2.5)
    assert again.reconsume_times == 1


def test_the_usual_delay_of_a_held_message_doubles() -> None:
    delays = []
    for failed in range(8):
        scene = Scene(key="k", attempts=16, failed=failed)
        scene.settle(Retry())
        delays.append((scene.queue.next_due() or 0) - scene.world.seconds)
    assert delays == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_groups_own_waits_are_exact_for_what_is_held_and_the_last_goes_on() -> None:
    delays = []
    for failed in range(4):
        scene = Scene(key="k", attempts=16, failed=failed, waits=(0.5, 7.0))
        scene.settle(Retry())
        delays.append((scene.queue.next_due() or 0) - scene.world.seconds)
    assert delays == [0.5, 7, 7, 7]


def test_a_groups_own_waits_become_delay_levels_for_what_is_sent_back() -> None:
    levels = []
    for failed in range(3):
        scene = Scene(failed=failed, attempts=16, waits=(4.0, 60.0))
        scene.settle(Retry())
        levels.append(scene.back().delay_level)
    assert levels == [2, 5, 5]


def test_a_time_that_the_handler_says_counts_more_than_the_groups() -> None:
    scene = Scene(key="k", waits=(7.0,))
    scene.settle(Retry(2.0))
    assert scene.queue.next_due() == scene.world.seconds + 2
    scene = Scene(key="k", waits=(7.0,))
    scene.settle(Retry(counts=False))
    assert scene.queue.next_due() == scene.world.seconds + 1, "it was no attempt"


def test_what_does_not_count_is_held_without_a_key_too_and_never_runs_out_of_attempts() -> None:
    scene = Scene(attempts=1, failed=7)
    scene.settle(Retry(after=1, counts=False))
    assert not scene.is_finished
    assert scene.world.calls == []


@pytest.mark.parametrize("key", ["", "k"])
def test_the_last_attempt_makes_a_dead_letter(key: str) -> None:
    scene = Scene(key=key, attempts=3, failed=2)
    scene.settle(Retry(reason="ValueError: no"))
    header, properties = scene.sent()
    assert header.topic == "%DLQ%g"
    assert properties["DEAD_LETTER_REASON"] == "attempt 3 of 3 failed: ValueError: no"
    assert scene.is_finished


def test_a_dead_letter_carries_the_message_its_origin_and_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    scene.settle(Reject("no such customer\x01\nat all"))
    (line,) = caplog.messages
    assert line.endswith("is a dead letter: no such customer  at all")
    call = scene.world.calls_of(SEND)[-1]
    _, properties = scene.sent()
    assert call.command.body == b"body"
    assert properties == {
        "UNIQ_KEY": "ID",
        "TAGS": "paid",
        "KEYS": "k",
        "WAIT": "true",
        "colour": "red",
        "RETRY_TOPIC": "t",
        "ORIGIN_MESSAGE_ID": "7F00000100002A9F0000000000001267",
        "DEAD_LETTER_REASON": "no such customer  at all",
    }


def test_a_dead_letter_keeps_the_id_that_its_producer_chose_though_no_ledger_holds_it() -> None:
    scene, chosen = Scene(), "x" * 300
    scene.message = msgspec.structs.replace(
        scene.message, message_id=ledger_id(chosen), properties={"UNIQ_KEY": chosen}
    )
    scene.settle(Reject("reason"))
    _, properties = scene.sent()
    assert properties["UNIQ_KEY"] == chosen


def test_a_dead_letter_that_cannot_be_sent_is_moved_by_the_broker() -> None:
    scene = Scene()
    scene.world.answers[SEND] = says(ResponseCode.MESSAGE_ILLEGAL, remark="no")
    scene.settle(Reject("reason"))
    assert scene.back().delay_level == -1
    assert scene.is_finished


def test_a_dead_letter_is_tried_until_it_is_stored() -> None:
    scene = Scene()
    scene.world.answers[SEND] = in_turn(*[says(ResponseCode.MESSAGE_ILLEGAL)] * 3, STORED)
    scene.world.answers[BACK] = fails(ConnectionLost("gone"))
    scene.settle(Reject("reason"))
    assert len(scene.world.calls_of(SEND)) == 4
    assert scene.world.waits == [5.0] * 3
    assert scene.is_finished


def test_a_message_that_the_broker_does_not_take_back_is_sent_to_the_retry_topic() -> None:
    scene = Scene(attempts=16, failed=2, ordered=False)
    scene.world.answers[BACK] = says(ResponseCode.SYSTEM_ERROR, remark="look message by offset")
    scene.settle(Retry())
    header, properties = scene.sent()
    assert header.topic == "%RETRY%g"
    assert (header.reconsume_times, header.max_reconsume_times) == (3, 16)
    assert (properties["RETRY_TOPIC"], properties["DELAY"]) == ("t", "5")
    assert properties["UNIQ_KEY"] == "ID"
    assert scene.is_finished


def test_a_group_that_holds_locks_sends_nothing_to_its_retry_topic_where_it_would_be_dead() -> None:
    scene = Scene()
    scene.world.answers[BACK] = says(ResponseCode.SYSTEM_ERROR, remark="look message by offset")
    scene.settle(Retry())
    assert scene.world.calls_of(SEND) == []
    assert not scene.is_finished


def test_an_ordered_group_never_sends_to_its_retry_topic_itself() -> None:
    """A broker that knows locks of the group would make a dead letter of it."""
    scene = Scene()
    scene.world.answers[BACK] = says(ResponseCode.SYSTEM_ERROR, remark="look message by offset")
    scene.settle(Retry())
    assert scene.world.calls_of(SEND) == []
    assert not scene.is_finished
    assert scene.queue.next_due() == scene.world.seconds + 5


def test_a_message_that_goes_nowhere_is_held_and_the_attempt_does_not_count() -> None:
    scene = Scene(ordered=False)
    scene.world.answers[BACK] = fails(ConnectionLost("gone"))
    scene.world.answers[SEND] = fails(ConnectionLost("gone"))
    scene.settle(Retry())
    due = scene.group.wake(scene.world.seconds)
    assert due == scene.world.seconds + 5
    scene.group.wake(due)
    (again,) = scene.group.take_ready(due)
    assert again.reconsume_times == 0


@pytest.mark.parametrize(
    ("seconds", "level"),
    [(None, 0), (0, 1), (1, 1), (1.1, 2), (10, 3), (60, 5), (601, 15), (7200, 18), (1e9, 18)],
)
def test_a_delay_becomes_the_shortest_level_that_is_long_enough(
    seconds: float | None, level: int
) -> None:
    assert delay_level_of(seconds) == level


@pytest.mark.parametrize("answer", [None, [], [CONSUMED] * 3, ["done", "done"], "xy"])
def test_what_is_not_one_outcome_for_each_message_is_refused(answer: object) -> None:
    with pytest.raises(UsageError):
        checked_outcomes(answer, 2)
