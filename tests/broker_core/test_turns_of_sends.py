"""Short turns, and frames that come alone, leave every byte as whole turns leave it."""

from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker_core import test_known_sends
from tests.broker_core.broker_world import (
    START_MS,
    TOPIC,
    BrokerWorld,
    connection,
    waiting_pull_header,
)
from tests.broker_core.test_known_sends import CHANGES, ODD, STEPS, alike, play
from tests.broker_core.two_sides import QUEUES, Side, send_frame

from reliable_mq.broker_core import core as core_module
from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.state import Turn
from reliable_mq.broker_core.statistics import TOPIC_PUT_LATENCY
from reliable_mq.broker_core.store import consume_queue
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.errors import FrameError
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.frame import JSON, ROCKETMQ, Frame, FrameReader, encode_frame


class EagerReader(FrameReader[Any]):
    """Takes what comes alone in the short way, as a connection does."""

    def feed(self, data: bytes) -> list[Frame | Any]:
        alone = self.feed_alone(data)
        return super().feed(data) if alone is None else [alone]


def shorten(core: BrokerCore) -> list[int]:
    """Let a core have short turns where the server lets it; return how many sends each stored."""
    receive, take_turn, tick, found = core.receive, core.take_turn, core.tick, list[int]()
    commands: list[bool] = [False]  # whether each had only plain sends

    def received(*of: Any) -> bool:
        commands.append(receive(*of))
        return commands[-1]

    def took(*times: Any) -> Turn:
        is_short = all(commands)
        commands.clear()
        if not is_short:
            return take_turn(*times)
        found.append(len(core.state.answers.held))
        return Turn(core.take_sends(*times), [], {})

    def ticked(now_ms: int) -> None:
        commands.append(False)
        tick(now_ms)

    for name, made in (("receive", received), ("take_turn", took), ("tick", ticked)):
        setattr(core, name, made)
    return found


class ShortSide(Side):
    """A side whose turns are short where they can be, if it recognises sends."""

    def __init__(self, *, knows: bool, **more: Any) -> None:
        super().__init__(knows=knows, **more)
        self.short = shorten(self.world.core) if knows else []

    def _reader(self, of: int) -> tuple[Any, Any]:
        reader, decode = super()._reader(of)
        if self.knows and not isinstance(reader, EagerReader):
            reader = EagerReader(64, reader._known)
            self._readers[of] = reader, decode
        return reader, decode


def latency(side: Side) -> int:
    """Return the milliseconds that all sends are said to have taken."""
    items = side.world.state.statistics._items.items()
    return sum(each.value for (name, _), each in items if name == TOPIC_PUT_LATENCY)


class AloneSide(ShortSide):
    """A side that stores at once what comes alone, as a server does with ASYNC_FLUSH."""

    def __init__(self, *, knows: bool) -> None:
        super().__init__(knows=knows, flushDiskType="ASYNC_FLUSH")
        self.alone = 0
        self.together = 0  # the most sends that were stored at once
        self._is_turn_due = True

    def receive(self, data: bytes, of: int = 1) -> bool:
        if self.knows and not self._is_turn_due and self._store_alone(data, of):
            return False
        self._is_turn_due = True
        return super().receive(data, of)

    def _store_alone(self, data: bytes, of: int) -> bool:
        core, now_ms = self.world.core, self.world.now_ms
        command = self._only_command(self._reader(of)[0], data)
        lone = None if command is None else core.place_alone(connection(of), command, now_ms)
        if lone is None:
            return False
        lone.segment.write(lone.at, (lone.records,))
        replies = list[Answer]()
        core.stored_alone(lone, now_ms, now_ms, replies.extend)
        for number, joined in replies:
            frames = FrameReader().feed(bytes(joined))
            self.answers += [(number, encode_frame(*msgspec.structs.astuple(f))) for f in frames]
        assert core.state.answers.released == core.state.store.log.end
        assert not core.state.store.upkeep.due
        lone.segment.sync()
        core.stored(lone.dispatched.end, durable=True)
        self.alone += 1
        self.together = max(self.together, lone.count)
        return True

    @staticmethod
    def _only_command(reader: Any, data: bytes) -> Any:
        """Return what stands for all of a read; None: it is something else, or something waits."""
        if reader.uncut or reader.kept_size:
            return None
        trial = FrameReader(64, reader._known)
        try:
            found = trial.feed(data)
        except FrameError:
            return None
        is_all = len(found) == 1 and not (trial.uncut or trial.kept_size)
        return None if not is_all or isinstance(found[0], Frame) else found[0]

    def end_turn(self) -> None:
        super().end_turn()
        self._is_turn_due = False

    def seen(self) -> dict[str, object]:
        return {**super().seen(), "created": self.world.core.created}


