"""Topics and groups at a real broker: lists, pause, resume, and a reset with its preview."""

from collections.abc import Iterator
from typing import Any

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import select
from starlette.testclient import TestClient
from tests.console.conftest import visitor
from tests.console.doing_steps import WHY, done, ended, field, look, start
from tests.console.planted_rows import ODD
from tests.console.test_doing import acts
from tests.console.test_planted_text import check
from tests.waiting import until

from reliable_mq import Client, Message, ReliableMQ
from reliable_mq.client.administering.cluster_reply import ClusterReply
from reliable_mq.client.administering.groups import GroupChange
from reliable_mq.client.administering.thread_admin import Groups
from reliable_mq.console import console_app
from reliable_mq.errors import Unavailable
from reliable_mq.escalate.sql_audit import detail_of

pytestmark = pytest.mark.processes
GROUP = "billing"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ReliableMQBroker(tmp_path_factory.mktemp("broker"), "ASYNC_FLUSH") as running:
        with Client(running.name_server_address) as client:
            client.admin.groups.create(GROUP, GroupChange())
            for number in range(8):
                client.send(Message(topic="orders", body=b"%d" % number))
            client.admin.offsets.reset_to_end(GROUP, "orders")
        yield running.name_server_address


@pytest.fixture
def shop(broker: str, postgres_url: str) -> Iterator[ReliableMQ]:
    """Give an application at the broker."""
    made = ReliableMQ("shop", database=postgres_url, broker=broker)
    made.topic("orders", groups=[GROUP])
    made.create_tables()
    yield made
    made.close()


@pytest.fixture
def client(shop: ReliableMQ) -> Iterator[TestClient]:
    with visitor(console_app(shop)) as opened:
        yield opened


def lags(client: TestClient) -> int:
    rows = client.get(f"/queues?group={GROUP}&topic=orders&format=json").json()
    return sum(row["lag"] for row in rows)


def details(shop: ReliableMQ) -> list[tuple[str, dict[str, Any]]]:
    """Return what the audit says, in order."""
    column = shop.database.audit.c
    with shop.database.engine.connect() as connection:
        rows = connection.execute(select(column.action, column.detail).order_by(column.seq))
        return [(row.action, detail_of(row.detail)) for row in rows]


def test_a_reset_says_how_many_come_again_and_then_they_do(
    shop: ReliableMQ, client: TestClient
) -> None:
    place = {"group": GROUP, "topic": "orders"}
    assert lags(client) == 0
    page = client.get(f"/queues?group={GROUP}").text
    for path in ("consume-logs", "dead-letters", "stubs"):
        assert f'href="/{path}?' in page
    assert page.count('href="/queues"') == 1  # "Show all" of its filter; no menu has it
    preview = look(client, "group-reset", more=place | {"to": "start"})
    assert "8 messages come again." in preview.text
    assert lags(client) == 0
    assert done(client, "group-reset", more=place | {"to": "-1h"}) == {"done": 1}
    assert lags(client) == 8
    preview = look(client, "group-reset", more=place | {"to": "end"})
    assert "8 messages are skipped: the group never gets them." in preview.text
    assert look(client, "group-reset", more=place | {"to": "-1h"}).status_code == 409
    assert done(client, "group-reset", more=place | {"to": "end"}) == {"done": 1}
    assert lags(client) == 0
    (first, said), (second, _) = details(shop)
    assert first == second == "group reset"
    assert said["why"] == WHY
    assert said["on"]["group"] == GROUP
    assert sum(before - after for before, after in said["on"]["queues"].values()) == 8


