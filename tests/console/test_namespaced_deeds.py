"""A console with a namespace touches what the application has, not what has the bare name."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient
from tests.console.conftest import visitor
from tests.console.doing_steps import done, ended, look, start
from tests.console.planted_rows import insert_rows, stub
from tests.console.test_cluster_deeds import details
from tests.console.test_delete_deeds import GROUP, TOPIC

from reliable_mq import Client, Message, ReliableMQ
from reliable_mq.client.administering.groups import GroupChange
from reliable_mq.console import console_app

pytestmark = pytest.mark.processes


@pytest.fixture
def shop(broker: str, group: str, postgres_url: str) -> Iterator[ReliableMQ]:
    """Give an application with a namespace. A topic and a group of another one have its names."""
    made = ReliableMQ("shop", database=postgres_url, broker=broker, namespace="shop")
    made.topic(f"topic-{group}", groups=[group])
    made.create_tables()
    with Client(broker) as sender:
        for name in ("shop%", ""):
            sender.send(Message(topic=f"{name}topic-{group}", body=b"1"))
            sender.admin.groups.create(f"{name}{group}", GroupChange())
            sender.admin.offsets.reset_to_start(f"{name}{group}", f"{name}topic-{group}")
    yield made
    made.close()


@pytest.fixture
def client(shop: ReliableMQ) -> Iterator[TestClient]:
    with visitor(console_app(shop)) as opened:
        yield opened


@pytest.mark.parametrize("prefix", ["", "shop%"])
def test_a_topic_is_deleted_by_its_whole_name_however_it_was_chosen(
    broker: str, group: str, shop: ReliableMQ, client: TestClient, prefix: str
) -> None:
    own, whole = f"topic-{group}", f"shop%topic-{group}"
    insert_rows(shop.database, "message_stub", stub(1, topic=own), stub(2, topic=own))
    preview = look(client, TOPIC, more={"topic": f"{prefix}{own}"})
    assert f"topic {whole} at broker-a, with 1 messages" in preview.text
    assert "2 stubs of it are not confirmed" in preview.text
    assert start(client, preview, typed=own).status_code == 400
    assert ended(client, start(client, preview, typed=whole))["counts"]["done"] == 1
    with Client(broker) as asking:
        names = asking.admin.topics.names().value
    assert own in names
    assert whole not in names
    ((_, detail),) = details(shop)
    assert detail["on"]["topic"] == whole


def test_a_topic_of_another_namespace_has_no_stubs_here(
    broker: str, group: str, shop: ReliableMQ, client: TestClient
) -> None:
    own = f"topic-{group}"
    with Client(broker) as sender:
        sender.send(Message(topic=f"bank%{own}", body=b"1"))
    insert_rows(shop.database, "message_stub", stub(1, topic=own))
    preview = look(client, TOPIC, more={"topic": f"bank%{own}"})
    assert f"topic bank%{own} at broker-a" in preview.text
    assert "are not confirmed" not in preview.text


def test_a_group_is_paused_and_deleted_by_its_whole_name(
    broker: str, group: str, shop: ReliableMQ, client: TestClient
) -> None:
    assert done(client, "group-pause", more={"group": group}) == {"done": 1}
    preview = look(client, GROUP, more={"group": group})
    assert f"topic shop%topic-{group}: 1 messages not consumed" in preview.text
    assert start(client, preview, typed=group).status_code == 400
    assert ended(client, start(client, preview, typed=f"shop%{group}"))["counts"]["done"] == 1
    with Client(broker) as asking:
        known = asking.admin.groups.all_settings().value
    assert f"shop%{group}" not in known
    assert [each.may_consume for each in known[group].values()] == [True]


def test_the_list_has_a_topic_once_and_a_pause_by_its_whole_name_is_of_its_stubs(
    group: str, shop: ReliableMQ, client: TestClient
) -> None:
    whole = f"shop%topic-{group}"
    assert done(client, "topic-pause", more={"topic": whole}) == {"done": 1}
    assert list(shop.resending.topics()["main"]) == [f"topic-{group}"]
    rows = client.get(f"/topics?name={whole}&format=json").json()
    assert [(row["topic"], row["gate"]) for row in rows] == [(whole, "paused")]
    rows = client.get(f"/topics?name=topic-{group}&format=json").json()
    assert {row["topic"]: row["gate"] for row in rows} == {
        f"topic-{group}": "open",
        whole: "paused",
    }
    assert done(client, "topic-resume", more={"topic": whole}) == {"done": 1}
