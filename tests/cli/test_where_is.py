"""Where is order 4711? Each of `stub show`, `dlq`, `doctor` and `reconcile` answers at once."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import BAD_USAGE, DONE, FAILED, run

pytestmark = pytest.mark.processes

SHOP = """
from reliable_mq import ReliableMQ, Reject

mq = ReliableMQ("shop", database={database!r}, broker={broker!r})

@mq.consumer("orders", group="payments", max_attempts=1)
def pay(order: dict) -> None:
    if order["id"] == 4711:
        raise Reject("the card is stolen")

@mq.consumer("orders", group="mail")
def tell(order: dict) -> None: ...
"""
FINDINGS = 2

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give a folder with an application: order 4711 is a dead letter, 4712 had two messages."""
    folder = tmp_path_factory.mktemp("where")
    database = f"sqlite:///{folder}/shop.db"
    with ReliableMQBroker(folder / "broker", "ASYNC_FLUSH") as broker:
        at = broker.name_server_address
        text = SHOP.format(database=database, broker=at)
        (folder / "where_shop.py").write_text(text)
        namespace: dict[str, Any] = {}
        exec(compile(text, "where_shop.py", "exec"), namespace)
        mq: ReliableMQ = namespace["mq"]
        mq.create_tables()
        with mq:
            for number, tag in ((4711, "placed"), (4712, "placed"), (4712, "sent")):
                with mq.transaction() as tx:
                    tx.send("orders", {"id": number}, key=number, tag=tag)
            logs, escalations = mq.database.logs, mq.database.escalations
            until(lambda: _count(mq, logs) == 6)
            until(lambda: _count(mq, escalations) == 1)
            _look_now(mq, "4711")
        yield folder


def _look_now(mq: ReliableMQ, key: str) -> None:
    """Let a scheduler look at a stub now. A group may have consumed it after the dead letter."""
    stubs = mq.database.stubs
    this = (stubs.c.message_key == key) & stubs.c.resend_time.is_not(None)
    with mq.database.engine.begin() as connection:
        connection.execute(stubs.update().where(this).values(resend_time=stubs.c.create_date))
    mq.resend_once()


def _count(mq: ReliableMQ, table: Any) -> int:
    with mq.database.reading_engine.connect() as connection:
        return len(connection.execute(table.select()).all())


@pytest.fixture
def call(
    world: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Call]:
    """Give a call of the command line in the folder of the application."""
    for name in [name for name in os.environ if name.startswith("RELIABLE_MQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(world)
    monkeypatch.setenv("RELIABLE_MQ_APP", "where_shop:mq")

    def called(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run(words)
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    path = list(sys.path)
    yield called
    sys.path[:] = path
    sys.modules.pop("where_shop", None)


def test_stub_show_finds_a_dead_letter_by_its_business_key(call: Call) -> None:
    code, out, err = call("stub", "show", "4711")

    assert (code, err) == (DONE, "")
    assert "state            waits for a person: dead letter of payments\n" in out
    for ledger, what in (
        ("stub", "committed: topic orders, key 4711"),
        ("broker", "stored in orders"),
        ("log of mail", "consumed, attempt 1"),
        ("log of payments", "attempt 1 was the last one: the card is stolen"),
        ("broker", "dead letter of payments: the card is stolen"),
        ("escalation", "dead letter of payments: the card is stolen"),
    ):
        assert any(f"  {ledger} " in line and what in line for line in out.splitlines()), what
    last = out.splitlines()[-1]
    assert last.startswith("to send it again: reliable-mq dlq retry 0")
    assert last.endswith("--group payments")


def test_the_same_is_found_by_message_id_and_in_json(call: Call) -> None:
    shown = json.loads(call("stub", "show", "4711", "--json")[1])
    again = json.loads(call("stub", "show", shown["message_id"], "--json")[1])

    assert again == shown
    assert shown["required_groups"] == ["mail", "payments"]
    (command,) = shown["commands"]
    assert shlex.split(command)[:4] == ["reliable-mq", "dlq", "retry", shown["message_id"]]


def test_several_messages_of_a_key_are_listed(call: Call) -> None:
    code, out, _ = call("stub", "show", "4712")
    rows = json.loads(call("stub", "show", "4712", "--json")[1])

    assert code == DONE
    assert out.startswith("2 messages have 4712 as their key, correlation id or header\n")
    assert "to see one of them: reliable-mq stub show MESSAGE_ID" in out
    assert {row["tag"] for row in rows} == {"placed", "sent"}
    assert {row["state"] for row in rows} == {"settled: consumed by mail and payments"}


def test_a_key_that_nobody_knows_is_one_line(call: Call) -> None:
    code, out, err = call("stub", "show", "4713")

    assert (code, out) == (BAD_USAGE, "")
    assert err == (
        "error: no ledger knows a message with the id or key 4713; a message that was sent without "
        "key= is found by its id only\n"
    )


def test_dlq_lists_dead_letters_by_key_and_names_the_command(call: Call) -> None:
    code, out, _ = call("dlq", "list", "--key", "4711")
    (row,) = json.loads(call("dlq", "list", "--key", "4711", "--json")[1])

    assert code == DONE
    assert (row["keys"], row["tag"], row["reason"]) == (["4711"], "placed", "the card is stolen")
    assert f"reliable-mq dlq retry {row['message_id']} --group payments" in out
    assert call("dlq", "list", "--key", "4712")[2] == "no dead letter waits for a person\n"


def test_doctor_says_where_the_messages_of_a_key_are(call: Call) -> None:
    code, out, _ = call("doctor", "--key", "4711")
    healthy = call("doctor", "--key", "4712")

    assert code == FAILED
    assert "FAIL message " in out
    assert "waits for a person: dead letter of payments" in out
    assert "reliable-mq dlq retry 0" in out
    assert healthy[0] == DONE
    assert healthy[1].count("settled: consumed by mail and payments") == 2


def test_a_list_of_stubs_names_the_command_for_what_was_given_up(call: Call) -> None:
    out = call("stub", "list", "--escalated")[1]

    assert "given up by consumer groups; to see them: reliable-mq dlq list" in out
    assert "stub retry" not in out


def test_an_application_that_only_consumes_finds_the_message_at_its_brokers(
    call: Call, world: Path, tmp_path: Path
) -> None:
    """Given an application whose database has neither the stub nor a consume log."""
    text = (world / "where_shop.py").read_text()
    name = f"other_{tmp_path.name.replace('-', '_')}"
    other = world / f"{name}.py"
    other.write_text(text.replace("shop.db", f"{name}.db"))
    assert call("create-tables", f"{name}:mq")[0] == DONE

    out = call("stub", "show", "4711", "--app", f"{name}:mq")[1]

    assert "stored in orders" in out
    assert "its stub is in no database that was asked" in out
    sys.modules.pop(name)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_reconcile_prints_the_verdicts_of_a_key(call: Call, tmp_path: Path) -> None:
    """Given no option for ledgers, then those of the application are read: databases, brokers."""
    words = ("reconcile", "--grace", "0", "--out", str(tmp_path / "out"), "--key", "4711")
    code, out, err = call(*words)

    assert code in (DONE, FINDINGS), err
    lines = [line for line in out.splitlines() if line.startswith("key 4711: ")]
    assert len(lines) == 2
    assert any(": dead-lettered: " in line and " payments: " in line for line in lines), lines
    assert any(": settled: " in line and " mail: " in line for line in lines), lines
