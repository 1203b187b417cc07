"""Users and policies by requests: what administrators may do, and what nobody may."""

import json

import msgspec
import pytest
from tests.access.access_world import ROOT, SECRET, AccessWorld, is_let_in, secret_of
from tests.broker_core.broker_world import BrokerWorld, send_header

from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command

SEND = Ask.SEND_MESSAGE_V2


@pytest.fixture
def world() -> AccessWorld:
    world = AccessWorld()
    world.make_user("joe")
    return world


def users(answer: Command) -> dict[str, dict[str, str]]:
    return {row["username"]: row for row in json.loads(answer.body)}


def test_a_secret_is_shown_to_super_users_only(world: AccessWorld) -> None:
    """Apache shows every secret to whoever may read the cluster: this makes a super user of him."""
    world.allow("joe", "Cluster:*", actions=["Get"])

    shown = world.ask_as("joe", Ask.AUTH_GET_USER, {"username": ROOT})
    listed = world.ask_as("joe", Ask.AUTH_LIST_USER, {})
    assert shown.code == listed.code == Code.SUCCESS
    assert SECRET.encode() not in shown.body + listed.body
    assert users(listed)[ROOT] == {
        "username": ROOT,
        "userStatus": "enable",
        "userType": "Super",
    }
    assert users(world.ask_as(ROOT, Ask.AUTH_LIST_USER, {}))[ROOT]["password"] == SECRET


@pytest.mark.parametrize(
    "change", [{"userStatus": "disable"}, {"userType": "Normal"}, None], ids=str
)
def test_the_last_super_user_stays(world: AccessWorld, change: dict[str, str] | None) -> None:
    def away() -> Command:
        if change is None:
            return world.ask_as(ROOT, Ask.AUTH_DELETE_USER, {"username": ROOT})
        return world.change_user(ROOT, **change)

    world.make_user("disabled", userType="Super", userStatus="disable")
    answer = away()
    assert answer.code == Code.NO_PERMISSION
    assert (answer.remark or "").startswith("User:root is the last super user that is enabled")
    world.make_user("second", userType="Super")
    assert away().code == Code.SUCCESS
    assert world.ask_as("second", Ask.AUTH_LIST_USER, {}).code == Code.SUCCESS
    assert world.state.access.has_super_user


def test_a_super_user_that_is_disabled_may_go(world: AccessWorld) -> None:
    world.make_user("second", userType="Super", userStatus="disable")
    assert world.ask_as(ROOT, Ask.AUTH_DELETE_USER, {"username": "second"}).code == Code.SUCCESS


def test_only_super_users_make_change_and_delete_super_users(world: AccessWorld) -> None:
    world.allow("joe", "*")
    row = msgspec.json.encode({"password": "pw", "userType": "SUPER"})
    for code, name in (
        (Ask.AUTH_CREATE_USER, "new"),
        (Ask.AUTH_UPDATE_USER, "joe"),
        (Ask.AUTH_UPDATE_USER, ROOT),
        (Ask.AUTH_DELETE_USER, ROOT),
    ):
        answer = world.ask_as("joe", code, {"username": name}, row)
        assert answer.code != Code.SUCCESS
        assert "by super user" in (answer.remark or "")
    assert world.change_user(ROOT, by="joe", password="pw").code != Code.SUCCESS
    assert set(users(world.ask_as(ROOT, Ask.AUTH_LIST_USER, {}))) == {"joe", ROOT}


def test_a_resource_that_is_none_does_not_delete_all_policies(world: AccessWorld) -> None:
    """Apache deletes all policies of the user then."""
    world.allow("joe", "Topic:orders", "Topic:other")
    fields = {"subject": "User:joe", "resource": "orders"}
    answer = world.ask_as(ROOT, Ask.AUTH_DELETE_ACL, fields)
    assert (answer.code, answer.remark) == (Code.NO_PERMISSION, "The resource is null.")
    assert is_let_in(world.ask_as("joe", SEND, send_header(), b"x"))


@pytest.mark.parametrize("subject", ["joe", "Group:joe", "", None])
def test_a_subject_that_is_no_user_is_refused(world: AccessWorld, subject: str | None) -> None:
    for code in (Ask.AUTH_GET_ACL, Ask.AUTH_DELETE_ACL):
        answer = world.ask_as(ROOT, code, {"subject": subject})
        assert (answer.code, answer.remark) == (Code.NO_PERMISSION, "The subject is null.")


