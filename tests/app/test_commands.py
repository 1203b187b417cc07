"""The verbs of the command line that belong to an application: real processes, real signals."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from tests.forked_programs import Program, Programs
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import run
from reliable_mq.testing.local_servers import free_port

APPLICATION = '''
import os, signal, time
from pathlib import Path
from sqlalchemy import text
from sqlalchemy.orm import Session
from reliable_mq import ReliableMQ, ReceivedMessage

mq = ReliableMQ("shop", claim_lease_seconds=1.0)
here = Path(__file__).parent

def kill_once(name):
    """Die here, the first time."""
    try:
        (here / f"died-{name}").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

@mq.consumer("orders", group="payments")
def pay(order: dict[str, int], session: Session, message: ReceivedMessage) -> None:
    session.execute(
        text("INSERT INTO effects VALUES (:id, :doubt)"),
        {"id": order["id"], "doubt": int(message.in_doubt)},
    )
    if order["id"] == 3:
        kill_once("in the handler")

class DiesBeforeSending:
    def accept_committed(self, stubs):
        os.kill(os.getpid(), signal.SIGKILL)

def place(number, dies=False):
    scope = mq.transaction()
    if dies:
        scope._outbox._relay = DiesBeforeSending()
    with scope as tx:
        tx.session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number})
        tx.send("orders", {"id": number}, key=number, ordering_key="c1")
'''


class Shop:
    """A directory with an application, and the processes that run it."""

    def __init__(self, programs: Programs, directory: Path, database: str, redis: str) -> None:
        self._programs = programs
        self.directory = directory
        self.database = database
        self.port = free_port()
        (directory / "shop_app.py").write_text(APPLICATION)
        self.environment = {
            **os.environ,
            "RELIABLE_MQ_DATABASE": database,
            "RELIABLE_MQ_REDIS": redis,
            "RELIABLE_MQ_BROKER": f"127.0.0.1:{self.port}",
            "PYTHONPATH": str(directory),
        }

    def python(self, code: str) -> int:
        """Run code beside the application and return its exit code."""
        words = ["-c", f"from shop_app import *; {code}"]
        return self._programs.run(words, env=self.environment, cwd=self.directory).returncode

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Program]:
        """Run a command until the block ends, then ask it to stop."""
        process = self._programs.begin(
            ["-m", "reliable_mq.cli.main", *arguments],
            self.directory / f"{arguments[0]}.out",
            self.directory / f"{arguments[0]}.err",
            env=self.environment,
            cwd=self.directory,
        )
        with process.killed_in_the_end():
            try:
                yield process
            finally:
                process.terminate()
                process.wait(60)

    @contextmanager
    def broker(self) -> Iterator[None]:
        store = str(self.directory / "store")
        ports = ("--port", "0", "--namesrv-port", str(self.port))
        with self.running("broker", "--store", store, *ports):
            said, errors = (self.directory / f"broker.{each}" for each in ("out", "err"))
            until(lambda: said.read_text().startswith("ready "), errors.read_text)
            yield

    def sql(self, statement: str) -> list[Any]:
        engine = create_engine(self.database)
        with engine.begin() as connection:
            result = connection.execute(text(statement))
            rows = list(result.all()) if result.returns_rows else []
        engine.dispose()
        return rows


@pytest.fixture
def shop(programs: Programs, tmp_path: Path, postgres_url: str, redis_url: str) -> Shop:
    made = Shop(programs, tmp_path, postgres_url, redis_url)
    made.sql("CREATE TABLE orders (id INT)")
    made.sql("CREATE TABLE effects (id INT, doubt INT)")
    return made


@pytest.mark.processes
def test_killed_processes_lose_no_order_and_double_none(shop: Shop) -> None:
    assert shop.python("mq.create_tables()") == 0

    with shop.broker():
        # Given orders of one customer, and a producer that dies between its commit and its send
        assert shop.python("[place(n) for n in range(1, 3)]") == 0  # ends without mq.close()
        assert not shop.sql("SELECT 1 FROM rmq_message_stub WHERE broker_name IS NULL")
        assert shop.python("place(3, dies=True)") == -signal.SIGKILL
        assert shop.python("[place(n) for n in range(4, 7)]; mq.close()") == 0
        # When workers run, of which one dies in its handler, and the scheduler finds the unsent
        with (
            shop.running("run", "shop_app:mq", "--processes", "2") as workers,
            shop.running("resend", "shop_app:mq") as scheduler,
        ):
            until(lambda: shop.sql("SELECT count(*) FROM effects WHERE id = 6")[0][0])
            until(lambda: not shop.sql("SELECT 1 FROM rmq_message_stub WHERE status <> 1"))
        # Then every order has its effect once, in order, and both stopped as they were asked to
        assert [row.id for row in shop.sql("SELECT id FROM effects ORDER BY ctid")] == [
            *(1, 2, 3, 4, 5, 6)
        ]
        assert shop.sql("SELECT doubt FROM effects WHERE id = 3") == [(1,)]
        assert (shop.directory / "died-in the handler").exists()
        assert (workers.returncode, scheduler.returncode) == (0, 0)


@pytest.mark.processes
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_script_that_ends_right_after_its_commit_sends_what_it_has_committed(
    shop: Shop, host: str
) -> None:
    """Given a relay that gets to its first message when Python starts no threads any more."""
    assert shop.python("mq.create_tables()") == 0
    late = """
