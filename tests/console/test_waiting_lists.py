"""Workers, halves and timers: what a database says, and what brokers say."""

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from starlette.testclient import TestClient
from tests.console.conftest import Browse, visitor
from tests.console.planted_rows import insert_rows, stub
from tests.console.test_overview_figures import seen
from tests.waiting import until

from reliable_mq import Client, Message, ReliableMQ
from reliable_mq.broker_core.names import HALF_TOPIC, OP_TOPIC, TIMER_TOPIC
from reliable_mq.console import console_app
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.waiting_at_brokers import waiting_halves, waiting_timers
from reliable_mq.errors import NoRoute
from reliable_mq.message import MessageQueue, ReceivedMessage

NOW_MS = int(datetime.now(UTC).timestamp() * 1000)


def rows(client: TestClient, path: str) -> list[dict[str, Any]]:
    answer = client.get(path, params={"format": "json"} if "?" not in path else None)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert isinstance(found, list)
    return found


def test_a_process_that_is_silent_is_listed_for_a_day(mq: ReliableMQ, browse: Browse) -> None:
    late = datetime.now(UTC) - timedelta(hours=2)
    insert_rows(mq.database, "process", seen(handling='{"billing": 1.25}'))
    insert_rows(mq.database, "process", seen(owner="p-2", host="host-b", seen_date=late))
    found = {row["name"]: row for row in rows(browse(), "/workers?format=json")}
    assert (found["p-1"]["state"], found["p-2"]["state"]) == ("reports", "silent")
    assert found["p-1"]["slowest"] == ["billing: 1.2 s"]
    assert [row["name"] for row in rows(browse(), "/workers?state=silent&format=json")] == ["p-2"]
    assert [row["name"] for row in rows(browse(), "/workers?name=host-b&format=json")] == ["p-2"]
    page = browse().get("/workers").text
    assert "not asked: it runs inside the application" in page


def test_a_stub_that_waits_for_its_time_is_a_timer(mq: ReliableMQ, browse: Browse) -> None:
    due = datetime.now(UTC) + timedelta(hours=5)
    insert_rows(mq.database, "message_stub", stub(1, deliver_time=due), stub(2))
    insert_rows(mq.database, "message_stub", stub(3, deliver_time=due - timedelta(hours=9)))
    (row,) = rows(browse(), "/timers?format=json")
    assert (row["key"], row["where"]) == ("order-1", "database main")
    for other in ("topic=other", "retries=yes", "until=-1h"):  # no row, and no broker was asked
        assert browse().get(f"/timers?{other}&format=json").status_code == 503
    assert browse().get("/timers?cursor=x").status_code == 400
    assert "not asked: it runs inside" in browse().get("/timers").text


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ReliableMQBroker(tmp_path_factory.mktemp("broker"), "ASYNC_FLUSH") as running:
        yield running.name_server_address


@pytest.fixture
def shop(broker: str, postgres_url: str) -> Iterator[ReliableMQ]:
    made = ReliableMQ("shop", database=postgres_url, broker=broker)

    @made.consumer("orders", group="billing", retry_waits=[600])
    def pay(order: dict[str, Any]) -> None:
        if order["id"] == 4711:
            raise ValueError("no card")

    made.create_tables()
    yield made
    made.close()


@pytest.mark.processes
def test_halves_wait_until_their_transaction_ends(shop: ReliableMQ) -> None:
    client = visitor(console_app(shop))
    assert rows(client, "/halves?format=json") == []
    with shop.transaction(half=True) as tx:
        waiting = tx.send("orders", {"id": 1}, key="o-1")
        tx.send("orders", {"id": 2}, key="o-2")
        tx.session.flush()
        until(lambda: len(rows(client, "/halves?format=json")) == 2)  # a reading is kept
        found = rows(client, "/halves?format=json")
        assert [row["key"] for row in found] == ["o-1", "o-2"]
        assert (found[0]["message_id"], found[0]["topic"]) == (waiting, "orders")
        assert rows(client, "/halves?topic=other&format=json") == []
        assert rows(client, "/halves?until=-1h&format=json") == []
        assert "o-1" in client.get("/halves").text
    until(lambda: not rows(client, "/halves?format=json"))
    client.close()