ODD_NAMES = [
    *("with space", "ünïcode", "用户", "a:b", "*", "User:x", "a,b", '"quoted"', "back\\slash"),
    *("x" * 255, "%RETRY%x", "../../etc/passwd", "${jndi}"),
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_user_with_an_odd_name_works_like_others(world: AccessWorld, name: str) -> None:
    assert world.make_user(name).code == Code.SUCCESS
    assert not is_let_in(world.ask_as(name, SEND, send_header(), b"x"))
    world.allow(name, "Topic:orders")
    assert world.ask_as(name, SEND, send_header(), b"x").code == Code.SUCCESS
    world.start()
    assert world.ask_as(name, SEND, send_header(), b"x").code == Code.SUCCESS
    fields = {"subject": f"User:{name}"}
    (policy,) = json.loads(world.ask_as(ROOT, Ask.AUTH_GET_ACL, fields).body)["policies"]
    assert policy["entries"][0]["resource"] == "Topic:orders"


UNREADABLE = ["", " ", "\t", "a\nb", "a\x00b", "x" * 256, "\u202egnal", "root ", " root", "-"]


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_name_that_cannot_be_read_is_refused(world: AccessWorld, name: str) -> None:
    assert world.make_user(name).code != Code.SUCCESS
    assert set(world.state.access.users) == {"joe", ROOT}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"userStatus": "disabled"}, "userStatus must be enable or disable"),
        ({"userType": "admin"}, "userType must be Super or Normal"),
    ],
)
def test_a_misspelt_change_of_a_user_is_refused(
    world: AccessWorld, change: dict[str, str], fault: str
) -> None:
    """Apache confirms it and changes nothing: somebody thinks that the user is disabled."""
    changed, made = world.change_user("joe", **change), world.make_user("new", **change)

    assert changed.code == made.code == Code.SYSTEM_ERROR
    assert changed.remark == made.remark == fault
    assert set(world.state.access.users) == {"joe", ROOT}
    assert world.change_user("joe", userStatus="", userType="").code == Code.SUCCESS


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"7", b'"x"', b'{"password":7}', b'{"password":null}', b"\xff"],
)
def test_a_body_that_is_no_user_is_refused(world: AccessWorld, body: bytes) -> None:
    assert world.ask_as(ROOT, Ask.AUTH_CREATE_USER, {"username": "new"}, body).code != Code.SUCCESS
    assert set(world.state.access.users) == {"joe", ROOT}


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"7", b'{"policies":7}', b'{"policies":[7]}', b'{"policies":[{"entries":[7]}]}'],
)
def test_a_body_that_is_no_policy_is_refused(world: AccessWorld, body: bytes) -> None:
    answer = world.ask_as(ROOT, Ask.AUTH_CREATE_ACL, {"subject": "User:joe"}, body)
    assert answer.code != Code.SUCCESS
    assert world.state.access.list_acls() == []


def test_of_policies_of_which_one_is_wrong_none_is_kept(world: AccessWorld) -> None:
    answer = world.put_policy("joe", ["Topic:orders", "nothing"])
    assert answer.remark == "The resource is null."
    assert not is_let_in(world.ask_as("joe", SEND, send_header(), b"x"))


def test_a_policy_may_name_what_does_not_exist(world: AccessWorld) -> None:
    world.allow("joe", "Topic:of_tomorrow", "Group:nobody", "Cluster:other", "Namespace:x")
    assert not is_let_in(world.ask_as("joe", Ask.GET_BROKER_CONFIG, {}))
    assert not is_let_in(world.ask_as("joe", SEND, send_header(), b"x"))
    world.create_topic_as_root("of_tomorrow")
    assert is_let_in(world.ask_as("joe", SEND, send_header("of_tomorrow"), b"x"))


def test_without_access_control_users_are_neither_shown_nor_changed(world: AccessWorld) -> None:
    """Else, a broker that is opened for a moment would give away the secrets."""
    open_world = BrokerWorld(world.disk)
    for code in Ask:
        if code.name.startswith("AUTH_"):
            body = msgspec.json.encode({"password": "x"})
            answer = open_world.ask(code, {"username": ROOT, "subject": "User:joe"}, body)
            assert answer.code == Code.SYSTEM_ERROR, code
            assert "access control is off" in (answer.remark or "") or code in (
                Ask.AUTH_CREATE_ACL,
                Ask.AUTH_GET_ACL,
            )
            assert SECRET.encode() not in answer.body
    assert world.ask_as("joe", SEND, send_header(), b"x").remark != "User:joe is not found."


def test_the_answer_comes_when_the_change_is_on_the_medium(world: AccessWorld) -> None:
    world.is_writing = False
    body = msgspec.json.encode({"password": "pw"})
    fields = {"username": "new"}
    assert '"new"' not in world.disk.read_text("config/access.json")

    from reliable_mq.wire.command import request
    from reliable_mq.wire.request_signature import add_signature

    command = request(Ask.AUTH_CREATE_USER, fields, body)
    add_signature(command, ROOT, secret_of(ROOT))
    assert world.begin(Ask.AUTH_CREATE_USER, command.ext_fields, body) is None
    world.is_writing = True
    world.write()
    world.finish_turn()
    answer = world.reply_to(world.last_opaque)
    assert answer is not None
    assert answer.code == Code.SUCCESS
    assert '"new"' in world.disk.read_text("config/access.json")
