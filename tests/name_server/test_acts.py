"""Who may change a name server, and what the audit has of it."""

import json
from typing import Any

import pytest
from tests.broker_core.broker_world import connection
from tests.name_server.test_routes import ONE, broker

from reliable_mq.access.access_settings import AccessSettings, begin_access
from reliable_mq.access.access_table import AccessTable
from reliable_mq.access.guard import Guard
from reliable_mq.access.policies import acl_of
from reliable_mq.access.users import User, UserChange, UserType
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.runtime.name_server_acts import CHANGES, Act, NameServerActs
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.request_signature import add_signature

ORDER = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "b:4"}
REQUESTS: dict[int, tuple[dict[str, object], bytes]] = {
    Ask.PUT_KV_CONFIG: ({"namespace": "n", "key": "k", "value": "v"}, b""),
    Ask.DELETE_KV_CONFIG: ({"namespace": "n", "key": "k"}, b""),
    Ask.REGISTER_BROKER: (broker("b", ONE), b""),
    Ask.UNREGISTER_BROKER: (broker("b", ONE), b""),
    Ask.BROKER_HEARTBEAT: (broker("b", ONE), b""),
    Ask.QUERY_DATA_VERSION: (broker("b", ONE), b"{}"),
    Ask.REGISTER_TOPIC_IN_NAMESRV: ({"topic": "t"}, b'{"queueDatas":[{"brokerName":"b"}]}'),
    Ask.DELETE_TOPIC_IN_NAMESRV: ({"topic": "t"}, b""),
    Ask.WIPE_WRITE_PERM_OF_BROKER: ({"brokerName": "b"}, b""),
    Ask.ADD_WRITE_PERM_OF_BROKER: ({"brokerName": "b"}, b""),
    Ask.UPDATE_NAMESRV_CONFIG: ({}, b"orderMessageEnable=true"),
}


def policies(*resources: str, action: str) -> list[dict[str, Any]]:
    """Return rows that allow an action."""
    entries = [{"resource": each, "actions": [action], "decision": "Allow"} for each in resources]
    return [{"policyType": "CUSTOM", "entries": entries}]


class World:
    """A name server with the super user `root` and the normal user `ann`, or with nobody."""

    def __init__(self, *, is_guarded: bool = True) -> None:
        self.core = NameServerCore()
        self.acts = NameServerActs(self.core)
        self.lines: list[dict[str, Any]] = []
        self.now_ms = 1_000
        self.table = AccessTable()
        if is_guarded:
            root = User(username="root", password="of root", user_type=UserType.SUPER)
            settings = AccessSettings(
                cluster="DefaultCluster", authenticates=True, authorizes=True, first_users=(root,)
            )
            begin_access(self.table, settings)
            self.table.create_user("ann", UserChange(password="of ann"))
            self.acts.guard = Guard(settings, self.table)

    def ask(self, code: int, user: str = "", *, secret: str = "", **ext: object) -> Command:
        """Send the usual request of a code, signed by a user, and note its lines."""
        usual, body = REQUESTS[code]
        fields = {name: str(value) for name, value in {**usual, **ext}.items()}
        command = request(code, fields, body)
        if user:
            add_signature(command, user, secret or f"of {user}")
        act = self.acts.begin(connection(1), command, self.now_ms)
        assert act is not None
        answer = act.refusal or self._handled(act)
        self.lines += map(json.loads, self.acts.tell(act, answer))
        return answer

    def _handled(self, act: Act) -> Command:
        answer = self.core.receive(1, act.command, self.now_ms)
        self.acts.done(act)
        return answer

    def took(self) -> dict[str, Any]:
        """Return the only new line."""
        (line,) = self.lines
        self.lines = []
        return line


def test_every_request_of_a_name_server_changes_something_or_only_reads() -> None:
    others = [Ask(code).name for code in NameServerCore().codes if code not in CHANGES]
    assert [name for name in others if not name.startswith("GET_")] == []
    assert REQUESTS.keys() == CHANGES.keys()


@pytest.mark.parametrize("code", CHANGES, ids=lambda code: Ask(code).name)
def test_only_who_may_changes_a_guarded_name_server(code: int) -> None:
    """Given nobody, a wrong secret, an unknown user and one without a policy, then nothing."""
    world = World()
    strangers = [("", ""), ("root", "wrong"), ("eve", ""), ("ann", "")]
    for user, secret in strangers:
        answer = world.ask(code, user, secret=secret)
        assert answer.code == Code.NO_PERMISSION
        line = world.took()
        assert (line["changed"], line["result"]) == (0, "NO_PERMISSION")
        assert line["actor"] == (user if user == "ann" else "-")
    assert world.acts.refused == len(strangers)
    assert world.core.routes.broker_count == 0
    assert not world.core.settings.is_dirty
    assert world.ask(code, "root").code != Code.NO_PERMISSION


@pytest.mark.parametrize("code", CHANGES, ids=lambda code: Ask(code).name)
def test_without_access_control_everybody_changes_it(code: int) -> None:
    assert World(is_guarded=False).ask(code).code != Code.NO_PERMISSION


