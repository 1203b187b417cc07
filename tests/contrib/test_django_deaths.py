"""P4 with the Django ORM: a process is killed with SIGKILL at a step; the effect is there once.

A step is each statement of Django or of ours before it leaves and after its answer, and each
COMMIT before and after. The n-th child dies at its n-th step. Then another life gets the messages.
"""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from sqlalchemy import event
from tests.app.kill_switch import KillSwitch
from tests.app.lives import A, B, C, delivery
from tests.contrib.django_lives import DjangoLife, consumed, effects, handled
from tests.contrib.django_project import project, set_up
from tests.steps import last_steps
from tests.waiting import run_scene

from reliable_mq.contrib.django.application import DjangoMQ
from reliable_mq.contrib.django.database import DjangoDatabase
from reliable_mq.message import ReceivedMessage

set_up()

from tests.contrib.django_shop.models import Payment  # noqa: E402 - after the settings

pytestmark = pytest.mark.packaging  # `make frameworks`

STEPS_MAX = 120
MODES: dict[str, dict[str, Any]] = {
    "one message": {"names": (A,)},
    "receipt first": {"names": (A,), "log_receipt": True},
    "batch": {"names": (A, B, C), "batch": 3},
}


@pytest.fixture
def mq(database_url: str) -> Iterator[DjangoMQ]:
    with project(database_url) as made:
        yield made


def pay(message: ReceivedMessage) -> None:
    Payment.objects.create(message=message.message_id)


class Sigkill(KillSwitch):
    """Dies by SIGKILL, this process."""

    def step(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) - 1 == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def watch_django(switch: KillSwitch) -> None:
    """Make statements and commits of Django steps of this process."""
    execute: Callable[..., Any] = CursorWrapper._execute
    commit = BaseDatabaseWrapper._commit

    def executed(self: Any, *given: Any, **named: Any) -> Any:
        switch.step("before Django")
        answer = execute(self, *given, **named)
        switch.step("after Django")
        return answer

    def committed(self: Any) -> None:
        switch.step("before Django COMMIT")
        commit(self)
        switch.step("after Django COMMIT")

    CursorWrapper._execute = executed
    BaseDatabaseWrapper._commit = committed


def live(mq: DjangoMQ, at: int, names: tuple[str, ...], options: dict[str, Any]) -> None:
    """Be a worker that dies at a step, or ends."""
    switch = Sigkill(at)
    watch_django(switch)
    database = mq.database
    assert isinstance(database, DjangoDatabase)
    for engine in (database.engine, database.leading_engine):
        event.listen(engine, "before_cursor_execute", lambda *_: switch.step("before"))
        event.listen(engine, "after_cursor_execute", lambda *_: switch.step("after"))

    async def scene() -> None:
        async with DjangoLife(mq, pay, **options) as life:
            await life.handle(*map(delivery, names))

    run_scene(scene())


def killed_at(mq: DjangoMQ, at: int, names: tuple[str, ...], options: dict[str, Any]) -> bool:
    """Return whether a child died at the step; False: it had fewer steps."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            live(mq, at, names, options)
            code = 0
        finally:
            os._exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended in (0, -signal.SIGKILL)
    return ended != 0


@pytest.mark.parametrize("mode", MODES)
def test_the_effect_of_each_message_is_there_once_whenever_its_process_is_killed(
    mq: DjangoMQ, mode: str
) -> None:
    options = dict(MODES[mode])
    names = options.pop("names")
    deaths = 0
    for step in last_steps(STEPS_MAX, 3):
        connections.close_all()
        mq.database.close()
        with mq.database.engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM shop_payment")
            connection.execute(mq.database.logs.delete())
        mq.database.close()
        was_killed = killed_at(mq, step, names, options)

        before = effects(mq)
        assert before == consumed(mq), f"step {step}"
        handled(mq, pay, *names, **options)
        assert effects(mq) == consumed(mq) == list(names), f"step {step}"
        if not was_killed:
            break
        deaths += 1
    else:
        pytest.fail("it has more steps")
    assert deaths >= 4
