"""Crash points: a process dies at the step that was named, and its steps were written down."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reliable_mq.errors import ConfigurationError
from reliable_mq.testing.crash_points import CrashPoints, crash_here, parse_point
from reliable_mq.testing.crash_watch import commands_in, statement_name

PROGRAM = """
import asyncio, sys
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from reliable_mq.testing.crash_points import crash_here

def pay(engine):
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO payments VALUES (1)"))

async def pay_on_a_loop(engine):
    async with engine.begin() as connection:
        await connection.execute(text("INSERT INTO payments VALUES (2)"))
    await engine.dispose()

engine = create_engine(f"sqlite:///{sys.argv[1]}")
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE payments (id INTEGER)"))
pay(engine)
crash_here("paid once")
asyncio.run(pay_on_a_loop(create_async_engine(f"sqlite+aiosqlite:///{sys.argv[1]}")))
"""


class Program:
    """The program above, in a process of its own."""

    def __init__(self, directory: Path) -> None:
        self.log = directory / "steps"
        self.directory = directory
        (directory / "shop_program.py").write_text(PROGRAM)

    def run(self, at: str = "") -> int:
        (self.directory / "shop.db").unlink(missing_ok=True)
        paths = os.pathsep.join([str(self.directory), *filter(None, sys.path)])
        return subprocess.run(
            [
                *(sys.executable, "-m", "reliable_mq.testing.crash_points"),
                *("shop_program", str(self.directory / "shop.db")),
            ],
            env={
                **os.environ,
                "PYTHONPATH": paths,
                "RELIABLE_MQ_CRASH_AT": at,
                "RELIABLE_MQ_CRASH_LOG": str(self.log),
            },
            check=False,
        ).returncode

    @property
    def steps(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_every_statement_and_commit_is_a_step_under_the_name_of_who_wanted_it(
    program: Program,
) -> None:
    assert program.run() == 0

    assert [step for step in program.steps if "payments" in step or "pa" in step] == [
        "__main__.<module>: before CREATE payments#1",
        "__main__.<module>: after CREATE payments#1",
        "__main__.pay: before INSERT payments#1",
        "__main__.pay: after INSERT payments#1",
        "__main__.pay: before COMMIT#1",
        "__main__.pay: after COMMIT#1",
        "paid once#1",
        "__main__.pay_on_a_loop: before INSERT payments#1",
        "__main__.pay_on_a_loop: after INSERT payments#1",
        "__main__.pay_on_a_loop: before COMMIT#1",
        "__main__.pay_on_a_loop: after COMMIT#1",
    ]


@pytest.mark.parametrize("at", ["__main__.pay: after INSERT payments", "paid once#1"])
def test_a_process_is_killed_at_the_point_that_is_named(program: Program, at: str) -> None:
    assert program.run(at) == -signal.SIGKILL

    assert program.steps[-1].removesuffix("#1") == at.removesuffix("#1")


def test_a_point_that_is_passed_less_often_kills_nobody(program: Program) -> None:
    assert program.run("paid once#2") == 0


class Died(BaseException):
    """A death within a test."""


def test_who_has_died_takes_no_further_step() -> None:
    def die(point: str) -> None:
        raise Died(point)

    points = CrashPoints("second", die=die)
    points.step("first")
    for name in ("second", "third"):
        with pytest.raises(Died):
            points.step(name)

    assert points.counts == {"first": 1, "second": 1}


def test_without_crash_points_a_point_of_ones_own_does_nothing() -> None:
    crash_here("nowhere")


@pytest.mark.parametrize("point", ["commit#0", "commit#", "commit#two"])
def test_a_point_without_a_number_that_counts_is_refused(point: str) -> None:
    with pytest.raises(ConfigurationError, match="counts from 1"):
        parse_point(point)


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("INSERT INTO rmq_message_stub (a) VALUES (1) RETURNING seq", "INSERT rmq_message_stub"),
        ('select "x" from "orders" where 1', "SELECT orders"),
        ("UPDATE rmq_consume_log SET state=1", "UPDATE rmq_consume_log"),
        ("BEGIN IMMEDIATE", "BEGIN IMMEDIATE"),
        ("SAVEPOINT sa_savepoint_1", "SAVEPOINT"),
        ("RELEASE SAVEPOINT sa_savepoint_1", "RELEASE SAVEPOINT"),
        ("ROLLBACK TO SAVEPOINT sa_savepoint_1", "ROLLBACK TO SAVEPOINT"),
        ("SELECT 1", "SELECT"),
    ],
)
def test_a_statement_is_named_by_its_verb_and_its_table(statement: str, name: str) -> None:
    assert statement_name(statement) == name


def test_the_commands_of_a_request_to_redis_are_named_and_our_scripts_by_their_own_names() -> None:
    digest = b"a" * 40
    packed = (
        b"*3\r\n$7\r\nEVALSHA\r\n$40\r\n" + digest + b"\r\n$1\r\n0\r\n"
        b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n"
    )

    assert list(commands_in(packed, {digest: "claim"})) == ["claim", "SELECT"]
