"""A person is told, looks, and settles by hand: real processes' parts, broker, mail server."""

import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import select
from tests.resend.test_smtp_notifier import Mailbox, serving
from tests.waiting import until

from reliable_mq import Message, ReliableMQ
from reliable_mq.cli.main import run
from reliable_mq.client.thread_client import Client

MAIL = "mail to ops@shop.example"
Call = Callable[..., tuple[int, str, str]]

_numbers = itertools.count(1)

APPLICATION = """
import os
from sqlalchemy.orm import Session
from reliable_mq import ReceivedMessage, Reject, ReliableMQ

mq = ReliableMQ("shop", resend_interval_seconds=0.05, resend_waits_seconds=(1.0, 10.0))
topic, payments, points = "orders-N", "payments-N", "points-N"
calls, broken = [], [True]

@mq.consumer("orders-N", group="payments-N", max_attempts=1)
def pay(order: dict[str, int], session: Session, message: ReceivedMessage) -> None:
    calls.append(("payments", message.message_id))
    if broken[0]:
        raise ValueError("the bank is closed")

@mq.consumer("orders-N", group="points-N")
def add_points(order: dict[str, int], session: Session, message: ReceivedMessage) -> None:
    calls.append(("points", message.message_id))
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of a running broker."""
    with ReliableMQBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running.name_server_address


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    made = Mailbox()
    with serving(made) as port:
        yield made, port


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    """Give a call of the command line in this process: exit code, output, errors."""

    def called(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run(arguments)
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return called


@pytest.fixture
def shop(
    tmp_path: Path,
    database_url: str,
    broker: str,
    mailbox: tuple[Mailbox, int],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    """Give the module of an application that runs, with its resend scheduler."""
    for name, value in (
        ("DATABASE", database_url),
        ("BROKER", broker),
        ("ESCALATION_MAIL_SERVER", f"smtp://127.0.0.1:{mailbox[1]}"),
        ("ESCALATION_MAIL_FROM", "mq@shop.example"),
        ("ESCALATION_MAIL_TO", "ops@shop.example"),
        ("ESCALATION_COOLDOWN_SECONDS", "0"),
    ):
        monkeypatch.setenv(f"RELIABLE_MQ_{name}", value)
    text = APPLICATION.replace("-N", f"-{next(_numbers)}")
    (tmp_path / "people_shop.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "people_shop", raising=False)
    import people_shop  # type: ignore[import-not-found]

    mq: ReliableMQ = people_shop.mq
    mq.create_tables()
    mq.start()
    stopped = threading.Event()
    scheduler = threading.Thread(target=mq.resend_forever, args=(stopped,))
    scheduler.start()
    yield people_shop
    stopped.set()
    scheduler.join()
    mq.close()


def status_of(mq: ReliableMQ, message_id: str) -> int:
    stub = mq.database.stubs.c
    with mq.database.engine.begin() as connection:
        return int(
            connection.execute(
                select(stub.status).where(stub.message_id == message_id)
            ).scalar_one()
        )


def asked_again_in_vain(call: Call, message_id: str, group: str, place: tuple[str, ...]) -> None:
    """Ask for a letter that was consumed since and for one that never was."""
    unknown = "F" * 65  # as foreign producers may have called it; longer than what tables hold
    code, out, err = call("dlq", "retry", message_id, unknown, "--by", "bob", *place)
    assert (code, out) == (1, "0 of 2 dead letter(s) retried\n")
    hint = "; if it is a key: reliable-mq stub show "
    assert [each.partition(hint)[0] for each in err.splitlines()] == [
        f"{unknown} is not retried: there is no such dead letter",
        f"{group} {message_id} is not retried: its group has consumed it since",
    ]
    assert call("dlq", "retry", unknown, "--dry-run", *place)[0] == 1
    # Without an option the environment names database and broker, for the audit, too.
    code, out, _ = call("dlq", "retry", unknown, "--by", "bob", "--json")
    assert (code, json.loads(out)) == (1, {unknown: False})
    code, out, _ = call("stub", "retry", message_id, unknown, "--by", "bob", *place[:2])
    assert (code, [each.partition(hint)[0] for each in out.splitlines()]) == (
        1,
        [f"{message_id} retry: it is CONFIRMED", f"{unknown} retry: there is no such stub"],
    )
    code, out, _ = call("stub", "void", message_id, "--by", "bob", *place[:2])
    assert (code, out) == (
        1,
        f"{message_id} void: it is CONFIRMED\n",
    )
    history = json.loads(call("stub", "show", unknown, *place[:2], "--json")[1])
    assert [each["what"] for each in history["timeline"] if each["ledger"] == "audit"] == [
        "dlq retry by bob (nothing was changed): there is no such dead letter",
        "dlq retry by bob (nothing was changed): there is no such dead letter",
        "stub retry by bob (nothing was changed): there is no such stub",
    ]


def test_a_dead_letter_is_mailed_shown_retried_and_settled(
    shop: Any, call: Call, mailbox: tuple[Mailbox, int], broker: str
) -> None:
    # Given an order whose payment becomes a dead letter, while points are added
    with shop.mq.transaction() as tx:
        message_id = tx.send(shop.topic, {"id": 1}, key=17)
    until(lambda: mailbox[0].mails)
    until(lambda: len(shop.calls) == 2)

    # Then one mail says so, and the dead letter can be looked at
    (mail,) = mailbox[0].mails
    assert "1 dead letter" in mail["Subject"]
    text = mail.get_body(("plain",)).get_content()  # type: ignore[union-attr]
    assert f"{message_id}  {shop.topic}, key 17" in text
    assert f"{shop.payments}: attempt 1 of 1 failed: ValueError: the bank is closed" in text
    place = ("--db", str(shop.mq.settings.database), "--broker", broker)
    here = ("--topic", shop.topic, *place, "--json")  # there are letters of other tests
    until(lambda: json.loads(call("dlq", "list", *here)[1]))
    (letter,) = json.loads(call("dlq", "list", *here, "--key", "17")[1])
    assert (letter["message_id"], letter["consumer_group"]) == (message_id, shop.payments)
    assert (letter["topic"], letter["state"]) == (shop.topic, "waiting")
    assert json.loads(call("dlq", "list", *here, "--reason-holds", "open")[1]) == []
    assert "the bank is closed" in call("dlq", "list", *place)[1]
    (shown,) = json.loads(call("dlq", "show", message_id, *place, "--json")[1])
    assert shown["content"] == '{"id":1}'
    # given up when the other group has consumed it, which the scheduler may be the one to notice
    until(lambda: message_id in call("stub", "list", "--escalated", *place[:2])[1])

    # When the bank opens and a person retries it
    shop.broken[0] = False
    code, out, _ = call("dlq", "retry", "--group", shop.payments, "--dry-run", *place)
    assert (code, "1 dead letter(s) would be retried" in out) == (0, True)
    retry = ("dlq", "retry", "--group", shop.payments, "--note", "bank open", "--by", "ann")
    code, out, _ = call(*retry, *place, "--json")

    # Then the order is paid, points are not added again, and everything agrees
    assert (code, json.loads(out)) == (0, {f"{shop.payments} {message_id}": True})
    until(lambda: status_of(shop.mq, message_id) == 1)
    assert shop.calls == [*shop.calls[:2], ("payments", message_id)]
    assert json.loads(call("dlq", "list", *here)[1]) == []
    (letter,) = json.loads(call("dlq", "list", *here, "--also-settled")[1])
    assert letter["state"] == "consumed since"
    asked_again_in_vain(call, message_id, shop.payments, place)
    told = json.loads(call("stub", "show", message_id, *place, "--json")[1])
    lines = [f"{each['ledger']}: {each['what']}" for each in told["timeline"]]
    assert told["status"] == "CONFIRMED"
    for line in (
        f"stub: committed: topic {shop.topic}, key 17 for {shop.payments},{shop.points}",
        f"broker: dead letter of {shop.payments}: {letter['reason']}",
        f"log of {shop.payments}: attempt 1 failed: ValueError: the bank is closed",
        f"log of {shop.payments}: consumed, attempt 1",
        "audit: dlq retry by ann: bank open",
        "audit: dlq retry by bob (nothing was changed): its group has consumed it since",
        "audit: stub retry by bob (nothing was changed): it is CONFIRMED",
        "audit: stub void by bob (nothing was changed): it is CONFIRMED",
        f"escalation: closed by retry: dead letter of {shop.payments}",
    ):
        assert line in lines
    assert any(line.startswith(f"broker: stored in {shop.topic}") for line in lines)
    assert any(line.startswith("alert: sent by mail") for line in lines)
    assert len(mailbox[0].mails) == 1


def test_a_person_can_see_whether_anybody_would_be_told(
    shop: Any, call: Call, mailbox: tuple[Mailbox, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = call("notifiers", "--app", "people_shop:mq", "--test")
    assert (code, out) == (0, f"log: told\n{MAIL}: told\n")
    assert mailbox[0].mails[0]["Subject"] == "[shop] this is a test: it has no escalations"
    mailbox[0].answer = "451 full"
    code, out, _ = call("notifiers", "--app", "people_shop:mq", "--test", "--json")
    assert (code, json.loads(out)["log"]) == (1, "")
    assert "full" in json.loads(out)[MAIL]
    rows = json.loads(call("notifiers", "--app", "people_shop:mq", "--json")[1])
    assert [(row["name"], row["waiting"]) for row in rows] == [("log", 0), (MAIL, 0)]
    assert call("notifiers")[0] == 0, "the environment names the database"
    monkeypatch.delenv("RELIABLE_MQ_DATABASE")
    assert call("notifiers")[0] == 2


def test_a_look_without_a_broker_says_that_it_was_not_asked(
    shop: Any, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.broken[0] = False
    with shop.mq.transaction() as tx:
        message_id = tx.send(shop.topic, {"id": 2})
    until(lambda: status_of(shop.mq, message_id) == 1)
    url = str(shop.mq.settings.database)
    monkeypatch.delenv("RELIABLE_MQ_BROKER")

    assert "not asked: give --app or --broker" in call("stub", "show", message_id, "--db", url)[1]
    nowhere = ("--db", url, "--broker", "127.0.0.1:9")
    code, out, _ = call("stub", "show", message_id, *nowhere)
    assert (code, "could not be asked: no name server answers" in out) == (1, True)
    assert call("dlq", "list", "--db", url)[0] == 2
    assert call("dlq", "retry", "--db", url)[0] == 2
    assert call("dlq", "show", "F" * 32, "--app", "people_shop:mq")[0] == 2
    code, _, err = call("dlq", "list", *nowhere)
    assert (code, "error: " in err) == (1, True)


def test_a_dead_letter_without_a_stub_is_told_too(
    shop: Any, call: Call, mailbox: tuple[Mailbox, int], broker: str
) -> None:
    foreign = "E" * 32
    with Client(broker) as client:
        client.send(Message(topic=shop.topic, body=b"no json", message_id=foreign))

    until(lambda: any(foreign in str(mail) for mail in mailbox[0].mails))

    assert "the payload does not validate" in str(mailbox[0].mails[0])

    def groups() -> set[str]:
        shown = json.loads(call("stub", "show", foreign, "--app", "people_shop:mq", "--json")[1])
        return {log["consumer_group"] for log in shown["consume_logs"]}

    until(lambda: groups() == {shop.payments, shop.points}, lambda: str(groups()))