def test_a_preview_is_started_once_by_two_consoles(
    shop: ReliableMQ, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (visitor(console_app(shop, secret="shared")) for _ in range(2))
    preview = look(one, "group-reset", more={"group": GROUP, "topic": "orders", "to": "start"})
    assert ended(one, start(one, preview))["counts"]["done"] == 1
    with Client(broker) as asking:
        asking.admin.offsets.reset_to_end(GROUP, "orders")
    form = {"sealed": field(preview.text, "sealed"), "why": WHY, "rate": "1"}
    form |= {"token": field(two.get("/topics").text, "token")}
    again = ended(two, two.post("/do/start", data=form))
    assert again["counts"] == {"done": 0, "changed since the preview": 1, "refused": 0}
    assert lags(two) == 0
    assert [action for action, _ in details(shop)] == ["group reset"]


def test_a_pause_is_started_once_by_two_consoles(shop: ReliableMQ) -> None:
    one, two = (visitor(console_app(shop, secret="shared")) for _ in range(2))
    preview = look(one, "topic-pause", more={"topic": "orders"})
    assert ended(one, start(one, preview))["counts"]["done"] == 1
    assert done(one, "topic-resume", more={"topic": "orders"}) == {"done": 1}
    form = {"sealed": field(preview.text, "sealed"), "why": WHY, "rate": "1"}
    form |= {"token": field(two.get("/topics").text, "token")}
    assert ended(two, two.post("/do/start", data=form))["counts"]["done"] == 0
    assert two.get("/topics?stopped=yes&format=json").json() == []
    rows = two.get("/audit?format=json").json()
    assert [(row["action"], row["why"]) for row in rows] == [
        ("resend resume", WHY),
        ("resend pause", WHY),
    ]


def test_a_database_that_is_away_stops_it_before_a_broker_is_asked(
    shop: ReliableMQ, client: TestClient, broker: str
) -> None:
    preview = look(client, "group-pause", more={"group": GROUP})
    with shop.database.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE rmq_audit")
    found = ended(client, start(client, preview))
    assert found["state"] == "failed"
    with Client(broker) as asking:
        settings = asking.admin.groups.settings(GROUP).value
    assert all(each.may_consume for each in settings.values())


def test_what_one_broker_did_is_in_the_audit_though_another_refused(
    shop: ReliableMQ, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    preview = look(client, "group-pause", more={"group": GROUP})

    def half(_groups: Groups, _group: str, _change: GroupChange) -> ClusterReply[Any]:
        return ClusterReply({"a": None}, {"b": Unavailable("it is away")})

    monkeypatch.setattr(Groups, "update", half)
    started = start(client, preview)
    assert ended(client, started)["state"] == "failed"
    number = started.headers["location"].rpartition("/")[2]
    (row,) = client.get(f"/audit?work={number}&format=json").json()
    assert row["changed"] == 1
    assert row["detail"]["on"]["brokers"] == ["a"]
    assert row["detail"]["outcome"] == "broker b: it is away"


def test_the_preview_of_a_pause_says_which_broker_does_not_answer(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Groups.settings

    def half(groups: Groups, group: str) -> ClusterReply[Any]:
        return ClusterReply(known(groups, group).value, {"b": Unavailable("it is away")})

    monkeypatch.setattr(Groups, "settings", half)
    preview = look(client, "group-pause", more={"group": GROUP})
    assert "Broker b does not answer now, and may stay as it is: it is away" in preview.text


def test_a_group_is_paused_and_resumed(shop: ReliableMQ, client: TestClient, broker: str) -> None:
    def may_consume() -> set[bool]:
        with Client(broker) as asking:
            settings = asking.admin.groups.settings(GROUP).value
        return {each.may_consume for each in settings.values()}

    more = {"group": GROUP}
    assert look(client, "group-resume", more=more).status_code == 409
    assert done(client, "group-pause", more=more) == {"done": 1}
    assert may_consume() == {False}
    assert "This group is paused at broker-a" in client.get(f"/queues?group={GROUP}").text
    assert look(client, "group-pause", more=more).status_code == 409
    assert done(client, "group-resume", more=more) == {"done": 1}
    assert may_consume() == {True}
    assert [action for action, _ in details(shop)] == ["group pause", "group resume"]


def test_the_resending_of_a_topic_is_paused_and_resumed(
    shop: ReliableMQ, client: TestClient
) -> None:
    more = {"topic": "orders", "until": "2099-01-01T00:00"}
    assert look(client, "topic-resume", more=more).status_code == 409
    assert done(client, "topic-pause", more=more) == {"done": 1}
    (row,) = shop.resending.topics()["main"].values()
    assert (row.topic, row.note, row.is_paused) == ("orders", WHY, True)
    (shown,) = client.get("/topics?stopped=yes&format=json").json()
    assert (shown["topic"], shown["gate"], shown["note"]) == ("orders", "paused", WHY)
    assert done(client, "topic-resume", more=more) == {"done": 1}
    assert client.get("/topics?stopped=yes&format=json").json() == []
    assert [action for action, _ in details(shop)] == ["resend pause", "resend resume"]
    assert all(number for *_, number in acts(shop))


@pytest.mark.parametrize(
    ("deed", "more", "status"),
    [
        ("topic-pause", {}, 409),
        ("topic-pause", {"topic": ODD}, 409),
        ("topic-pause", {"topic": "orders", "until": "soon"}, 400),
        ("topic-pause", {"topic": "orders", "until": "2001-01-01T00:00"}, 409),
        ("group-pause", {"group": "nobody"}, 502),
        ("group-reset", {"group": GROUP, "topic": "orders"}, 409),
        ("group-reset", {"group": GROUP, "topic": "orders", "to": ODD}, 400),
        ("group-reset", {"group": GROUP, "topic": "nothing", "to": "start"}, 502),
        ("group-reset", {"group": GROUP, "topic": ODD, "to": "start"}, 409),
    ],
)
def test_what_cannot_be_done_is_told_and_not_done(
    shop: ReliableMQ, client: TestClient, deed: str, more: dict[str, str], status: int
) -> None:
    answer = look(client, deed, more=more)
    assert answer.status_code == status
    check(answer.text)
    assert details(shop) == []


def test_the_cluster_is_listed(broker: str, client: TestClient) -> None:
    with Client(broker) as sender:
        sender.send(Message(topic="returns-of-others", body=b"1"))
    topics = client.get("/topics?format=json").json()
    assert {row["topic"]: row["gate"] for row in topics}["orders"] == "open"
    until(lambda: client.get("/groups?format=json").json())
    groups = client.get("/groups?format=json").json()
    assert GROUP in {row["group"] for row in groups}
    assert "members" in groups[0]
    (master,) = client.get("/brokers?format=json").json()
    assert (master["role"], master["state"]) == ("master", "ok")
    assert client.get("/brokers?away=yes&format=json").json() == []
    for place in ("/topics", "/groups", "/queues", f"/queues?group={GROUP}", "/brokers"):
        page = client.get(place)
        assert page.status_code == 200
        assert "Away:" not in page.text
        check(page.text)
    assert "Reset its offsets" in client.get(f"/queues?group={GROUP}").text
    found = client.get("/find?q=RETURNS").text  # a topic that the application does not declare
    assert "Topics of others at the brokers" in found
    assert "/topics?name=returns-of-others" in found
    assert "Away:" in client.get("/queues?group=nobody").text
