"""The audit with access control: who did it is the user who signed, and no line has a secret."""

import json
from typing import Any

import pytest
from tests.access.access_world import ROOT, AccessWorld, secret_of

from reliable_mq.broker_core.requests import audited
from reliable_mq.broker_core.requests.audited import Audited
from reliable_mq.broker_core.requests.audited_names import Names
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.wire.codes import RequestCode as Ask

NEW_SECRET = "another secret of ann"


class AuditedAccessWorld(AccessWorld):
    """A broker with access control whose lines are kept."""

    def start(self) -> None:
        self.lines: list[str] = []
        super().start()

    def finish_turn(self) -> None:
        self.lines += [line.decode() for line in self.core.state.audit.take()]
        super().finish_turn()

    def took(self) -> dict[str, Any]:
        """Return the only new line."""
        (line,) = self.lines
        self.lines = []
        secrets = (secret_of(ROOT), secret_of("ann"), NEW_SECRET)
        assert not [each for each in secrets if each in line]
        row: dict[str, Any] = json.loads(line)
        return row


@pytest.fixture
def world() -> AuditedAccessWorld:
    """Give a broker with the user `ann`."""
    made = AuditedAccessWorld()
    assert json.loads(made.lines.pop())["detail"]["on"] == {"user": ROOT}
    made.make_user("ann")
    return made


def test_a_user_of_the_settings_has_a_line(world: AuditedAccessWorld) -> None:
    """Given another super user in the settings, as after a lost secret, then it is on record."""
    world.properties["initAuthenticationUser"] = '{"username":"rescue","password":"x y z"}'
    world.start()
    row = world.took()

    assert (row["actor"], row["action"], row["changed"]) == ("-", "AUTH_CREATE_USER", 1)
    assert row["detail"]["after"]["userType"] == "Super"
    assert "x y z" not in json.dumps(row)
    assert row["detail"]["why"] == "the broker's settings name this user"
    world.start()
    assert world.lines == [], "it is made once"


def test_users_and_policies_have_lines_with_their_values(world: AuditedAccessWorld) -> None:
    made = world.took()
    assert (made["actor"], made["action"], made["changed"]) == (ROOT, "AUTH_CREATE_USER", 1)
    assert made["detail"]["before"] is None
    assert made["detail"]["after"]["username"] == "ann"
    world.change_user("ann", password=NEW_SECRET)
    assert world.took()["changed"] == 1, "a new secret is a change that no value shows"
    world.allow("ann", "Topic:t")
    assert "Topic:t" in json.dumps(world.took()["detail"]["after"])
    world.ask_as(ROOT, Ask.AUTH_DELETE_USER, {"username": "ann"})
    assert world.took()["detail"]["after"] is None


def test_a_body_that_is_no_json_shows_no_secret(world: AuditedAccessWorld) -> None:
    """Given a user whose JSON is cut off, then neither the answer nor the line has the secret."""
    world.took()
    secret = secret_of("ann")
    body = f'{{"password":"{secret}'.encode()
    answer = world.ask_as(ROOT, Ask.AUTH_UPDATE_USER, {"username": "ann"}, body)

    assert secret not in (answer.remark or "")
    assert "no JSON" in world.took()["detail"]["why"]


def test_a_refused_request_has_a_line_with_its_sender(world: AuditedAccessWorld) -> None:
    """Given a user without a policy, and a wrong secret, then only the first one is the actor."""
    world.took()
    world.ask_as("ann", Ask.DELETE_TOPIC_IN_BROKER, {"topic": "x"})
    row = world.took()
    assert (row["actor"], row["changed"], row["result"]) == ("ann", 0, "NO_PERMISSION")
    world.ask_as("ann", Ask.DELETE_TOPIC_IN_BROKER, {"topic": "x"}, secret="wrong")
    row = world.took()
    assert (row["actor"], row["detail"]["claims"]) == ("-", "ann")
    world.ask(Ask.DELETE_TOPIC_IN_BROKER, {"topic": "x"})
    assert world.took()["actor"] == "-"
    world.ask_as(ROOT, Ask.GET_BROKER_CONFIG)
    assert world.lines == [], "reading has no line"


def test_the_audit_does_no_work_for_strangers(
    world: AuditedAccessWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given requests that nobody has signed, then no value is looked at, and no large body read."""
    looks: list[object] = []
    seen = audited._seen

    def noted(state: BrokerState, entry: Audited, names: Names) -> object:
        looks.append(names)
        return seen(state, entry, names)

    monkeypatch.setattr(audited, "_seen", noted)
    world.took()

    world.ask_as("ann", Ask.AUTH_DELETE_USER, {"username": ROOT}, secret="wrong")
    assert world.took()["detail"]["on"] == {"user": ROOT}
    body = b'{"groupName":"g","pad":"%s"}' % (b"x" * 100_000)
    world.ask(Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert world.took()["detail"]["on"] == {}
    assert looks == []
    world.ask_as(ROOT, Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert world.took()["detail"]["on"] == {"group": "g"}
    assert len(looks) == 2


@pytest.mark.parametrize(
    ("claimed", "subject"), [("User:bob", "User:ann"), ("", "user:ann"), ("user:ann", "")]
)
def test_policies_are_on_record_for_the_user_who_gets_them(
    world: AuditedAccessWorld, claimed: str, subject: str
) -> None:
    """Given another user in a field than in the body, which counts, then the line has the latter.

    A subject may begin in any case, as at Apache's broker.
    """
    world.make_user("bob")
    world.lines = []
    entries = [{"resource": "Topic:t", "actions": ["Pub"], "decision": "Allow"}]
    body = json.dumps({"subject": subject, "policies": [{"entries": entries}]}).encode()
    world.ask_as(ROOT, Ask.AUTH_CREATE_ACL, {"subject": claimed}, body)
    row = world.took()

    assert (row["changed"], row["detail"]["on"]) == (1, {"subject": subject or claimed})
    assert row["detail"]["after"]["subject"] == "User:ann"