def test_who_may_delete_a_topic_may_delete_its_route_and_its_order_and_no_other() -> None:
    world = World()
    world.table.put_acl("ann", acl_of(policies("Topic:t", "Topic:orders", action="Delete")))
    assert world.ask(Ask.DELETE_TOPIC_IN_NAMESRV, "ann").code == Code.SUCCESS
    assert world.ask(Ask.DELETE_TOPIC_IN_NAMESRV, "ann", topic="x").code == Code.NO_PERMISSION
    assert world.ask(Ask.DELETE_KV_CONFIG, "ann", **ORDER).code == Code.SUCCESS
    assert world.ask(Ask.DELETE_KV_CONFIG, "ann").code == Code.NO_PERMISSION
    assert world.ask(Ask.DELETE_TOPIC_IN_NAMESRV, "", topic="t").code == Code.NO_PERMISSION


def test_settings_have_lines_with_their_values() -> None:
    world = World()
    world.ask(Ask.PUT_KV_CONFIG, "root")
    put = world.took()
    assert (put["actor"], put["action"], put["changed"]) == ("root", "PUT_KV_CONFIG", 1)
    assert put["address"] == connection(1).address
    assert put["detail"] == {
        "on": {"namespace": "n", "key": "k"},
        "before": None,
        "after": "v",
    }
    world.ask(Ask.PUT_KV_CONFIG, "root")
    assert world.took()["changed"] == 0
    world.ask(Ask.DELETE_KV_CONFIG, "root")
    assert (world.took()["detail"]["after"]) is None
    world.ask(Ask.UPDATE_NAMESRV_CONFIG, "root")
    changed = world.took()["detail"]
    assert (changed["before"], changed["after"]) == (
        {"orderMessageEnable": "false"},
        {"orderMessageEnable": "true"},
    )


def test_a_setting_among_many_names_is_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a setting behind more names than a line shows, then its line has both values of it."""
    others = b"".join(b"a%d=1\n" % number for number in range(100))
    body = others + b"orderMessageEnable=true"
    monkeypatch.setitem(REQUESTS, Ask.UPDATE_NAMESRV_CONFIG, ({}, body))
    world = World()
    world.ask(Ask.UPDATE_NAMESRV_CONFIG, "root")
    line = world.took()

    assert (line["changed"], line["detail"]["on"]["count"]) == (1, 101)
    assert line["detail"]["after"] == {"orderMessageEnable": "true"}


def test_a_setting_with_a_secret_has_a_line_without_it() -> None:
    world = World()
    for value in ("hush", "other"):
        world.ask(Ask.PUT_KV_CONFIG, "root", key="dbPassword", value=value)
        line = world.took()
        assert (line["changed"], line["detail"]["after"]) == (1, "***")


def test_a_broker_has_a_line_when_it_comes_moves_and_goes_and_none_for_what_it_repeats() -> None:
    world = World(is_guarded=False)
    world.ask(Ask.REGISTER_BROKER)
    came = world.took()
    assert (came["detail"]["before"], came["detail"]["after"]) == ({}, {"0": ONE})
    for code in (Ask.REGISTER_BROKER, Ask.BROKER_HEARTBEAT, Ask.QUERY_DATA_VERSION):
        world.ask(code)
    assert world.lines == []
    world.ask(Ask.REGISTER_BROKER, brokerAddr="10.9.9.9:1")
    assert world.took()["detail"]["after"] == {"0": "10.9.9.9:1"}
    world.ask(Ask.UNREGISTER_BROKER, brokerAddr="10.9.9.9:1")
    assert world.took()["detail"]["after"] == {}


def test_topics_and_write_permissions_have_lines_with_their_values() -> None:
    world = World(is_guarded=False)
    world.ask(Ask.REGISTER_BROKER)
    world.lines = []
    world.ask(Ask.REGISTER_TOPIC_IN_NAMESRV)
    assert world.took()["detail"]["after"][0]["brokerName"] == "b"
    world.ask(Ask.ADD_WRITE_PERM_OF_BROKER)
    assert world.took()["detail"]["after"] == {"topics": 1, "writable": 1}
    world.ask(Ask.WIPE_WRITE_PERM_OF_BROKER)
    wiped = world.took()["detail"]
    assert (wiped["before"]["writable"], wiped["after"]["writable"]) == (1, 0)
    world.ask(Ask.DELETE_TOPIC_IN_NAMESRV)
    assert world.took()["detail"]["after"] is None


@pytest.mark.parametrize("code", CHANGES, ids=lambda code: Ask(code).name)
def test_a_request_without_its_fields_is_answered_and_has_a_line(code: int) -> None:
    world = World(is_guarded=False)
    command = request(code, {}, b"\xff")
    act = world.acts.begin(connection(1), command, 0)
    assert act is not None
    answer = world._handled(act)
    lines = world.acts.tell(act, answer)
    assert len(lines) == (answer.code != Code.SUCCESS or code != Ask.BROKER_HEARTBEAT)


def test_no_flood_of_refused_requests_fills_the_audit() -> None:
    world = World()
    for _ in range(1_000):
        world.ask(Ask.PUT_KV_CONFIG)
    assert len(world.lines) == 100
    world.lines = []
    world.ask(Ask.PUT_KV_CONFIG, "root")
    assert world.took()["detail"]["left_out"] == 900
