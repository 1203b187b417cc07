"""A process of chaos dies at a statement, and at nothing else."""

import random

from tests.chaos.mortal import STATEMENTS_MAX, Life


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_life_ends_at_one_of_the_next_statements_after_its_time() -> None:
    clock = Clock()
    died: list[str] = []
    life = Life(30.0, random.Random(7), clock=clock, die=died.append)

    for _ in range(10 * STATEMENTS_MAX):
        life.step("outbox.sql_stubs.SqlStubs.insert: before INSERT rmq_message_stub")
    assert died == []

    clock.now = 10_000.0
    for _ in range(10 * STATEMENTS_MAX):
        life.step("redis: before claim")
    assert died == []

    for _ in range(STATEMENTS_MAX):
        life.step("consume.sql_consume_transaction.ConsumeTransaction.commit: after COMMIT")
    assert died
