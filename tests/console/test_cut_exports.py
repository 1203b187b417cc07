"""A database that goes away in the middle of a download: the file has no end, and that is seen."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from sqlalchemy import event, text
from tests.console.browser.conftest import serving
from tests.console.planted_rows import insert_rows, stub

from reliable_mq import ReliableMQ
from reliable_mq.console import console_app, lists
from reliable_mq.testing.local_servers import free_port

ROWS = 40


@pytest.fixture
def dying(mq: ReliableMQ, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Give what ends the database's session before its n-th reading of a page of stubs."""
    monkeypatch.setattr(lists, "EXPORT_ROWS", 10)
    insert_rows(mq.database, "message_stub", *(stub(number) for number in range(ROWS)))
    engine, left, lock = mq.database.engine, [0], threading.Lock()

    def end_session(connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if "message_key" not in statement or "rmq_message_stub" not in statement:
            return
        with lock:
            left[0] -= 1
            is_last = left[0] == 0
        if is_last:
            (pid,) = connection.connection.dbapi_connection.execute(
                "SELECT pg_backend_pid()"
            ).fetchone()
            with engine.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})

    event.listen(engine, "before_cursor_execute", end_session)
    yield lambda number: left.__setitem__(0, number)
    event.remove(engine, "before_cursor_execute", end_session)


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_file_whose_database_dies_has_no_end(
    mq: ReliableMQ, dying: Callable[[int], None], form: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(console_app(mq), free_port()) as address, httpx2.Client(timeout=60) as client:
        dying(3)
        read: list[bytes] = []
        with (
            caplog.at_level(logging.INFO),
            client.stream("GET", f"{address}/stubs?format={form}") as answer,
            pytest.raises(httpx2.RemoteProtocolError, match="incomplete chunked read"),
        ):
            read.extend(answer.iter_bytes())
        assert b"".join(read).count(b"order-") < ROWS
        (line,) = [each for each in caplog.records if each.name.startswith("reliable_mq.console")]
        assert line.getMessage().startswith("a download from the console was cut in the middle: ")
        assert not any(each.exc_info for each in caplog.records)
        whole = client.get(f"{address}/stubs?format={form}").text  # the database is back
    assert whole.count("order-") == ROWS
