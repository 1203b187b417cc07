"""Pops that wait: a message wakes one of each group, and a wait ends in time."""

from collections.abc import Iterator

import pytest
from tests.broker_core.broker_world import GROUP, TOPIC, connection, send_header, there
from tests.broker_core.pop_world import INVISIBLE_MS, PopWorld, taken

from reliable_mq.broker_core.delivery.waiting_pops import WaitingPop
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.wire.batch_body import BatchItem, encode_batch
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Answer
from reliable_mq.wire.properties import encode_properties


@pytest.fixture
def world() -> Iterator[PopWorld]:
    world = PopWorld()
    yield world
    world.check()


def send_some(world: PopWorld, count: int) -> None:
    for number in range(count):
        world.send(b"%d" % number)


def test_a_pop_waits_for_a_message(world: PopWorld) -> None:
    assert world.begin(Ask.POP_MESSAGE, world.pop_header(pollTime=15_000), of=2) is None
    opaque = world.last_opaque

    world.send(b"new")

    answer = there(world.reply_to(opaque, of=2))
    assert [each.body for each in taken(answer)] == [b"new"]


def test_a_pop_that_waited_in_vain_is_told_so(world: PopWorld) -> None:
    assert world.begin(Ask.POP_MESSAGE, world.pop_header(pollTime=3_000)) is None
    opaque = world.last_opaque

    world.pass_time(2_900)
    assert world.reply_to(opaque) is None
    world.pass_time(100)

    answer = there(world.reply_to(opaque))
    assert (answer.code, answer.remark) == (Answer.POLLING_TIMEOUT, "NO_MESSAGE_IN_QUEUE")


def test_a_waiting_pop_gets_a_message_that_comes_back(world: PopWorld) -> None:
    send_some(world, 1)
    world.pop()
    assert world.begin(Ask.POP_MESSAGE, world.pop_header(pollTime=15_000), of=2) is None
    opaque = world.last_opaque

    world.pass_time(INVISIBLE_MS, step=20)

    answer = there(world.reply_to(opaque, of=2))
    assert [each.body for each in taken(answer)] == [b"0"]


def test_a_message_wakes_one_pop_of_each_group(world: PopWorld) -> None:
    waiting = []
    for of, group in enumerate((GROUP, GROUP, "others"), 1):
        header = world.pop_header(pollTime=15_000, consumerGroup=group)
        assert world.begin(Ask.POP_MESSAGE, header, of=of) is None
        waiting.append((world.last_opaque, of))

    world.send(b"one")

    answers = [world.reply_to(opaque, of=of) for opaque, of in waiting]
    assert [answer is not None for answer in answers] == [True, False, True]


def test_the_messages_that_a_woken_pop_leaves_wake_the_next_one(world: PopWorld) -> None:
    for of in (1, 2):
        header = world.pop_header(pollTime=15_000, maxMsgNums=1)
        assert world.begin(Ask.POP_MESSAGE, header, of=of) is None
    world.is_writing = False
    for body in (b"a", b"b"):
        world.begin(Ask.SEND_MESSAGE_V2, send_header(), body, of=3)
    world.is_writing = True
    world.finish_turn()
    world.pass_time(20, step=20)

    found = [taken(answer)[0].body for of in (1, 2) for answer in world.inbox[of]]
    assert found == [b"a", b"b"]


def foreign(count: int) -> list[bytes]:
    """Return batches of messages that the tests' pops with a filter do not want."""
    item = BatchItem(0, b"f", encode_properties({"TAGS": "A", "UNIQ_KEY": "F" * 32}))
    return [encode_batch([item] * min(250, count - at)) for at in range(0, count, 250)]


def send_foreign(world: PopWorld, count: int) -> None:
    for body in foreign(count):
        assert world.ask(Ask.SEND_BATCH_MESSAGE, send_header(), body, of=9).code == 0


def test_one_poll_finds_its_message_behind_thousands_of_others(world: PopWorld) -> None:
    send_foreign(world, 5_000)
    world.send(b"wanted", TAGS="B")

    answer = world.begin(Ask.POP_MESSAGE, world.pop_header(exp="B", pollTime=15_000), of=2)

    assert [each.body for each in taken(there(answer))] == [b"wanted"]


