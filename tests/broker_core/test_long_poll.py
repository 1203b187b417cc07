"""Pulls that wait: who is answered, when, and what is left behind."""

from functools import partial

import pytest
from tests.broker_core.broker_world import (
    GROUP,
    TOPIC,
    BrokerWorld,
    send_header,
    waiting_pull_header,
)

from reliable_mq.broker_core import core
from reliable_mq.broker_core.delivery.long_poll import PullLimits, WaitingPull, WaitingPulls
from reliable_mq.broker_core.requests import pull as pulls
from reliable_mq.broker_core.requests import pull_wanted, subscription
from reliable_mq.broker_core.state import BrokerState, Turn
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.record import iter_records


def hold(world: BrokerWorld, offset: int = 0, of: int = 1, **changes: object) -> int:
    """Let a pull wait and return its opaque."""
    assert world.begin(Ask.PULL_MESSAGE, waiting_pull_header(offset, **changes), of=of) is None
    return world.last_opaque


def answered(world: BrokerWorld, opaque: int, of: int = 1) -> Command:
    answer = world.reply_to(opaque, of=of)
    assert answer is not None
    return answer


def test_a_pull_at_the_end_waits_and_is_answered_by_the_next_message(world: BrokerWorld) -> None:
    world.create_topic()
    opaque = hold(world)

    world.send(b"hello")

    answer = answered(world, opaque)
    assert (answer.code, answer.remark) == (Code.SUCCESS, "FOUND")
    assert answer.ext_fields["nextBeginOffset"] == "1"
    assert b"hello" in answer.body


def test_a_message_wakes_nobody_before_it_is_durable(world: BrokerWorld) -> None:
    world.create_topic()
    opaque = hold(world)

    world.is_writing = False
    world.begin(Ask.SEND_MESSAGE_V2, {**send_fields(), "e": 0}, b"x", of=2)
    assert world.reply_to(opaque) is None
    world.is_writing = True
    world.write()
    world.finish_turn()

    assert answered(world, opaque).code == Code.SUCCESS


def send_fields() -> dict[str, object]:
    return {"a": "p", "b": TOPIC, "c": "TBW102", "d": 1, "f": 0, "g": 0, "h": 0}


def test_only_a_message_with_a_wanted_tag_ends_the_wait(world: BrokerWorld) -> None:
    world.create_topic()
    opaque = hold(world, subscription="red || blue")

    world.send(b"1", TAGS="green")
    assert world.reply_to(opaque) is None
    world.send(b"2", TAGS="blue")

    answer = answered(world, opaque)
    assert answer.ext_fields["nextBeginOffset"] == "2"
    assert b"2" in answer.body


