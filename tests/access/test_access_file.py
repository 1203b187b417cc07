"""The file of users and policies, and the settings: nothing is half-loaded, no door opens."""

import json
import logging

import pytest
from bench.apache_rocketmq import AUTH_PROVIDERS
from tests.access.access_world import (
    INIT_USER,
    ON,
    ROOT,
    SECRET,
    AccessWorld,
    is_let_in,
)
from tests.broker_core.broker_world import BrokerWorld, send_header

from reliable_mq.access.access_table import PATH, AccessTable
from reliable_mq.broker_core.config_reading import broker_config, shown_properties
from reliable_mq.broker_core.figures import broker_samples
from reliable_mq.errors import ConfigurationError, StoreCorrupt
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code

USER = {"username": "joe", "password": "pw of joe", "userType": "Normal", "userStatus": "enable"}
ENTRY = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"}
ACL = {"subject": "User:joe", "policies": [{"policyType": "Custom", "entries": [ENTRY]}]}


def test_users_and_policies_survive_a_restart() -> None:
    world = AccessWorld()
    world.make_user("joe")
    world.allow("joe", "Topic:orders", actions=["Pub"])
    before = world.state.access.dump()
    world.start()

    assert world.state.access.dump() == before
    world.state.access.invariants()
    assert is_let_in(world.ask_as("joe", Ask.SEND_MESSAGE_V2, send_header(), b"x"))


def test_the_first_user_is_made_once() -> None:
    world = AccessWorld()
    world.change_user(ROOT, password="another secret of root")
    world.start()

    assert not is_let_in(world.ask_as(ROOT, Ask.AUTH_LIST_USER, {}))
    answer = world.ask_as(ROOT, Ask.AUTH_LIST_USER, {}, secret="another secret of root")
    assert answer.code == Code.SUCCESS


def test_the_inner_client_is_a_super_user_too() -> None:
    credentials = '{"accessKey":"inner","secretKey":"a secret of inner"}'
    world = AccessWorld(innerClientAuthenticationCredentials=credentials)
    assert world.ask_as("inner", Ask.AUTH_LIST_USER, {}).code == Code.SUCCESS


def test_both_settings_may_name_the_same_user() -> None:
    credentials = f'{{"accessKey":"{ROOT}","secretKey":"another"}}'
    world = AccessWorld(innerClientAuthenticationCredentials=credentials)
    assert world.ask_as(ROOT, Ask.AUTH_LIST_USER, {}).code == Code.SUCCESS


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("{", "Input data was truncated"),
        ('{"users":[{"username":"joe","password":"pw of joe"x', "JSON is malformed"),
        ("[]", "it is no JSON object with users and acls"),
        ({"users": {}}, "users is no list"),
        ({"users": [7]}, "a user has no username"),
        ({"users": [{**USER, "username": 7}]}, "a user has no username"),
        ({"users": [{**USER, "username": " "}]}, "user ' ': username can not be blank"),
        ({"users": [{**USER, "password": None}]}, "user 'joe': password can not be blank"),
        ({"users": [{**USER, "userType": "King"}]}, "user 'joe': userType must be Super or Normal"),
        (
            {"users": [{**USER, "userStatus": "maybe"}]},
            "user 'joe': userStatus must be enable or disable",
        ),
        ({"users": [USER, USER]}, "user 'joe' is there twice"),
        ({"users": [USER], "acls": [ACL, ACL]}, "policies of 'User:joe'"),
        ({"users": [], "acls": [ACL]}, "policies of 'User:joe'"),
        ({"users": [USER], "acls": [{**ACL, "subject": "joe"}]}, "policies of 'joe'"),
        ({"users": [USER], "acls": [7]}, "policies of None"),
        (
            {
                "users": [USER],
                "acls": [{**ACL, "policies": [{"entries": [{**ENTRY, "actions": []}]}]}],
            },
            "policies of 'User:joe': The actions is empty.",
        ),
    ],
)
def test_a_file_that_does_not_parse_stops_the_start_and_names_the_entry(
    change: object, fault: str
) -> None:
    disk = MemoryDisk()
    disk.write_text(PATH, change if isinstance(change, str) else json.dumps(change))

    with pytest.raises(StoreCorrupt) as stopped:
        AccessWorld(disk)
    text = str(stopped.value)
    assert text.startswith(f"{PATH}: ")
    assert fault in text
    assert USER["password"] not in text
    assert "\n" not in text


def test_a_table_that_cannot_be_loaded_stays_as_it_was() -> None:
    table = AccessTable()
    table.load(json.dumps({"users": [USER], "acls": [ACL]}))
    before = table.dump()
    with pytest.raises(ValueError, match="policies of"):
        table.load(json.dumps({"users": [{**USER, "username": "ann"}], "acls": [ACL]}))
    assert table.dump() == before


def test_without_a_super_user_the_broker_does_not_start() -> None:
    for users in ([], [USER], [{**USER, "userType": "Super", "userStatus": "disable"}]):
        disk = MemoryDisk()
        disk.write_text(PATH, json.dumps({"users": users}))
        with pytest.raises(ConfigurationError, match="needs a super user that is enabled"):
            AccessWorld(disk, initAuthenticationUser="")


