"""A world of two databases: what a group in one of them reports reaches the stub in the other."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from reliable_mq import Reject, ReliableMQ
from reliable_mq.testing.message_world import MessageWorld


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ReliableMQ]:
    made = ReliableMQ(
        "shop",
        database=f"sqlite:///{tmp_path}/shop.db",
        databases={"billing": f"sqlite:///{tmp_path}/billing.db"},
    )
    made.create_tables()
    yield made
    made.close()


def placed(mq: ReliableMQ) -> None:
    with mq.transaction() as tx:
        tx.send("orders", {"id": 7}, key=7)


def stub_of(mq: ReliableMQ) -> tuple[int, bool]:
    stub = mq.database.stubs.c
    with mq.database.engine.connect() as connection:
        (found,) = connection.execute(select(stub.status, stub.given_up))
    return found.status, found.given_up


def bill(mq: ReliableMQ, then: Callable[[], Any]) -> None:
    @mq.consumer("orders", group="billing", database="billing")
    def enter(order: dict[str, Any], session: Session) -> None:
        then()


def test_a_group_in_another_database_confirms_the_stub(mq: ReliableMQ) -> None:
    bill(mq, lambda: None)
    with MessageWorld(mq) as world:
        placed(mq)
        world.deliver()
        assert stub_of(mq) == (1, False)
        world.restart()  # the next process reads notices, too
        placed(mq)
        world.settle()


def test_a_dead_letter_in_another_database_settles_the_stub(mq: ReliableMQ) -> None:
    calls: list[int] = []

    def refuse() -> None:
        calls.append(1)
        raise Reject("the books are closed")

    bill(mq, refuse)
    with MessageWorld(mq) as world:
        placed(mq)
        world.settle()

        assert stub_of(mq) == (0, True)
        assert len(world.dead_letters("billing")) == len(calls) == 1
    escalations = mq.database.escalations.c
    with mq.database.engine.connect() as connection:
        assert connection.scalars(select(escalations.reason)).all() == ["the books are closed"]
