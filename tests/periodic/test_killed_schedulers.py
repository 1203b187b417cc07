"""Two processes fire ticks, and are killed again and again: each tick has one message."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.forked_programs import Program, Programs
from tests.periodic.schedulers import SchedulerLife, payloads
from tests.waiting import until

ROOT = Path(__file__).parents[2]
KILLS = 4
SPEED = 600.0  # ten ticks in a second


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs("psycopg", "sqlalchemy.dialects.sqlite", "reliable_mq.app.application") as made:
        yield made


@pytest.mark.processes
def test_killed_processes_leave_no_tick_out_and_fire_none_twice(
    programs: Programs, database_url: str, tmp_path: Path
) -> None:
    life = SchedulerLife(database_url)
    life.database.create_tables()
    begin = str(time.time())
    words = ["-m", "tests.periodic.mortal", database_url, begin, str(SPEED)]

    def start() -> Program:
        return programs.begin(words, tmp_path / "output", tmp_path / "errors", cwd=ROOT)

    def wait_for_more(number: int) -> None:
        goal = len(payloads(life.database)) + number
        until(lambda: len(payloads(life.database)) >= goal)

    rng = random.Random(7)
    running = [start(), start()]
    try:
        for _ in range(KILLS):
            wait_for_more(rng.randint(1, 15))
            victim = running.pop(0)
            victim.kill()
            victim.wait()
            running.append(start())
    finally:
        for each in running:
            each.kill()
            each.wait()

    ticks = [int(each) for each in payloads(life.database)]
    assert ticks == list(range(ticks[0], ticks[0] + len(ticks)))
    assert len(ticks) >= KILLS
    life.close()
