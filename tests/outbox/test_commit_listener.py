"""The listener for commits, over a PostgreSQL in memory that announces, fails and is cut."""

import logging
import queue
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import OperationalError
from tests.waiting import until

from reliable_mq.outbox.thread_listener import CommitListener

WAIT = 20.0


class Connection:
    """A driver's connection. What is put into `news` is announced; an exception is raised."""

    def __init__(self) -> None:
        self.autocommit = False
        self.executed: list[str] = []
        self.news: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.is_closed = threading.Event()
        self.looks = 0

    def execute(self, statement: str) -> None:
        assert self.autocommit, "a transaction hears nothing before its end"
        self.executed.append(statement)

    def notifies(self, *, timeout: float, stop_after: int) -> Iterator[object]:
        assert stop_after == 1
        self.looks += 1
        try:
            new = self.news.get(timeout=min(timeout, 0.01))
        except queue.Empty:
            return
        if isinstance(new, Exception):
            raise new
        yield new

    def close(self) -> None:
        self.is_closed.set()


class Engine:
    """Gives out connections, or the error that comes first."""

    def __init__(self, name: str = "postgresql") -> None:
        own: Any = postgresql.dialect()  # type: ignore[no-untyped-call]
        self.dialect = SimpleNamespace(name=name, identifier_preparer=own.identifier_preparer)
        self.errors: list[Exception] = []
        self.asked = 0
        self.detached = 0
        self.made: list[Connection] = []

    def raw_connection(self) -> Any:
        self.asked += 1
        if self.errors:
            raise self.errors.pop()
        self.made.append(Connection())
        return SimpleNamespace(driver_connection=self.made[-1], detach=self._detach)

    def _detach(self) -> None:
        self.detached += 1


def no_server() -> Exception:
    return OperationalError("", None, Exception("no server"))


class World:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.told = threading.Semaphore(0)
        self.listener = CommitListener(engine, "Stubs", self.told.release)  # type: ignore[arg-type]

    def is_told(self) -> bool:
        return self.told.acquire(timeout=WAIT)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("reliable_mq.outbox.thread_listener._AGAIN_SECONDS", 0.001)
    made = World(Engine())
    yield made
    made.listener.close()


def test_each_announced_commit_is_told_and_once_the_beginning(world: World) -> None:
    assert not world.listener.is_listening
    world.listener.start()
    assert world.is_told()
    assert world.listener.is_listening
    (connection,) = world.engine.made
    assert connection.executed == ['LISTEN "Stubs"']
    assert world.engine.detached == 1, "the pool must not give it to others"
    for _ in range(3):
        connection.news.put("a commit")
        assert world.is_told()
    looks = connection.looks
    until(lambda: connection.looks > looks + 3)
    assert not world.told.acquire(blocking=False), "nothing was announced meanwhile"


def test_a_listener_that_is_closed_has_ended_and_let_its_connection_go(world: World) -> None:
    world.listener.start()
    assert world.is_told()
    world.listener.close()
    assert world.engine.made[0].is_closed.is_set()
    assert not world.listener.is_listening
    assert not any(each.name == "reliable-mq-listen" for each in threading.enumerate())


def test_a_cut_connection_is_told_in_a_line_and_another_one_is_made(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.listener.start()
    assert world.is_told()
    world.engine.made[0].news.put(ConnectionError("server closed the connection"))
    assert world.is_told()
    first, second = world.engine.made
    assert first.is_closed.is_set()
    assert second.executed == ['LISTEN "Stubs"']
    second.news.put("a commit")
    assert world.is_told()
    (record,) = [each for each in caplog.records if "connection was lost" in each.getMessage()]
    assert "it searches at intervals: its connection was lost: " in record.getMessage()
    assert "server closed the connection" in record.getMessage()


def test_while_it_cannot_connect_it_does_not_listen_and_tries_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "reliable_mq.outbox.thread_listener")
    world.engine.errors = [no_server() for _ in range(3)]
    world.listener.start()
    assert world.is_told()
    assert world.engine.asked == 4
    assert {each.exc_info for each in caplog.records} == {None}, "an outage is no bug"


def test_it_can_be_closed_while_no_server_is_there(world: World) -> None:
    world.engine.errors = [no_server() for _ in range(10_000)]
    world.listener.start()
    until(lambda: world.engine.asked > 2)
    world.listener.close()
    until(lambda: all(each.name != "reliable-mq-listen" for each in threading.enumerate()))
    assert not world.told.acquire(blocking=False)


def test_a_connection_that_was_cut_counts_as_listening_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then relays search by themselves at shorter intervals."""
    world.listener.start()
    assert world.is_told()
    monkeypatch.setattr("reliable_mq.outbox.thread_listener._AGAIN_SECONDS", 60.0)
    world.engine.made[0].news.put(ConnectionError("cut"))
    until(lambda: not world.listener.is_listening)


@pytest.mark.parametrize("name", ["sqlite", "mysql"])
def test_other_databases_announce_nothing(name: str) -> None:
    world = World(Engine(name))
    world.listener.start()
    world.listener.close()
    assert world.engine.asked == 0
    assert not world.told.acquire(blocking=False)