@pytest.mark.processes
def test_delayed_messages_and_next_attempts_wait_at_the_broker(
    broker: str, shop: ReliableMQ
) -> None:
    with Client(broker) as sender:
        timed = Message(
            topic="orders", body=b'{"id": 1}', keys=("later",), delay=timedelta(minutes=50)
        )
        sender.send(timed)
    client = visitor(console_app(shop))
    until(lambda: [row["key"] for row in rows(client, "/timers?format=json")] == ["later"])
    with shop:
        with shop.transaction() as tx:
            tx.send("orders", {"id": 4711}, key="o-4711")
        until(lambda: rows(client, "/timers?retries=yes&format=json"))
        (attempt,) = rows(client, "/timers?retries=yes&format=json")
        assert (attempt["consumer_group"], attempt["topic"]) == ("billing", "orders")
        assert attempt["key"] == "o-4711"
        until(lambda: rows(client, "/workers?state=connected&format=json"))
        (member,) = rows(client, "/workers?state=connected&format=json")
        assert member["consumer_group"] == "billing"
        assert rows(client, "/workers?state=nobody&format=json") == []
    until(lambda: rows(client, "/workers?state=nobody&format=json"))
    assert "nobody consumes for billing" in client.get("/workers?group=billing").text
    client.close()


def test_a_cluster_without_such_topics_has_no_halves() -> None:
    def nothing(*_given: Any) -> Any:
        raise NoRoute("no such topic")

    admin: Any = SimpleNamespace(
        topics=SimpleNamespace(status=nothing), offsets=SimpleNamespace(progress=nothing)
    )
    assert waiting_halves(admin).rows == []


def stored(queue: str, offset: int, **properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        topic=queue,
        body=b"x" * 200_000,
        message_id=f"m-{offset}",
        properties={"REAL_TOPIC": "orders"} | properties,
        queue=MessageQueue(queue, "broker-a", 0),
        queue_offset=offset,
        born_time_ms=offset,
        store_time_ms=NOW_MS,
    )


class PlantedAdmin:
    """A cluster with three messages in each of its own topics; it counts what is read."""

    def __init__(self) -> None:
        self.topics = self.messages = self.offsets = self
        self.reads: list[str] = []

    def status(self, topic: str) -> Any:
        queue = SimpleNamespace(queue=MessageQueue(topic, "broker-a", 0), first=0, end=3)
        answer = SimpleNamespace(queues=[queue] if topic != OP_TOPIC else [])
        return SimpleNamespace(value=answer, failures={})

    def progress(self, _group: str, topic: str) -> Any:
        raise NoRoute(topic)

    def at(self, queue: MessageQueue, offset: int, count: int) -> list[ReceivedMessage]:
        self.reads.append(queue.topic)
        if queue.topic == OP_TOPIC:
            raise NoRoute(queue.topic)
        due = str(NOW_MS + 3_600_000)
        places = range(offset, min(3, offset + count))
        return [stored(queue.topic, each, TIMER_OUT_MS=due) for each in places]


def test_what_waits_is_kept_without_its_bodies() -> None:
    admin: Any = PlantedAdmin()
    halves = waiting_halves(admin).rows
    timers = waiting_timers(admin, datetime.fromtimestamp(NOW_MS / 1000, UTC)).rows
    assert len(halves) == 3
    assert len(timers) == 6  # timed, and of the first delay level
    assert {each.message.body for each in (*halves, *timers)} == {b""}


@pytest.mark.parametrize(("path", "topic"), [("/halves", HALF_TOPIC), ("/timers", TIMER_TOPIC)])
def test_pages_that_are_loaded_again_read_once(
    mq: ReliableMQ, monkeypatch: pytest.MonkeyPatch, path: str, topic: str
) -> None:
    planted = PlantedAdmin()
    monkeypatch.setattr(ConsoleSources, "client", lambda _self: nullcontext(planted))
    monkeypatch.setattr("reliable_mq.console.sources.why_not_asked", lambda _broker: "")
    monkeypatch.setattr("reliable_mq.console.sources.WAITING_SECONDS", 3_600.0)
    planted.admin = planted  # type: ignore[attr-defined]
    client = visitor(console_app(mq))
    for _ in range(4):
        assert "m-1" in client.get(path).text
    assert planted.reads.count(topic) == 1
    client.close()