@pytest.mark.parametrize(
    ("properties", "fault"),
    [
        ({"authorizationEnabled": "true"}, "needs authenticationEnabled=true"),
        ({"authenticationEnable": "true"}, "did you mean authenticationEnabled?"),
        ({"AuthenticationEnabled": "true"}, "did you mean authenticationEnabled?"),
        ({"authorisationEnabled": "true"}, "did you mean authorizationEnabled?"),
        ({"initAuthenticationUsers": "secret words"}, "did you mean initAuthenticationUser?"),
        ({"aclEnable": "true"}, "`reliable-mq access import` reads plain_acl.yml"),
        ({"authenticationWhitelist": "x"}, "authenticationWhitelist=x: write request codes"),
        ({"authenticationWhitelist": "1" * 5_000}, "authenticationWhitelist=1111"),
        ({"authorizationWhitelist": "10;11"}, "authorizationWhitelist=10;11: write request"),
        ({"authenticationWhitelist": "10, 3004"}, "3004 changes or shows users"),
        ({"initAuthenticationUser": "secret words"}, 'initAuthenticationUser: write {"username"'),
        ({"initAuthenticationUser": '["secret words"]'}, "initAuthenticationUser: write"),
        (
            {"initAuthenticationUser": '{"username":"secret words"}'},
            "initAuthenticationUser: write",
        ),
        (
            {"initAuthenticationUser": '{"username":" ","password":"secret words"}'},
            "initAuthenticationUser: username can not be blank",
        ),
        (
            {"initAuthenticationUser": '{"username":"a","password":" "}'},
            "initAuthenticationUser: password can not be blank",
        ),
        (
            {"innerClientAuthenticationCredentials": '{"username":"a","password":"secret words"}'},
            'innerClientAuthenticationCredentials: write {"accessKey"',
        ),
        ({"authenticationEnabled": "secret words?"}, "authenticationEnabled=secret words?"),
    ],
)
def test_a_wrong_setting_is_one_line_without_a_secret(
    properties: dict[str, str], fault: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        broker_config(properties)
    text = str(refused.value)
    assert fault in text
    assert "\n" not in text
    if "authenticationEnabled" not in properties:
        assert "secret words" not in text


def test_properties_of_apaches_access_control_that_have_no_effect_here_are_no_error() -> None:
    _, warnings = broker_config({**AUTH_PROVIDERS, "userCacheMaxNum": "1000"})
    assert len(warnings) == len(AUTH_PROVIDERS) + 1


def test_the_settings_show_no_secret() -> None:
    inner = '{"accessKey":"inner","secretKey":"a secret of inner"}'
    config, warnings = broker_config({**ON, "innerClientAuthenticationCredentials": inner})
    assert not warnings
    shown = (
        repr(config) + str(config.first_user) + repr(config.access) + str(shown_properties(config))
    )
    assert "secret of" not in shown
    assert "initAuthenticationUser" not in shown_properties(config)


def test_access_control_cannot_be_changed_over_the_network(world_log: logging.Logger) -> None:
    world = AccessWorld()
    for name, value in (
        ("authenticationEnabled", "false"),
        ("authorizationEnabled", "false"),
        ("authenticationWhitelist", "310"),
        ("authorizationWhitelist", "310"),
        ("initAuthenticationUser", INIT_USER),
        ("innerClientAuthenticationCredentials", ""),
    ):
        body = f"{name}={value}".encode()
        answer = world.ask_as(ROOT, Ask.UPDATE_BROKER_CONFIG, {}, body)
        assert answer.code == Code.INVALID_PARAMETER
        assert "reads this property only when it starts" in (answer.remark or "")
    body = b"autoCreateTopicEnable=false"
    assert world.ask_as(ROOT, Ask.UPDATE_BROKER_CONFIG, {}, body).code == Code.SUCCESS
    shown = world.ask_as(ROOT, Ask.GET_BROKER_CONFIG, {})
    assert b"authenticationEnabled=true" in shown.body
    assert SECRET.encode() not in shown.body


@pytest.fixture
def world_log() -> logging.Logger:
    return logging.getLogger("reliable_mq")


def test_refusals_are_logged_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    world = AccessWorld()
    world.make_user("joe")
    world.ask_as("joe", Ask.SEND_MESSAGE_V2, send_header(), b"x")
    world.ask_as("joe", Ask.SEND_MESSAGE_V2, send_header(), b"x", secret="guessed secret")
    assert "is refused: User:joe has no permission" in caplog.text
    figures = {each.name: each.value for each in broker_samples(world.state, world.now_ms)}
    assert figures["reliable_mq_broker_refused_access_total"] == 2
    assert "secret" not in caplog.text


def test_a_lost_file_opens_no_door() -> None:
    """The first user of the settings is made again; nobody else is known."""
    world = AccessWorld()
    world.make_user("joe")
    world.disk.remove(PATH)
    world.start()
    assert world.ask_as("joe", Ask.GET_BROKER_CONFIG, {}).remark == "User:joe is not found."


def test_the_file_is_read_without_access_control_too() -> None:
    world = AccessWorld()
    world.disk.write_text(PATH, "{")
    with pytest.raises(StoreCorrupt):
        BrokerWorld(world.disk)


@pytest.mark.parametrize("clock_ms", [0, 1, 2**62])
def test_no_clock_matters(clock_ms: int) -> None:
    """A signature has no time: clocks of clients and brokers may differ as much as they like."""
    world = AccessWorld()
    world.now_ms = clock_ms
    assert world.ask_as(ROOT, Ask.AUTH_LIST_USER, {}).code == Code.SUCCESS