@given(st.lists(STEPS | st.just(("turn", 0, [])), max_size=14))
def test_any_history_leaves_the_same_bytes_whether_a_send_is_stored_alone_or_in_a_turn(
    steps: list[tuple[str, int, list[bytes]]],
) -> None:
    single = [
        (verb, of, [each])
        for verb, of, made in steps
        for each in (made if verb == "read" else [b"".join(made)])
    ]
    with patch.object(test_known_sends, "Side", AloneSide):
        play(steps)
        for reads in (steps, single):
            play([step for each in reads for step in (each, ("turn", 0, []))])


@pytest.mark.parametrize("change", range(len(CHANGES)))
def test_a_change_counts_for_the_next_send_that_comes_alone(change: int) -> None:
    def alone(sends: list[bytes]) -> test_known_sends.Story:
        return [step for each in sends for step in (("read", 1, [each]), ("turn", 0, []))]

    earlier: test_known_sends.Story = [("time", -50, [])]
    story = [*alone(alike(23)), *earlier, *alone(alike(3)), *alone([CHANGES[change], *alike(12)])]
    with (
        patch.object(test_known_sends, "Side", AloneSide),
        patch.object(consume_queue, "_GATHERED_MAX", 2),
    ):
        play([*story, ("time", 300, []), *alone(alike(12))])


