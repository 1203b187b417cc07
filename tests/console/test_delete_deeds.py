"""A topic and a group are deleted at a real broker: what is lost is told, and the name is typed."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient
from tests.console.conftest import visitor
from tests.console.doing_steps import WHY, ended, look, start
from tests.console.planted_rows import ODD, insert_rows, stub
from tests.console.test_cluster_deeds import details
from tests.console.test_dead_letter_deeds import give_up
from tests.console.test_guard import PASSWORD, log_in
from tests.console.test_planted_text import check
from tests.waiting import until

from reliable_mq import Client, Consumed, Message, ReliableMQ, Subscription
from reliable_mq.client.administering.groups import GroupChange
from reliable_mq.client.administering.thread_admin import Groups, Topics
from reliable_mq.console import console_app
from reliable_mq.console.users import Role, add_user
from reliable_mq.errors import NoRoute, NotFound, RequestTimeout

pytestmark = pytest.mark.processes
TOPIC, GROUP = "topic-delete", "group-delete"


def filled(broker: str, group: str) -> str:
    """Make a topic with three messages that a group has not consumed; return the topic."""
    topic = f"orders-of-{group}"
    with Client(broker) as sender:
        sender.admin.groups.create(group, GroupChange())
        for number in range(3):
            sender.send(Message(topic=topic, body=b"%d" % number))
        sender.admin.offsets.reset_to_start(group, topic)
    return topic


def test_a_topic_is_deleted_after_its_name_was_typed(
    broker: str, group: str, shop: ReliableMQ, client: TestClient
) -> None:
    topic = filled(broker, group)
    insert_rows(shop.database, "message_stub", stub(1, topic=topic), stub(2, topic=topic, status=1))
    assert "Delete the topic" in client.get(f"/topics?name={topic}").text
    preview = look(client, TOPIC, more={"topic": topic})
    assert f"topic {topic} at broker-a, with 3 messages" in preview.text
    assert f"group {group} has not consumed 3 of them" in preview.text
    assert "1 stubs of it are not confirmed" in preview.text
    for typed in ("", "orders", f"{topic}x", ODD):
        answer = start(client, preview, typed=typed)
        assert answer.status_code == 400
        assert f"type {topic} to say that this is meant" in answer.text
        check(answer.text)
    assert details(shop) == []
    assert ended(client, start(client, preview, typed=topic))["counts"]["done"] == 1
    with Client(broker) as asking, pytest.raises((NoRoute, NotFound)):
        asking.admin.topics.status(topic)
    ((action, detail),) = details(shop)
    assert (action, detail["why"]) == ("topic delete", WHY)
    assert detail["on"] == {"topic": topic, "brokers": ["broker-a"]}
    assert look(client, TOPIC, more={"topic": topic}).status_code == 502


def test_the_second_of_two_people_is_told(
    broker: str, group: str, shop: ReliableMQ, client: TestClient
) -> None:
    topic = filled(broker, group)
    first, second = (look(client, TOPIC, more={"topic": topic}) for _ in range(2))
    assert ended(client, start(client, first, typed=topic))["counts"]["done"] == 1
    started = start(client, second, typed=topic)
    assert ended(client, started)["state"] == "failed"
    assert f"no broker has topic {topic}" in client.get(started.headers["location"]).text
    assert [detail.get("on") for _, detail in details(shop)] == [
        {"topic": topic, "brokers": ["broker-a"]},
        {},
    ]


def test_a_group_is_deleted_with_its_dead_letters(
    broker: str, group: str, shop: ReliableMQ, client: TestClient
) -> None:
    topic = filled(broker, group)
    give_up(broker, group)
    assert "Delete the group" in client.get(f"/queues?group={group}").text
    preview = look(client, GROUP, more={"group": group, "offsets": "yes"})
    assert f"topic {topic}: 3 messages not consumed" in preview.text
    assert "1 dead letters" in preview.text
    assert "a new group of this name begins without" in preview.text
    assert start(client, preview, typed=topic).status_code == 400
    assert ended(client, start(client, preview, typed=group))["counts"]["done"] == 1
    with Client(broker) as asking:
        assert group not in asking.admin.groups.all_settings().value
        assert f"%DLQ%{group}" not in asking.admin.topics.names(everything=True).value
    assert [action for action, _ in details(shop)] == ["group delete"]


def test_a_group_with_members_is_not_deleted(
    broker: str, group: str, shop: ReliableMQ, client: TestClient
) -> None:
    topic = filled(broker, group)
    with Client(broker) as member:
        member.consume(Subscription(group=group, topics={topic: "*"}), lambda _messages: Consumed)
        until(lambda: member.admin.groups.connections(group).value.members)
        answer = look(client, GROUP, more={"group": group})
    assert answer.status_code == 409
    assert "members that are connected" in answer.text
    assert details(shop) == []


def test_members_that_have_come_since_the_preview_keep_their_group(
    broker: str, group: str, shop: ReliableMQ, client: TestClient
) -> None:
    topic = filled(broker, group)
    preview = look(client, GROUP, more={"group": group})
    with Client(broker) as member:
        member.consume(Subscription(group=group, topics={topic: "*"}), lambda _messages: Consumed)
        until(lambda: member.admin.groups.connections(group).value.members)
        assert ended(client, start(client, preview, typed=group))["state"] == "failed"
        assert group in member.admin.groups.all_settings().value
    assert "members that are connected" in details(shop)[0][1]["outcome"]


@pytest.mark.parametrize(("deed", "face"), [(TOPIC, Topics), (GROUP, Groups)])
def test_a_broker_that_has_gone_since_the_preview_ends_the_delete(
    broker: str,
    group: str,
    shop: ReliableMQ,
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    deed: str,
    face: Any,
) -> None:
    topic = filled(broker, group)
    kind, name = ("topic", topic) if deed == TOPIC else ("group", group)
    preview = look(client, deed, more={kind: name})
    delete = face.delete

    def one_is_away(at: Any, *given: Any, dry_run: bool = False, **more: Any) -> Any:
        answers = delete(at, *given, dry_run=dry_run, **more)
        return msgspec.structs.replace(answers, failures={"broker-b": RequestTimeout("no answer")})

    with monkeypatch.context() as patched:
        patched.setattr(face, "delete", one_is_away)
        started = start(client, preview, typed=name)
        assert ended(client, started)["state"] == "failed"
    with Client(broker) as asking:
        assert topic in asking.admin.topics.names().value
        assert group in asking.admin.groups.all_settings().value
    ((_, detail),) = details(shop)
    assert detail["outcome"].startswith("a broker does not answer, so nothing is deleted: broker-b")


@pytest.mark.parametrize(
    ("deed", "more", "status"),
    [
        (TOPIC, {}, 409),
        (TOPIC, {"topic": ODD}, 409),
        (TOPIC, {"topic": "nothing"}, 502),
        (GROUP, {}, 409),
        (GROUP, {"group": ODD}, 409),
        (GROUP, {"group": "nobody"}, 502),
    ],
)
def test_what_cannot_be_deleted_is_told(
    shop: ReliableMQ, client: TestClient, deed: str, more: dict[str, str], status: int
) -> None:
    answer = look(client, deed, more=more)
    assert answer.status_code == status
    check(answer.text)
    assert details(shop) == []


def test_only_an_admin_deletes(broker: str, group: str, shop: ReliableMQ, tmp_path: Path) -> None:
    topic = filled(broker, group)
    users = tmp_path / "users.json"
    add_user(users, "otto", Role.OPERATOR, PASSWORD)
    with visitor(console_app(shop, users=users)) as operator:
        assert log_in(operator, "otto") == 303
        assert look(operator, TOPIC, more={"topic": topic}).status_code == 403
        assert look(operator, GROUP, more={"group": group}).status_code == 403
        assert "Delete the" not in operator.get("/topics").text
        assert "Delete the" not in operator.get(f"/queues?group={group}").text
