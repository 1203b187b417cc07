"""Who waits for a handler call that must be alone in its process, and for how long."""

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from tests.app.jumping_loop import pass_time, run_jumping
from tests.app.lives import LONG, A, B, Ledger, Life, delivery, write_effect
from tests.waiting import eventually

from reliable_mq.consume.asyncio_delivery import HandlerGate
from reliable_mq.database.row_values import LogState
from reliable_mq.errors import InvariantBroken
from reliable_mq.message import ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome

PATIENCE = 60.0


class Process:
    """The calls of one process, and when each of them began, by name."""

    def __init__(self) -> None:
        self.gate = HandlerGate(PATIENCE)
        self.seen: list[tuple[str, float]] = []
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def order(self) -> list[str]:
        return [name for name, _ in self.seen]

    def note(self, name: str) -> None:
        self.seen.append((name, asyncio.get_running_loop().time()))
        self.gate.invariants()

    def starts(self, call: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Start a call; those that wait do so in this order."""
        self.tasks.append(asyncio.create_task(call))
        return self.tasks[-1]

    async def beside(self, name: str, seconds: float = 0.0) -> None:
        """Make a call beside others that takes so long."""
        await self.gate.opened()
        generation = self.gate.begin()
        self.note(name)
        try:
            await pass_time(seconds)
        finally:
            self.gate.end(generation)
            self.gate.invariants()

    async def alone(self, name: str, seconds: float = 0.0) -> None:
        """Make a call alone that takes so long."""
        async with self.gate.exclusive():
            self.note(name)
            await pass_time(seconds)
            self.note(f"{name} ends")
        self.gate.invariants()

    async def all_ended(self) -> None:
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.gate.invariants()
        assert not self.gate.is_closed


def test_who_is_alone_waits_for_those_that_run_and_the_others_for_it() -> None:
    async def scenario() -> None:
        process = Process()
        process.starts(process.beside("runs", 5.0))
        await pass_time(1.0)
        process.starts(process.alone("first", 10.0))
        await pass_time(1.0)
        process.starts(process.beside("waits"))
        process.starts(process.alone("second"))
        await process.all_ended()
        assert process.seen == [
            *(("runs", 0.0), ("first", 5.0), ("first ends", 15.0)),
            *(("waits", 15.0), ("second", 15.0), ("second ends", 15.0)),
        ]

    run_jumping(scenario())


def test_a_call_that_hangs_is_waited_for_once_by_all_that_must_be_alone() -> None:
    """A minute for each of forty would stop the whole process for forty minutes."""

    async def scenario() -> None:
        process = Process()
        hangs = process.starts(process.beside("hangs", 10 * 3600))
        await asyncio.sleep(0)
        for number in range(40):
            process.starts(process.alone(f"{number}"))
        await asyncio.sleep(0)
        process.starts(process.beside("waits"))
        await pass_time(PATIENCE)
        process.starts(process.beside("comes later"))
        await pass_time(1.0)
        assert len(process.order) == 2 * 40 + 3
        assert {when for _, when in process.seen[1:]} == {PATIENCE}
        hangs.cancel()
        await process.all_ended()

    run_jumping(scenario())


def test_a_call_that_began_after_the_one_that_hangs_is_waited_for() -> None:
    async def scenario() -> None:
        process = Process()
        hangs = process.starts(process.beside("hangs", 3 * PATIENCE))
        await asyncio.sleep(0)
        await process.alone("in vain")
        process.starts(process.beside("runs", 30.0))
        await asyncio.sleep(0)
        process.starts(process.alone("after it"))
        await process.all_ended()
        assert process.seen[-2:] == [("after it", 90.0), ("after it ends", 90.0)]
        assert hangs.done()

    run_jumping(scenario())


def test_a_call_that_was_waited_for_in_vain_may_end_while_another_runs() -> None:
    async def scenario() -> None:
        process = Process()
        process.starts(process.beside("hangs", PATIENCE + 20.0))
        await asyncio.sleep(0)
        await process.alone("in vain")
        process.starts(process.beside("runs", 50.0))
        await asyncio.sleep(0)
        process.starts(process.alone("after both"))
        await process.all_ended()
        assert process.seen[-2] == ("after both", PATIENCE + 50.0)

    run_jumping(scenario())


def test_who_had_to_wait_for_others_is_alone_for_as_long_as_anybody() -> None:
    async def scenario() -> None:
        process = Process()
        process.starts(process.beside("runs", 59.0))
        await asyncio.sleep(0)
        process.starts(process.alone("long", 50.0))
        await asyncio.sleep(0)
        process.starts(process.beside("waits"))
        await process.all_ended()
        assert process.seen[1:] == [("long", 59.0), ("long ends", 109.0), ("waits", 109.0)]

    run_jumping(scenario())


def test_a_call_that_hangs_alone_is_waited_for_by_nobody_for_longer_than_patience() -> None:
    async def scenario() -> None:
        process = Process()
        process.starts(process.alone("hangs", 3 * PATIENCE))
        await asyncio.sleep(0)
        process.starts(process.alone("next", PATIENCE + 1.0))
        process.starts(process.beside("waits"))
        await pass_time(PATIENCE + 1.0)
        process.starts(process.alone("last", 2 * PATIENCE))
        await process.all_ended()
        began = [each for each in process.seen if not each[0].endswith("ends")]
        assert began == [
            *(("hangs", 0.0), ("waits", PATIENCE), ("next", PATIENCE), ("last", 2 * PATIENCE)),
        ]

    run_jumping(scenario())


def test_a_call_whose_turn_is_over_ends_the_turn_of_no_other() -> None:
    async def scenario() -> None:
        process = Process()
        process.starts(process.alone("hangs", PATIENCE + 10.0))
        await asyncio.sleep(0)
        process.starts(process.alone("next", 30.0))
        await pass_time(PATIENCE + 5.0)
        process.starts(process.beside("waits"))
        await process.all_ended()
        assert process.seen[-2:] == [("next ends", PATIENCE + 30.0), ("waits", PATIENCE + 30.0)]

    run_jumping(scenario())


def test_those_that_wait_have_their_turn_between_two_that_are_alone() -> None:
    async def scenario() -> None:
        process = Process()
        process.starts(process.alone("first", 1.0))
        await asyncio.sleep(0)
        process.starts(process.alone("second"))
        process.starts(process.beside("waits", 5.0))
        await process.all_ended()
        assert process.order == ["first", "first ends", "waits", "second", "second ends"]

    run_jumping(scenario())


@pytest.mark.parametrize("waits_for", ["those that run", "its turn", "the gate"])
def test_who_is_cancelled_while_it_waits_keeps_nobody(waits_for: str) -> None:
    """A consumer that closes cancels what takes longer than `close_timeout_seconds`."""

    async def scenario() -> None:
        process = Process()
        if waits_for == "those that run":
            process.starts(process.beside("before", 30.0))
        else:
            process.starts(process.alone("before", 30.0))
        await asyncio.sleep(0)
        waits = process.beside if waits_for == "the gate" else process.alone
        cancelled = process.starts(waits("cancelled"))
        await pass_time(10.0)
        process.starts(process.beside("beside"))
        process.starts(process.alone("alone"))
        cancelled.cancel()
        await process.all_ended()
        assert cancelled.cancelled()
        at = 10.0 if waits_for == "those that run" else 30.0
        assert ("beside", at) in process.seen
        assert ("alone", 30.0) in process.seen
        assert "cancelled" not in process.order

    run_jumping(scenario())


def test_no_call_begins_while_the_gate_is_closed() -> None:
    async def scenario() -> None:
        gate = HandlerGate()
        async with gate.exclusive():
            with pytest.raises(InvariantBroken, match="alone"):
                gate.begin()
            gate.invariants()

    run_jumping(scenario())


class Killer:
    """Deliveries of two consumers of one process; one message killed the process twice."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'application.db'}"
        self.ledger = Ledger(self.url)
        self.ledger.create(A, B)
        self.ledger.insert_log(
            consumer_group="payments",
            message_id=A,
            topic="orders",
            broker_name="broker-a",
            queue_id=1,
            offset=7,
            state=LogState.RECEIVED.value,
            attempt=2,
            owner="who died",
            lease_until=datetime(2020, 1, 1, tzinfo=UTC),
            create_date=datetime(2020, 1, 1, tzinfo=UTC),
            in_doubt=False,
        )
        self.gate = HandlerGate()
        self.seen: list[str] = []
        self.began = {name: asyncio.Event() for name in (A, B)}
        self.may_end = {name: asyncio.Event() for name in (A, B)}

    async def handler(self, session: AsyncSession, message: ReceivedMessage) -> None:
        name = message.message_id
        self.seen.append(f"{name[0]} begins")
        self.began[name].set()
        await self.may_end[name].wait()
        await session.run_sync(write_effect, message)
        self.seen.append(f"{name[0]} ends")

    def life(self, group: str) -> Life:
        return Life(
            self.url,
            None,
            handler=self.handler,
            group=group,
            max_attempts=3,
            lease=LONG,
            gate=self.gate,
        )


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_the_last_attempt_of_one_consumer_shares_the_process_with_no_call_of_another(
    tmp_path: Path, order: Sequence[str]
) -> None:
    groups = {A: "payments", B: "loyalty"}

    async def scenario() -> list[list[Outcome]]:
        process = Killer(tmp_path)
        lives = {name: process.life(groups[name]) for name in (A, B)}
        async with lives[A], lives[B]:
            first, second = order
            tasks = [asyncio.create_task(lives[first].handle(delivery(first)))]
            await process.began[first].wait()
            tasks.append(asyncio.create_task(lives[second].handle(delivery(second))))
            process.may_end[second].set()
            await eventually(lambda: process.gate.is_closed)  # A was first, or finds B running
            process.may_end[first].set()
            outcomes = await asyncio.gather(*tasks)
        names = [name[0] for name in order]
        assert process.seen == [f"{name} {what}" for name in names for what in ("begins", "ends")]
        assert process.ledger.effects() == [A, B]
        process.ledger.database.close()
        return outcomes

    assert asyncio.run(scenario()) == [[CONSUMED]] * 2


def test_a_last_attempt_that_waits_while_its_consumer_closes_is_left_to_the_next(
    tmp_path: Path,
) -> None:
    """Closing cancels what runs for too long; the attempt was not begun, so it costs none."""

    async def scenario() -> list[Outcome]:
        process = Killer(tmp_path)
        async with process.life("loyalty") as other:
            async with process.life("payments") as closes:
                runs = asyncio.create_task(other.handle(delivery(B)))
                await process.began[B].wait()
                waits = asyncio.create_task(closes.handle(delivery(A)))
                await eventually(lambda: process.gate.is_closed)
                waits.cancel()
                await asyncio.wait([waits])
                assert waits.cancelled()
            assert not process.gate.is_closed
            process.may_end[B].set()
            assert await runs == [CONSUMED]
        assert process.ledger.logs()["payments", A] == (LogState.RECEIVED.value, 2)
        process.may_end[A].set()
        async with process.life("payments") as following:
            outcomes = await following.handle(delivery(A))
        assert process.ledger.logs()["payments", A] == (LogState.CONSUMED.value, 3)
        process.ledger.database.close()
        return outcomes

    assert asyncio.run(scenario()) == [CONSUMED]
