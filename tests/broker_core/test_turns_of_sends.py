"""Short turns, and frames that come alone, leave every byte as whole turns leave it."""

from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from tests.broker_core import test_known_sends
from tests.broker_core.broker_world import START_MS, BrokerWorld, waiting_pull_header
from tests.broker_core.test_known_sends import STEPS, alike, play
from tests.broker_core.two_sides import Side

from reliable_mq.broker_core import core as core_module
from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.state import Turn
from reliable_mq.broker_core.statistics import TOPIC_PUT_LATENCY
from reliable_mq.broker_core.store.commit_log import CommitLog
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.frame import Frame, FrameReader


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
    side.receive(test_known_sends.CHANGES[-1])
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
    items = state.statistics._items.items()
    assert sum(each.value for (name, _), each in items if name == TOPIC_PUT_LATENCY) == 7


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