import atexit, threading
from reliable_mq.outbox.relay import Relay

ending, run_once = threading.Event(), Relay.run_once

def late(self, now):
    ending.wait()
    return run_once(self, now)

Relay.run_once = late
place(1)
atexit.register(ending.set)
"""
    shop.environment["RELIABLE_MQ_BROKER"] = f"{host}:{shop.port}"
    with shop.broker():
        assert shop.python(late) == 0
        assert shop.sql("SELECT broker_name IS NOT NULL FROM rmq_message_stub") == [(True,)]


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(shop: Shop, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """Give a call of the command line in this process: exit code, output, errors."""
    for name, value in shop.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(shop.directory)
    monkeypatch.syspath_prepend(shop.directory)
    monkeypatch.delitem(sys.modules, "shop_app", raising=False)

    def called(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run(arguments)
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return called


def test_stubs_can_be_listed_shown_retried_and_voided(shop: Shop, call: Call) -> None:
    database = ("--db", shop.database)
    made = json.loads(call("create-tables", *database, "--json")[1])["created"]
    assert made == sorted(made)
    assert {"rmq_consume_log", "rmq_message_stub", "rmq_escalation", "rmq_audit"} <= set(made)
    mq = ReliableMQ("shop", broker="127.0.0.1:9", database=shop.database, relay_lease_seconds=0.01)
    with mq.transaction() as tx:
        message_id = tx.send("orders", {"id": 1}, key=17)
    mq.close()

    (listed,) = json.loads(call("stub", "list", *database, "--json")[1])
    assert (listed["message_id"], listed["status"], listed["message_key"]) == (
        message_id,
        "UNCONFIRMED",
        "17",
    )
    assert message_id in call("stub", "list", *database, "--status", "unconfirmed")[1]
    assert message_id not in call("stub", "list", *database, "--escalated")[1]
    shown = json.loads(call("stub", "show", message_id, *database, "--json")[1])
    assert (shown["content"], shown["consume_logs"]) == ('{"id":1}', [])
    assert "UNCONFIRMED" in call("stub", "show", message_id, *database)[1]
    assert call("stub", "void", message_id, *database, "--note", "cancelled")[0] == 0
    code, out, _ = call("stub", "void", message_id, *database)
    assert (code, "VOIDED" in out) == (1, True), out
    assert call("stub", "retry", message_id, *database)[0] == 0
    assert shop.sql("SELECT status, note FROM rmq_message_stub") == [(0, "retry by hand")]
    assert call("stub", "show", "nothing", *database)[0] == 2


def test_tables_are_named_when_they_are_made_and_not_again(shop: Shop, call: Call) -> None:
    database = ("--db", shop.database)
    first = json.loads(call("create-tables", *database, "--json")[1])["created"]
    assert len(first) == len(
        shop.sql("SELECT tablename FROM pg_tables WHERE tablename LIKE 'rmq%'")
    )
    assert call("create-tables", *database) == (0, "all tables are there\n", "")

    shop.sql("DROP TABLE rmq_audit")

    assert call("create-tables", *database) == (0, "created: rmq_audit\n", "")
    assert json.loads(call("create-tables", *database, "--json")[1]) == {"created": []}


def test_all_that_wait_for_a_person_are_retried_at_once_after_a_look(
    shop: Shop, call: Call
) -> None:
    database = ("--db", shop.database)
    call("create-tables", *database)
    mq = ReliableMQ("shop", broker="127.0.0.1:9", database=shop.database, relay_lease_seconds=0.01)
    ids = []
    for topic in ("orders", "orders", "invoices", "orders"):
        with mq.transaction() as tx:
            ids.append(tx.send(topic, {"id": 1}))
    mq.close()
    shop.sql("UPDATE rmq_message_stub SET count = 16, resend_time = NULL, owner = NULL")
    shop.sql(
        f"UPDATE rmq_message_stub SET create_date = now() + '1h' WHERE message_id = '{ids[3]}'"
    )
    every = ("stub", "retry", "--escalated", "--topic", "orders", "--until", "-0s", *database)

    code, out, _ = call(*every, "--dry-run")
    assert (code, "2 stub(s) would be sent again" in out) == (0, True)
    assert [each in out for each in ids] == [True, True, False, False]
    assert shop.sql("SELECT count(*) FROM rmq_message_stub WHERE count = 16") == [(4,)]
    assert json.loads(call(*every, "--json")[1]) == dict.fromkeys(ids[:2], True)
    waiting = shop.sql("SELECT message_id FROM rmq_message_stub WHERE count = 16 ORDER BY seq")
    assert waiting == [(ids[2],), (ids[3],)]
    assert call("stub", "retry", *database)[0] == 2
    assert call("stub", "retry", ids[2], "--escalated", *database)[0] == 2
    assert call("stub", "retry", ids[2], "--dry-run", *database)[0] == 2


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (("run", "nowhere:mq"), "there is no module 'nowhere'", 2),
        (("run", "shop_app"), "not MODULE:OBJECT", 2),
        (("run", "shop_app:mq"), "is missing: call mq.create_tables()", 2),
        (
            ("resend", "shop_app:mq", "--db", "sqlite:///x.db"),
            "give either --app MODULE:OBJECT or --db",
            2,
        ),
        (("resend", "--db", "sqlite:///x.db", "--broker", "nonsense", "--once"), "host:port", 2),
        (("create-tables", "--db", "oracle://x"), "not supported", 2),
        (("create-tables", "--db", "sqlite:///x.db", "--prefix", "Bad-;"), "prefix", 2),
        (("stub", "list", "--db", "sqlite:///typo.db"), "there is no file typo.db; table rmq_", 2),
        (("resend", "--db", "sqlite:///typo.db", "--once"), "there is no file typo.db", 2),
        (("resend", "--db", "postgresql+psycopg://u@127.0.0.1:9/x", "--once"), "database: ", 1),
    ],
)
def test_a_mistake_is_told_in_one_line(
    call: Call, arguments: tuple[str, ...], says: str, code: int
) -> None:
    exit_code, _, errors = call(*arguments)

    told = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert len(told) == 1
    assert says in told[0]
    assert "Traceback" not in errors
    assert exit_code == code
    assert not Path("typo.db").exists()  # a look leaves nothing behind
