"""`stub show` says which group has a message in flight by the message, and until when."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.patient_clients import PATIENT
from tests.waiting import until

from reliable_mq import Client, ReceivedMessage, ReliableMQ, Subscription
from reliable_mq.cli.main import DONE, FAILED, run

pytestmark = pytest.mark.processes


class Shop(NamedTuple):
    """An application's database, the broker, and the store of the broker."""

    database: str
    broker: ReliableMQBroker
    store: str


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("popped")
    with ReliableMQBroker(folder / "broker", "ASYNC_FLUSH") as broker:
        yield Shop(f"sqlite:///{folder}/shop.db", broker, f"{folder}/broker/store")


def sent(shop: Shop, key: int, group: str) -> str:
    """Commit a message with a stub, and send it; return its topic."""
    topic = f"orders-{key}"
    mq = ReliableMQ("shop", database=shop.database, broker=shop.broker.name_server_address)
    mq.topic(topic, groups=[group])
    mq.create_tables()
    stubs = mq.database.stubs

    def is_stored() -> bool:
        with mq.database.reading_engine.connect() as connection:
            row = connection.execute(stubs.select().where(stubs.c.topic == topic)).one()
            return row.broker_name is not None

    with closing(mq):
        with mq.transaction() as tx:
            tx.send(topic, {"id": key}, key=key)
        until(is_stored)
    return topic


@contextmanager
def receiver(shop: Shop, group: str, topic: str, namespace: str = "") -> Iterator[Any]:
    subscription = Subscription(
        group=group,
        topics={topic: "*"},
        by="message",
        ordered=False,
        invisible_seconds=600.0,
        from_where="first",
    )
    settings = msgspec.structs.replace(PATIENT, namespace=namespace)
    with (
        Client(shop.broker.name_server_address, settings=settings) as client,
        client.simple_consumer(subscription) as consumer,
    ):
        yield consumer


def taken(consumer: Any) -> ReceivedMessage:
    """Receive one message."""
    found: list[ReceivedMessage] = []
    while not found:
        found = consumer.receive(1, timeout=10.0)
    return found[0]


class Shown(NamedTuple):
    """`stub show` of one message, as a call."""

    capfd: pytest.CaptureFixture[str]
    words: tuple[str, ...]

    def __call__(self, *more: str) -> str:
        self.capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(("stub", "show", *self.words, *more))
        out, err = self.capfd.readouterr()
        assert (ended.value.code or 0, err) == (DONE, "")
        return out


@pytest.fixture
def shown_at(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Shown]:
    for name in [name for name in os.environ if name.startswith("RELIABLE_MQ_")]:
        monkeypatch.delenv(name)
    return lambda *words: Shown(capfd, words)


def test_who_has_a_message_is_shown_until_it_is_acknowledged(
    shop: Shop, shown_at: Callable[..., Shown]
) -> None:
    shown = shown_at("11", "--db", shop.database, "--broker", shop.broker.name_server_address)
    topic = sent(shop, 11, "mail")
    assert "in flight" not in shown()
    handed_out = "handed out to mail by the message, attempt 1"
    with receiver(shop, "mail", topic) as consumer:
        message = taken(consumer)
        until(lambda: f"{handed_out}: in flight, invisible until " in shown())
        assert "consumed by nobody yet, in flight at mail\n" in shown()
        consumer.extend(message, 900.0)
        until(lambda: f"{handed_out}, its time was changed once: in flight" in shown())
        consumer.ack(message)
        until(lambda: f"{handed_out}, its time was changed once: acknowledged\n" in shown())
        assert "in flight at" not in shown()


def test_a_second_attempt_is_another_hand_out(shop: Shop, shown_at: Callable[..., Shown]) -> None:
    shown = shown_at("21", "--db", shop.database, "--broker", shop.broker.name_server_address)
    topic = sent(shop, 21, "ledger")
    with receiver(shop, "ledger", topic) as consumer:
        first = taken(consumer)
        until(lambda: json.loads(shown("--json"))["popped"])
        (row,) = json.loads(shown("--json"))["popped"]
        assert (row["group"], row["topic"], row["attempt"]) == ("ledger", topic, 1)
        assert (row["queue_id"], row["offset"]) == (first.queue.queue_id, first.queue_offset)
        assert row["broker"] == first.queue.broker_name
        assert row["is_acknowledged"] is False
        assert row["until"] > row["popped"]

        consumer.retry(first, 0.0)
        second = taken(consumer)
        assert second.reconsume_times == 1
        until(lambda: "handed out to ledger by the message, attempt 2: in flight" in shown())
        both = json.loads(shown("--json"))["popped"]
        assert [(each["topic"], each["attempt"]) for each in both] == [(topic, 1), (topic, 2)]


def test_a_stopped_broker_is_read_from_its_store(
    shop: Shop, tmp_path: Path, shown_at: Callable[..., Shown]
) -> None:
    with ReliableMQBroker(tmp_path, "ASYNC_FLUSH") as broker:
        there = shop._replace(broker=broker, store=f"{tmp_path}/store")
        topic = sent(there, 31, "stock")
        with receiver(there, "stock", topic) as consumer:
            consumer.retry(taken(consumer), 0.0)
            assert taken(consumer).reconsume_times == 1
    out = shown_at("31", "--db", shop.database, "--store", there.store)()
    assert "handed out to stock by the message, attempt 1, its time was changed once: " in out
    gave_back = "handed out to stock by the message, attempt 2, its time was changed once: "
    assert f"{gave_back}not acknowledged until " in out
    named = shown_at("31", "--db", shop.database, "--store", f"broker-a={there.store}", "--json")
    assert {each["broker"] for each in json.loads(named())["popped"]} == {"broker-a"}


def test_a_folder_that_is_no_store_is_refused(shop: Shop, tmp_path: Path) -> None:
    sent(shop, 41, "nobody")
    with pytest.raises(SystemExit) as ended:
        run(("stub", "show", "41", "--db", shop.database, "--store", str(tmp_path)))
    assert ended.value.code == FAILED