def test_a_wait_for_other_tags_ends_with_the_progress_over_what_did_not_match(
    world: BrokerWorld,
) -> None:
    world.create_topic()
    opaque = hold(world, subscription="red")
    world.send(TAGS="green")

    world.pass_time(15_000)

    answer = answered(world, opaque)
    assert (answer.code, answer.remark) == (Code.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert answer.ext_fields["nextBeginOffset"] == "1"


def test_a_wait_ends_with_its_time_and_not_before(world: BrokerWorld) -> None:
    world.create_topic()
    opaque = hold(world, suspendTimeoutMillis=5_000)

    world.pass_time(4_900)
    assert world.reply_to(opaque) is None
    world.pass_time(100)

    assert answered(world, opaque).code == Code.PULL_NOT_FOUND
    assert len(world.state.pulls) == 0, "it is not held a second time"


def test_without_long_polling_a_pull_waits_a_second() -> None:
    world = BrokerWorld(longPollingEnable="false")
    world.create_topic()
    opaque = hold(world)

    world.pass_time(900)
    assert world.reply_to(opaque) is None
    world.pass_time(100)

    assert answered(world, opaque).code == Code.PULL_NOT_FOUND


def test_the_wait_of_a_closed_connection_is_forgotten(world: BrokerWorld) -> None:
    world.create_topic()
    opaque = hold(world, of=1)
    other = hold(world, of=2)

    world.core.disconnected(1)
    world.send()

    assert world.reply_to(opaque, of=1) is None
    assert answered(world, other, of=2).code == Code.SUCCESS


def test_what_was_forbidden_during_the_wait_is_said_when_it_ends(world: BrokerWorld) -> None:
    world.create_topic()
    opaque = hold(world)

    world.ask(Ask.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    world.pass_time(15_000)

    assert answered(world, opaque).code == Code.TOPIC_NOT_EXIST


def test_a_pull_that_waits_commits_what_it_brought_at_once_and_once(world: BrokerWorld) -> None:
    world.create_topic()
    world.send()
    opaque = hold(world, 1, sysFlag=7, commitOffset=1)
    assert world.state.offsets.get(GROUP, TOPIC, 0) == 1

    world.state.offsets.commit(GROUP, TOPIC, 0, 0)  # a reset while it waits
    world.send()

    assert answered(world, opaque).code == Code.SUCCESS
    assert world.state.offsets.get(GROUP, TOPIC, 0) == 0


def waiting(number: int, deadline_ms: int, tags: frozenset[int] | None = None) -> WaitingPull:
    header = PullMessageHeader(
        consumer_group=GROUP,
        topic=TOPIC,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=1,
        sys_flag=2,
        commit_offset=0,
        suspend_timeout_millis=0,
    )
    return WaitingPull(number, "", request(11), header, deadline_ms, tags)


def woken(pulls: WaitingPulls, tag: int) -> list[WaitingPull]:
    """Let a message with a tag arrive, and return whom it wakes."""
    pulls.arrived(TOPIC, 0, {tag})
    return list(iter(pulls.take_ready, None))


def due(pulls: WaitingPulls, now_ms: int) -> list[WaitingPull]:
    """Return the pulls whose time is over, and let them wait no longer."""
    return list(iter(partial(pulls.take_due, now_ms), None))


def test_nothing_is_kept_of_pulls_that_were_answered_early() -> None:
    pulls = WaitingPulls()

    for round_number in range(2_000):
        pulls.hold(waiting(1, 1_000_000 + round_number))
        assert len(woken(pulls, 0)) == 1

    pulls.invariants()
    assert len(pulls._deadlines) < 100
    assert not pulls._by_queue
    assert not pulls._by_connection


def test_an_arrival_looks_only_at_those_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pulls = WaitingPulls()
    for number in range(1000):
        pulls.hold(waiting(number, 99, frozenset({number})))
    removed: list[int] = []
    remove = pulls._remove

    def removing(number: int) -> WaitingPull:
        removed.append(number)
        return remove(number)

    monkeypatch.setattr(pulls, "_remove", removing)

    awake = woken(pulls, 7)

    assert [pull.connection for pull in awake] == [7]
    assert len(removed) == 1
    pulls.invariants()


def test_pulls_fall_due_in_the_order_of_their_deadlines() -> None:
    pulls = WaitingPulls()
    for number, deadline_ms in enumerate((30, 10, 20)):
        pulls.hold(waiting(number, deadline_ms))

    assert [pull.deadline_ms for pull in due(pulls, 20)] == [10, 20]
    pulls.forget(0)
    assert due(pulls, 30) == []


def test_a_pull_of_several_tags_is_answered_once() -> None:
    pulls = WaitingPulls()
    pulls.hold(waiting(1, 99, frozenset({tags_code("red"), tags_code("blue")})))

    assert len(woken(pulls, tags_code("red"))) == 1
    assert woken(pulls, tags_code("blue")) == []
    assert due(pulls, 99) == []
    pulls.invariants()


def test_a_waiting_pull_that_cannot_be_read_is_answered_so_and_costs_nobody_else(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the medium does not read")

    world.create_topic()
    opaque = hold(world)
    with monkeypatch.context() as patched:
        patched.setattr(pulls, "find", fail)
        world.send(b"hello")
    late = hold(world, offset=1)
    world.send(b"again")

    assert answered(world, opaque).code == Code.SYSTEM_ERROR
    assert answered(world, late).code == Code.SUCCESS


def test_a_connection_that_lets_too_many_pulls_wait_is_told_so(world: BrokerWorld) -> None:
    world.state.pulls = WaitingPulls(PullLimits(count_of_one=3))
    world.create_topic()
    for _ in range(3):
        hold(world)
    world.state.offsets.commit(GROUP, TOPIC, 0, 0)
    refused = world.ask(Ask.PULL_MESSAGE, waiting_pull_header(sysFlag=7, commitOffset=9))
    assert refused.code == Code.SYSTEM_BUSY
    assert world.state.offsets.get(GROUP, TOPIC, 0) == 0, "a refused request changes nothing"
    hold(world, of=2)
    world.send()
    hold(world, offset=1)


@pytest.mark.parametrize("limits", [PullLimits(size_of_one=9_000), PullLimits(size_of_all=9_000)])
def test_what_waiting_pulls_take_of_the_memory_is_limited(
    world: BrokerWorld, limits: PullLimits
) -> None:
    world.state.pulls = WaitingPulls(limits)
    world.create_topic()
    hold(world, subscription="||".join(f"t{number}" for number in range(15)))
    assert world.ask(Ask.PULL_MESSAGE, waiting_pull_header(subscription="a" * 900)).code == (
        Code.SYSTEM_BUSY
    )
    hold(world)
    world.core.disconnected(1)
    world.state.pulls.invariants()
    hold(world, subscription="a" * 900)


def test_nothing_is_kept_of_a_waiting_command_but_what_its_answer_needs(
    world: BrokerWorld,
) -> None:
    world.create_topic()
    hold(world, junk="x" * 1_000_000)
    (pull,) = world.state.pulls.of_group(TOPIC, 0, GROUP)
    assert not pull.command.ext_fields


@pytest.mark.parametrize("wanted", [{}, {"subscription": "price = 1", "expressionType": "SQL92"}])
def test_one_turn_answers_only_some_of_very_many_that_a_message_wakes(
    wanted: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = BrokerWorld(enablePropertyFilter="true")
    world.create_topic()
    opaques = [hold(world, 0, 1, **wanted) for _ in range(2_000)]
    world.inbox.clear()
    answers = [0]

    def counted(state: BrokerState, pull: WaitingPull) -> int:
        answers[-1] += 1
        return pulls.answer_waiting(state, pull)

    monkeypatch.setattr(core, "answer_waiting", counted)
    take_turn = world.core.take_turn

    def turning(began_ms: int = 0, now_ms: int = 0, work_us_max: float = 0.0) -> Turn:
        answers.append(0)
        return take_turn(began_ms, now_ms, work_us_max)

    world.core.take_turn = turning  # type: ignore[method-assign]
    world.send(price="1")
    while world.state.is_turn_due:
        world.finish_turn()
    assert sum(answers) == len(opaques)
    assert max(answers) < 1_000
    assert all(world.reply_to(opaque) for opaque in opaques)


def distinct_tags(number: int) -> str:
    """Return 900 tags, one of which many pulls share."""
    return "||".join(("shared", *(f"t{number}-{tag}" for tag in range(900))))


@pytest.mark.parametrize("ends_by", ["message", "time"])
def test_pulls_by_very_many_tags_are_answered_a_few_at_a_time_and_not_parsed_again(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    world.create_topic()
    opaques = [hold(world, subscription=distinct_tags(number)) for number in range(90)]
    monkeypatch.setattr(pull_wanted, "tags_code", None)
    at_once = []
    if ends_by == "message":
        world.is_writing = False
        world.begin(Ask.SEND_MESSAGE_V2, send_header(TAGS="shared"), b"x")
        world.write()
        at_once.append(len(world.state.pulls))
    else:
        world.now_ms += 15_000
        world.core.tick(world.now_ms)
        at_once.append(len(world.state.pulls))
    assert 20 < at_once[0] < 90
    world.is_writing = True
    world.pass_time(1_000, step=20)
    assert all(world.reply_to(opaque) for opaque in opaques)


def test_a_large_filter_is_not_compiled_again_when_its_pull_is_woken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = BrokerWorld(enablePropertyFilter="true")
    world.create_topic()
    texts = [f"price = 1 OR name = '{number:0>600}'" for number in range(80)]
    opaques = [hold(world, subscription=text, expressionType="SQL92") for text in texts]
    monkeypatch.setattr(subscription, "compile_filter", None)
    world.send(price="1")
    world.pass_time(1_000, step=20)
    assert all(answered(world, opaque).code == Code.SUCCESS for opaque in opaques)


def test_a_group_that_changes_its_tags_while_it_waits_gets_what_it_wants_now(
    world: BrokerWorld,
) -> None:
    world.create_topic()
    rows = [{"topic": TOPIC, "subString": "a", "codeSet": [tags_code("a")], "subVersion": 1}]
    world.subscribe(subscriptionDataSet=rows)
    opaque = hold(world, sysFlag=2, subscription=None)
    rows[0] |= {"codeSet": [tags_code("b")], "subVersion": 2}
    world.subscribe(subscriptionDataSet=rows)
    world.send(b"1", TAGS="b")
    world.send(b"2", TAGS="a")
    found = answered(world, opaque)
    assert [record.body for record in iter_records(found.body)] == [b"1"]


def test_one_tick_answers_only_some_of_very_many_whose_time_is_over(world: BrokerWorld) -> None:
    world.create_topic()
    for _ in range(2_000):
        hold(world)
    world.pass_time(15_000, step=15_000)
    assert 0 < len(world.state.pulls) < 2_000
    world.pass_time(1_000, step=20)
    assert len(world.state.pulls) == 0