def test_the_time_of_a_send_that_is_stored_alone_counts_from_when_it_came() -> None:
    side = AloneSide(knows=True)
    for frame in alike(11):
        side.receive(frame)
        side.end_turn()
    core, state = side.world.core, side.world.state
    state.collect_statistics(START_MS)
    sends = side._reader(1)[0].feed_alone(alike(1)[0])
    lone = core.place_alone(connection(1), sends, START_MS)
    assert lone is not None
    core.stored_alone(lone, START_MS, START_MS + 7, side.answers.extend)
    state.collect_statistics(START_MS + 7)
    assert latency(side) == 7


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
def test_a_send_of_every_shape_that_comes_alone_leaves_the_same_bytes(
    kind: int, odd: dict[str, Any]
) -> None:
    sides = AloneSide(knows=True), AloneSide(knows=False)
    for side in sides:
        for full in (False, False, True, False):
            side.world.state.pressure.note_room(has_room=not full)
            for frame in alike(13, kind, **odd):
                side.receive(frame)
                side.end_turn()
    assert sides[0].seen() == sides[1].seen()
    assert bool(sides[0].alone) is (odd not in (ODD[1], ODD[2], ODD[5], ODD[8], ODD[10]))


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", [JSON, ROCKETMQ])
@pytest.mark.parametrize("sizes", [(70,), (70, 9, 300)])
def test_sends_of_every_shape_that_come_alone_together_leave_the_same_bytes(
    kind: int, odd: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    sides = AloneSide(knows=True), AloneSide(knows=False)
    of_sizes = [alike(12, kind, body=bytes(size), **odd) for size in sizes]
    many = [of_sizes[n % len(sizes)][n] for n in range(12)]
    for side in sides:
        for frame in alike(11, kind, **odd):
            side.receive(frame)
            side.end_turn()
        for full in (False, True, False):
            side.world.state.pressure.note_room(has_room=not full)
            for count in (12, 5, 3):
                side.receive(b"".join(many[:count]))
                side.end_turn()
    assert sides[0].seen() == sides[1].seen()
    assert (sides[0].together > 1) is (odd not in (ODD[1], ODD[2], ODD[5], ODD[8], ODD[10]))


def test_sends_of_which_one_begins_a_queue_or_ends_a_file_of_the_log_are_not_stored_at_once() -> (
    None
):
    sides = AloneSide(knows=True), AloneSide(knows=False)
    for side in sides:
        for frame in alike(1):
            side.receive(frame)
            side.end_turn()
        for _ in range(8):
            side.receive(b"".join(alike(9, body=bytes(6_500))))
            side.end_turn()
    assert 3 < sides[0].alone < 8
    assert sides[0].world.state.store.log.end > 256 * 1024
    assert sides[0].seen() == sides[1].seen()


def test_a_send_that_ends_a_file_of_the_log_or_is_too_long_is_not_stored_alone() -> None:
    sides = AloneSide(knows=True), AloneSide(knows=False)
    sizes = (*[6_500] * 60, 70_000, 6_500)
    many = [frame for size in sizes for frame in alike(1, body=bytes(size))]
    for side in sides:
        for frame in many:
            side.receive(frame)
            side.end_turn()
    assert sides[0].alone > 50
    assert sides[0].world.state.store.log.end > 256 * 1024
    assert sides[0].seen() == sides[1].seen()


def test_a_send_is_not_stored_alone_while_anything_else_waits() -> None:
    side = AloneSide(knows=True)
    first, *others = alike(14)

    def is_alone() -> bool:
        before, send = side.alone, others.pop()
        side.receive(send)
        is_alone = side.alone > before
        side.end_turn()
        return is_alone

    for queue in range(QUEUES):  # a queue begins in general
        side.receive(send_frame(7, e=str(queue)))
    side.receive(first)
    side.end_turn()
    assert is_alone()
    side.world.state.reply(1, b"waits")
    assert not is_alone(), "an answer is on its way"
    side.receive(CHANGES[-1])
    assert not is_alone(), "a question came before"
    side.world.state.audit.lines.append(b"waits")
    assert not is_alone(), "a line of the audit is to be written before the next answer"
    side.world.state.audit.take()
    end = side.world.state.store.bounds(TOPIC, 3)[1]
    wanted = waiting_pull_header(queueId=3, queueOffset=end)
    side.world.begin(RequestCode.PULL_MESSAGE, wanted, of=2)
    side.end_turn()
    assert side.world.state.pulls.waiting
    assert not is_alone(), "a pull waits"
    side.world.core.disconnected(2)
    assert is_alone()
    side.world.core.fence()
    assert not is_alone(), "another broker is the master"


def test_no_send_is_stored_alone_whose_answer_waits_for_a_sync_or_for_a_slave() -> None:
    for wants in ({}, {"flushDiskType": "ASYNC_FLUSH", "brokerRole": "SYNC_MASTER"}):
        side = ShortSide(knows=True, **wants)
        for frame in alike(10):
            side.receive(frame)
            side.end_turn()
        reader, _ = side._reader(1)
        sends = reader.feed_alone(alike(10)[-1])
        assert sends is not None
        assert side.world.core.place_alone(connection(1), sends, START_MS) is None


@given(st.lists(STEPS, max_size=14))
def test_any_history_leaves_the_same_bytes_whether_turns_are_short_or_whole(
    steps: list[tuple[str, int, list[bytes]]],
) -> None:
    with patch.object(test_known_sends, "Side", ShortSide):
        play(steps)


def test_turns_are_short_while_only_plain_sends_come() -> None:
    side = ShortSide(knows=True)
    side.receive(alike(1)[0])
    side.end_turn()
    for count in (1, 5, 9):
        side.receive(b"".join(alike(count)))
        side.end_turn()
    assert side.short == [1, 5, 9]
    side.receive(alike(1)[0])
    side.receive(CHANGES[-1])
    side.end_turn()
    assert side.short == [1, 5, 9], "a question came, too"
    assert len(side.seen()["answers"]) == 18  # type: ignore[arg-type]


def test_the_time_of_a_send_counts_from_the_begin_of_its_short_turn() -> None:
    side = Side(knows=True)
    side.receive(alike(1)[0])
    side.end_turn()
    core, state = side.world.core, side.world.state
    state.collect_statistics(START_MS)
    side.receive(alike(2)[1])
    batch = core.take_sends(START_MS, START_MS)
    assert batch is not None
    CommitLog.write_batch(batch)
    core.stored(batch.end, durable=True, now_ms=START_MS + 7)
    state.collect_statistics(START_MS + 7)
    assert latency(side) == 7


def test_a_short_turn_without_sends_stores_and_answers_nothing() -> None:
    world = BrokerWorld()
    world.state.reply(1, b"waits")
    assert world.core.take_sends() is None
    assert world.core.take_turn().replies == [(1, b"waits")]


def test_each_short_turn_has_its_own_budget_for_pulls_that_wait() -> None:
    side = Side(knows=True)
    side.receive(alike(1)[0])
    side.end_turn()
    for queue in (1, 2, 3):
        side.world.begin(RequestCode.PULL_MESSAGE, waiting_pull_header(queueId=queue), of=2)
    core, answered = side.world.core, list[Answer]()
    with patch.object(core_module, "_WAITING_COST_MAX", 1):  # the first answer uses it up
        core.take_turn()
        for number, each in enumerate(alike(4)[1:], 1):
            side.receive(each)
            batch = core.take_sends()
            assert batch is not None
            CommitLog.write_batch(batch)
            core.stored(batch.end, durable=True, now_ms=START_MS, answer=answered.extend)
            assert [of for of, _ in answered].count(2) == number
