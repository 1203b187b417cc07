"""A console that is served, and Debian's Chromium, which Playwright drives."""

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from tests.console.planted_rows import (
    NOW,
    insert_rows,
    log,
    message_id,
    plant_everywhere,
    run,
    stub,
)
from tests.console.test_overview_figures import seen, settled
from tests.postgres_databases import new_database
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.console import console_app
from reliable_mq.database.attempt_list import AttemptEnd, line_of
from reliable_mq.testing.local_servers import LocalPostgres, free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SCREENSHOTS = Path("build/console")
STORY = message_id(500)
"""A message with attempts, siblings, a payload and a trace."""
SECRET = message_id(502)
"""A message with a sensitive field."""
AHEAD, BEHIND = message_id(504), message_id(505)
"""Two messages of one ordering key: the second waits behind the first."""


def _fill(mq: ReliableMQ) -> None:
    rows = [stub(number, message_key=f"order-{number}") for number in range(2, 40)]
    rows[3] |= {"resend_time": None, "note": "the broker refused it: the topic does not exist"}
    story = stub(1, message_id=STORY, message_key="order-4711", broker_name="broker-a")
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    story |= {"properties": json.dumps({"traceparent": trace})}
    story |= {"queue_id": 2, "offset": 31, "content": b'{"order": 4711, "total": "12.50"}'}
    rows += [story, stub(1, message_id=message_id(501), create_date=story["create_date"])]
    insert_rows(mq.database, "message_stub", *rows)
    begun = story["create_date"].timestamp()
    failed = line_of(1, begun + 1.5, AttemptEnd.FAILED, "the payment provider timed out")
    insert_rows(mq.database, "consume_log", log(story, attempt=2, failures=failed))
    insert_rows(mq.database, "consume_log", *[log(each) for each in rows[:30]])
    insert_rows(mq.database, "reconcile_run", run(run_id="night", findings=2, finish_date=NOW))
    late = NOW - timedelta(hours=2)
    insert_rows(mq.database, "process", seen(handling='{"billing": 1.5}'))
    insert_rows(mq.database, "process", seen(owner="p-2", host="host-b", seen_date=late))
    timer = stub(60, deliver_time=NOW + timedelta(days=1), message_key="order-later")
    secret = stub(61, topic="cards", message_id=SECRET, content=b'{"card_number": "4111-2222"}')
    quick = settled(503, NOW, message_key="order-quick")
    insert_rows(mq.database, "message_stub", timer, secret, quick)
    effect = {"create_date": NOW - timedelta(seconds=3), "consume_date": NOW}
    insert_rows(mq.database, "consume_log", log(quick, **effect))
    place = {"broker_name": "broker-a", "queue_id": 0, "offset": 1, "ordering_key": "c-1"}
    both = [stub(62, message_id=each, **place) for each in (AHEAD, BEHIND)]
    insert_rows(mq.database, "message_stub", *both)
    plant_everywhere(mq.database)


def _runs(folder: Path) -> Path:
    finding = {"verdict": "lost", "message_id": STORY, "topic": "orders", "says": "no log"}
    summary = {"as_of": NOW.isoformat(), "findings_total": 1, "findings": [finding]}
    run_folder = folder / "report" / "run-01"
    run_folder.mkdir(parents=True)
    (run_folder / "summary.json").write_text(json.dumps(summary | {"verdicts": {"lost": 1}}))
    (run_folder / "report.html").write_text("<h1>report</h1>")
    return folder / "report"


@contextmanager
def serving(app: Any, port: int) -> Iterator[str]:
    """Serve a console; give its address."""
    config = uvicorn.Config(app, port=port, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="session")
def served(
    postgres_server: LocalPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Give the address of a console with a bit of everything."""
    with new_database(postgres_server) as url:
        folder = tmp_path_factory.mktemp("browser")
        mq = ReliableMQ("shop", database=url, broker=f"embedded:{folder}/store")
        mq.topic("orders", groups=["billing"])
        mq.topic("cards", groups=["billing"], sensitive=["card_number"])
        mq.create_tables()
        _fill(mq)
        traces = "https://traces.example/{trace_id}"
        console = console_app(mq, runs=_runs(folder), trace_url=traces)
        with serving(console, free_port()) as address:
            yield address
        mq.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator["Browser"]:
    """Give a browser without a window."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="make consolebrowser installs it")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
