"""P1 and P2 with half messages, whatever dies at whatever step: producer, check-back, scheduler.

The n-th run dies at the n-th step of two business transactions and their relay. Then brokers ask
and a scheduler looks, in either order, and the one who answers dies at each of its steps, too.
"""

import pytest
from sqlalchemy import text
from tests.app.kill_switch import KillSwitch
from tests.outbox.half_world import FAR, HalfWorld, Life
from tests.steps import last_steps

STEPS_MAX = 100


@pytest.fixture
def world(database_url: str) -> HalfWorld:
    return HalfWorld(database_url)


class RolledBack(Exception):
    """The business says no."""


def place(life: Life, number: int, name: str) -> None:
    with life.transaction() as tx:
        tx.session.execute(text("INSERT INTO orders VALUES (:n, :id)"), {"n": number, "id": name})
        tx.send("orders", name, ordering_key="k")
        if name.startswith("no"):
            raise RolledBack


def produce(world: HalfWorld, switch: KillSwitch) -> None:
    """Commit an order, roll one back, take one back with its savepoint, commit another."""
    with world.life(switch) as life:
        place(life, 1, "first")
        life.run_relay()
        with pytest.raises(RolledBack):
            place(life, 2, "no")
        with life.transaction() as tx:
            savepoint = tx.session.begin_nested()
            tx.send("orders", "lost", ordering_key="k")
            savepoint.rollback()
            tx.session.execute(text("INSERT INTO orders VALUES (3, 'second')"))
            tx.send("orders", "second", ordering_key="k")
        life.run_relay()


@pytest.mark.parametrize(
    ("first", "commits_again"),
    [("check-back", True), ("scheduler", False)],
    ids=["a check-back first, at Apache's", "the scheduler first, at ours"],
)
def test_a_half_is_shown_if_and_only_if_it_was_committed_whichever_step_was_the_last(
    world: HalfWorld, first: str, commits_again: bool
) -> None:
    for step in last_steps(STEPS_MAX, one_in=16):
        world.clean(commits_again=commits_again)
        switch = KillSwitch(step)
        produce(world, switch)
        with world.life() as life:
            life.now = FAR
            if first == "scheduler":
                life.resend()
            for _ in range(2):  # what is behind another one of its key is asked for again
                life.answer_all()
                life.now += 100
            life.resend()
            life.answer_all()
        world.check()
        if not switch.dead:
            break
    assert len(switch.names) >= 30


def test_whoever_answers_may_die_at_any_step(world: HalfWorld) -> None:
    steps = 0
    for last in ("after half", "after INSERT INTO rmq_message_stub", "hand over"):
        for step in last_steps(STEPS_MAX, one_in=16):
            world.clean(commits_again=True)
            produce(world, DiesAt(last))
            switch = KillSwitch(step)
            with world.life(switch) as life:
                life.now = FAR
                life.answer_all()
            with world.life() as life:
                life.now = FAR + 100  # the dead one's claim has passed
                life.resend()
                life.answer_all()
            world.check()
            if not switch.dead:
                break
        steps += len(switch.names)
    assert steps >= 20


class DiesAt(KillSwitch):
    """Dies at the first step of a name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def step(self, name: str) -> None:
        if name == self._name:
            self.at = len(self.names)
        super().step(name)
