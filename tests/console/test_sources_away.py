"""A source that is away: what is known is shown with its age, and a line says what is away."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import event
from tests.console.conftest import Browse
from tests.console.planted_rows import insert_rows, run
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.console.kept import KeptValue
from reliable_mq.console.sources import ask
from reliable_mq.errors import Unavailable


@pytest.fixture
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReliableMQ]:
    """Give an application whose database and broker nobody serves."""
    made = ReliableMQ(
        "shop",
        database="postgresql+psycopg://nobody@127.0.0.1:1/none",
        broker="127.0.0.1:1",
        client={"request_timeout_seconds": 0.5},
    )
    yield made
    made.close()


@pytest.mark.parametrize(
    "path", ["/", "/overview/live", "/stubs", "/find?q=order", "/message?id=0123", "/metrics"]
)
def test_no_page_fails(browse: Browse, lost: ReliableMQ, path: str) -> None:
    answer = browse(lost).get(path)
    assert answer.status_code == 200
    if path != "/metrics":
        assert "connection failed" in answer.text
        assert "127.0.0.1" in answer.text


@pytest.mark.parametrize("path", ["/stubs?format=csv", "/stubs?format=json", "/groups?format=csv"])
def test_a_file_of_rows_is_refused_and_is_not_empty(
    browse: Browse, lost: ReliableMQ, path: str
) -> None:
    answer = browse(lost).get(path)
    assert answer.status_code == 503
    assert answer.json()["error"]


def test_what_could_not_be_read_is_not_called_missing(browse: Browse, lost: ReliableMQ) -> None:
    page = browse(lost).get("/overview/live").text
    assert "Not known: no broker has answered yet." in page
    assert "No consumer group is known" not in page
    assert "no run" not in page


def test_readiness_says_it_and_liveness_does_not(browse: Browse, lost: ReliableMQ) -> None:
    client = browse(lost)
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200


def test_missing_tables_are_named(browse: Browse, postgres_url: str) -> None:
    mq = ReliableMQ("shop", database=postgres_url, broker="embedded:store", table_prefix="other_")
    client = browse(mq)
    assert "a table is missing" in client.get("/stubs").text
    mq.close()


def test_what_was_read_is_shown_with_its_age_when_its_database_has_gone(
    mq: ReliableMQ, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = [0.0]
    defaults = KeptValue.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "clock", lambda: time.monotonic() + passed[0])
    insert_rows(mq.database, "reconcile_run", run(findings=3, is_clean=False))
    client = browse()
    until(lambda: "3 findings" in client.get("/overview/live").text)

    def refuse(*_connecting: Any) -> None:
        raise psycopg.OperationalError("connection failed: nobody listens")

    event.listen(mq.database.engine, "do_connect", refuse)
    mq.database.engine.dispose()
    passed[0] = 7_200.0
    until(lambda: "nobody listens" in client.get("/overview/live").text)
    page = client.get("/overview/live").text
    assert "Act now: database" in page
    assert "3 findings" in page
    assert "read 2 h ago" in " ".join(page.split())
    event.remove(mq.database.engine, "do_connect", refuse)


class Source:
    """A source that answers, fails or waits, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.reads = 0
        self.error: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.kept = KeptValue(self.read, 10.0, patience=0.0, clock=lambda: self.now)

    def read(self) -> int:
        assert self.may_answer.wait(60.0)
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.reads

    def until(self, reads: int) -> None:
        until(lambda: self.kept.look() and self.reads == reads and self.kept._reading is None)


def test_a_value_is_kept_while_it_is_good() -> None:
    source = Source()
    source.until(1)
    source.now += 9.0
    assert source.kept.look() == (1, 9.0, "")
    source.now += 2.0
    source.until(2)
    assert source.kept.look() == (2, 0.0, "")


def test_the_last_value_stays_with_its_age_when_its_source_is_away() -> None:
    source = Source()
    source.until(1)
    source.error = Unavailable("the broker is away")
    source.now += 60.0
    source.until(2)
    assert source.kept.look() == (1, 60.0, "the broker is away")


def test_a_source_that_hangs_delays_no_page() -> None:
    source = Source()
    source.may_answer.clear()
    found = source.kept.look()
    assert (found.value, found.fault) == (None, "no answer within 0 s")
    source.may_answer.set()
    source.until(1)


def test_an_answer_is_a_value_or_a_line_and_a_bug_is_raised() -> None:
    never = threading.Event()
    assert ask(lambda: 7) == (7, "")
    assert ask(never.wait, 0.0) == (None, "no answer within 0 s")
    assert ask(lambda: _raise(Unavailable("away"))) == (None, "away")
    with pytest.raises(ZeroDivisionError):
        ask(lambda: _raise(ZeroDivisionError("a bug")))
    never.set()


def _raise(error: Exception) -> None:
    raise error
