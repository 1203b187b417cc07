"""How a cluster is reached is said once: in code, by settings, or by the environment."""

from collections.abc import Callable
from typing import Any

import pytest

from reliable_mq import TLS, ClientSettings, Credentials, ReliableMQ
from reliable_mq.cli.admin_options import of_all_tenants
from reliable_mq.client.configured import configured, of_environment
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.settings import Settings

ROOT = Credentials(access_key="root", secret_key="a secret")
ALL_OF_IT = ClientSettings(
    credentials=ROOT,
    tls=TLS(ca="ca.pem", cert="me.pem", key="me.key", hostname="broker", verify=False),
    namespace="east",
    request_timeout_seconds=9.0,
)
VARIABLES = {
    "RELIABLE_MQ_ACCESS_KEY": "root",
    "RELIABLE_MQ_SECRET_KEY": "a secret",
    "RELIABLE_MQ_TLS_CA": "ca.pem",
    "RELIABLE_MQ_TLS_CERT": "me.pem",
    "RELIABLE_MQ_TLS_KEY": "me.key",
    "RELIABLE_MQ_TLS_HOSTNAME": "broker",
    "RELIABLE_MQ_TLS_VERIFY": "false",
    "RELIABLE_MQ_NAMESPACE": "east",
    "RELIABLE_MQ_CLIENT": '{"request_timeout_seconds": 9.0}',
}
AS_JSON = {
    "RELIABLE_MQ_CLIENT": '{"namespace": "east", "request_timeout_seconds": 9.0, "credentials":'
    ' {"access_key": "root", "secret_key": "a secret"}, "tls": {"ca": "ca.pem", "cert": "me.pem",'
    ' "key": "me.key", "hostname": "broker", "verify": false}}'
}
SINGLE: dict[str, Any] = {
    "access_key": "root",
    "secret_key": "a secret",
    "namespace": "east",
    "tls_ca": "ca.pem",
    "tls_cert": "me.pem",
    "tls_key": "me.key",
    "tls_hostname": "broker",
    "tls_verify": False,
    "client": {"request_timeout_seconds": 9.0},
}


@pytest.fixture(autouse=True)
def only_variables_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIABLE_MQ_CLIENT", raising=False)


@pytest.mark.parametrize("variables", [VARIABLES, AS_JSON], ids=["variables", "JSON"])
def test_variables_say_what_client_settings_say(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert of_environment() == ALL_OF_IT
    assert configured(ReliableMQ("shop").settings) == ALL_OF_IT


@pytest.mark.parametrize(
    "given",
    [lambda: {"client": ALL_OF_IT}, lambda: SINGLE, lambda: {"settings": Settings(**SINGLE)}],
    ids=["client", "single settings", "settings"],
)
def test_an_application_takes_them_in_code(given: Callable[[], dict[str, Any]]) -> None:
    assert configured(ReliableMQ("shop", **given()).settings) == ALL_OF_IT


def test_what_the_client_leaves_open_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_ACCESS_KEY", "root")
    monkeypatch.setenv("RELIABLE_MQ_SECRET_KEY", "a secret")
    monkeypatch.setenv("RELIABLE_MQ_NAMESPACE", "east")

    mq = ReliableMQ("shop", client=ClientSettings(namespace="west"))

    assert configured(mq.settings) == ClientSettings(namespace="west", credentials=ROOT)


def test_the_relay_names_its_group_unless_the_client_does() -> None:
    usual = configured(Settings(), producer_group="shop_relay")
    named = Settings(client={"producer_group": "ours"})
    assert usual.producer_group == "shop_relay"
    assert configured(named, producer_group="shop_relay").producer_group == "ours"


def test_tls_with_the_authorities_of_the_system_is_one_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert of_environment().tls is None
    monkeypatch.setenv("RELIABLE_MQ_TLS", "true")
    assert of_environment().tls == TLS()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"access_key": "me"}, "access_key has no secret_key: set secret_key "),
        ({"tls_key": "me.key"}, "tls_key has no tls_cert"),
        (
            {"client": {"request_timout": 3}},
            "no setting request_timout; did you mean request_timeout_seconds",
        ),
        (
            {"client": {"request_timeout_seconds": -1}},
            "request_timeout_seconds is -1: it must be positive",
        ),
        ({"client": {"tls": {"ca": 5}}}, "client: tls: Expected `str`, got `int`"),
        ({"client": 5}, "client"),
        ({"namespace": "a b"}, "namespace is 'a b'"),
        ({"broker": "embedded:x", "tls": True}, "runs inside this process, without TLS"),
    ],
)
def test_what_cannot_work_is_refused_when_the_application_is_made(
    given: dict[str, Any], says: str
) -> None:
    with pytest.raises((ConfigurationError, UsageError), match=says):
        ReliableMQ("shop", **given)


def test_a_secret_is_never_shown() -> None:
    for given in (SINGLE, {"client": ALL_OF_IT}):
        assert "a secret" not in repr(ReliableMQ("shop", **given).settings)


def test_the_commands_for_all_tenants_name_things_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_MQ_NAMESPACE", "east")
    monkeypatch.setenv("RELIABLE_MQ_TLS", "true")

    assert of_all_tenants() == ClientSettings(tls=TLS())