def test_a_pop_looks_at_each_message_once_and_then_rests(
    world: PopWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[WaitingPop] = []
    hold = world.state.pops.hold

    def count(pop: WaitingPop) -> None:
        looks.append(pop)
        hold(pop)

    monkeypatch.setattr(world.state.pops, "hold", count)
    send_foreign(world, 5_000)

    world.begin(Ask.POP_MESSAGE, world.pop_header(exp="B", pollTime=15_000), of=2)
    world.pass_time(5_000)

    assert len(looks) <= 2 + 5_000 // 800  # the first time it waits until its group is saved
    assert not world.state.pops.ready
    world.send(b"wanted", TAGS="B")
    assert [taken(answer)[0].body for answer in world.inbox[2]] == [b"wanted"]


def test_a_turn_looks_at_a_bounded_number_of_messages(world: PopWorld) -> None:
    send_foreign(world, 40_000)
    world.send(b"wanted", TAGS="B")
    assert world.begin(Ask.POP_MESSAGE, world.pop_header(exp="B", pollTime=15_000), of=2) is None
    before = there(world.state.offsets.get(GROUP, TOPIC, 0))

    world.is_writing = False
    world.finish_turn()

    looked_at = there(world.state.offsets.get(GROUP, TOPIC, 0)) - before
    assert 800 <= looked_at <= 12 * 800
    assert world.state.is_turn_due
    world.is_writing = True
    world.pass_time(1_000)
    assert [taken(answer)[0].body for answer in world.inbox[2]] == [b"wanted"]


def two_wait(world: PopWorld, **changes: object) -> None:
    for of in (2, 3):
        header = world.pop_header(pollTime=15_000, **changes)
        assert world.begin(Ask.POP_MESSAGE, header, of=of) is None


@pytest.mark.parametrize("error", [RequestRefused(Answer.NO_PERMISSION, "revoked"), OSError()])
def test_a_woken_pop_that_is_refused_wakes_the_next_one(
    world: PopWorld, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    two_wait(world)

    def refuse(_state: object, _code: int, _user: str, address: str, _header: object) -> None:
        if address == connection(2).address:
            raise error

    monkeypatch.setattr("reliable_mq.broker_core.requests.pop.refuse_revoked", refuse)
    world.send(b"new")

    world.finish_turn()

    codes = [answer.code for answer in world.inbox[2]]
    assert codes in ([Answer.NO_PERMISSION], [Answer.SYSTEM_ERROR])
    assert [taken(answer)[0].body for answer in world.inbox[3]] == [b"new"]


def test_a_woken_pop_whose_connection_closes_wakes_the_next_one(world: PopWorld) -> None:
    pops = world.state.pops
    for of in (2, 2, 4):
        assert world.begin(Ask.POP_MESSAGE, world.pop_header(pollTime=15_000), of=of) is None
    pops.arrived(TOPIC, 0)

    world.core.disconnected(2)

    woken = [pops.waiting[number] for number in pops.ready if number in pops.waiting]
    assert [pop.connection for pop in woken] == [4]
    world.finish_turn()


def test_a_pop_that_ends_before_it_has_looked_at_all_wakes_the_next_one(world: PopWorld) -> None:
    for of, wait_ms in ((2, 200), (3, 15_000)):
        header = world.pop_header(pollTime=wait_ms, exp="B")
        assert world.begin(Ask.POP_MESSAGE, header, of=of) is None
    world.is_writing = False
    for body in foreign(40_000):
        world.begin(Ask.SEND_BATCH_MESSAGE, send_header(), body, of=9)
    header = send_header(TAGS="B")
    world.begin(Ask.SEND_MESSAGE_V2, header, b"wanted", of=9)
    world.is_writing = True
    world.finish_turn()
    assert [len(world.inbox.get(of, ())) for of in (2, 3)] == [0, 0]

    world.now_ms += 200
    world.core.tick(world.now_ms)
    world.pass_time(1_000)

    assert [answer.code for answer in world.inbox[2]] == [Answer.POLLING_TIMEOUT]
    assert [taken(answer)[0].body for answer in world.inbox[3]] == [b"wanted"]


def test_a_closed_connection_waits_for_nothing(world: PopWorld) -> None:
    assert world.begin(Ask.POP_MESSAGE, world.pop_header(pollTime=15_000), of=2) is None

    world.core.disconnected(2)

    assert not world.state.pops.waiting
    world.send(b"new")
    assert world.bodies() == [b"new"]


def test_who_only_waits_is_told_of_a_message_and_takes_none(world: PopWorld) -> None:
    header = world.pop_header(pollTime=15_000)
    assert world.begin(Ask.NOTIFICATION, header, of=2) is None
    opaque = world.last_opaque

    world.send(b"new")

    answer = there(world.reply_to(opaque, of=2))
    assert answer.ext_fields == {"hasMsg": "true", "pollingFull": "false"}
    assert world.bodies() == [b"new"]


def test_who_only_waits_is_told_when_nothing_came(world: PopWorld) -> None:
    assert world.begin(Ask.NOTIFICATION, world.pop_header(pollTime=1_000)) is None
    opaque = world.last_opaque

    world.pass_time(1_000)

    assert there(world.reply_to(opaque)).ext_fields["hasMsg"] == "false"


def test_waiting_pops_are_counted_by_queue(world: PopWorld) -> None:
    for queue_id in (-1, 0, 0):
        world.begin(Ask.POP_MESSAGE, world.pop_header(pollTime=9_000, queueId=queue_id))

    counts = [
        world.ask(Ask.POLLING_INFO, world.pop_header(queueId=each)).ext_fields["pollingNum"]
        for each in (-1, 0)
    ]
    assert counts == ["1", "2"]


def test_a_peek_takes_nothing(world: PopWorld) -> None:
    send_some(world, 3)

    for _ in range(2):
        answer = world.ask(Ask.PEEK_MESSAGE, world.pop_header(maxMsgNums=2))
        assert (answer.code, answer.ext_fields["restNum"]) == (Answer.SUCCESS, "3")
    assert world.bodies() == [b"0", b"1", b"2"]
    assert world.ask(Ask.PEEK_MESSAGE, world.pop_header()).code == Answer.PULL_NOT_FOUND
