"""A wrong value of a variable names the variable, and no line of code."""

import pytest

from reliable_mq import ReliableMQ
from reliable_mq.errors import ConfigurationError
from reliable_mq.settings import Settings

WRONG = {
    "RELIABLE_MQ_REDIS": "localhost",
    "RELIABLE_MQ_CLIENT": '{"foo": 1}',
    "RELIABLE_MQ_NAMESPACE": "a b",
    "RELIABLE_MQ_ESCALATION_WEBHOOK": "ftp://x",
    "RELIABLE_MQ_DATABASE": "postgres//x",
    "RELIABLE_MQ_RETRY_WAITS_SECONDS": "[]",
    "RELIABLE_MQ_RESEND_WAITS_SECONDS": "[5, 1]",
    "RELIABLE_MQ_SHUTDOWN_TIMEOUT_SECONDS": "inf",
    "RELIABLE_MQ_CLAIM_LEASE_SECONDS": "1e12",
    "RELIABLE_MQ_TLS_KEY": "key.pem",
    "RELIABLE_MQ_DATABASES": '{"billing": "oracle://x"}',
}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        *WRONG.items(),
        ("RELIABLE_MQ_CLIENT", '{"retries": "x"}'),
        ("RELIABLE_MQ_DATABASES", '{"Main": "sqlite:///x.db"}'),
    ],
)
def test_the_variable_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(ConfigurationError, match=f"^{variable}: "):
        ReliableMQ("shop")


def test_a_value_of_the_code_is_not_blamed_on_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_MQ_REDIS", "redis://127.0.0.1:1")

    for given in ({"redis": "localhost"}, {"settings": Settings(redis="localhost")}):
        with pytest.raises(ConfigurationError, match=r"^redis="):
            ReliableMQ("shop", **given)


def test_the_variable_of_the_broker_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_MQ_BROKER", "localhost")

    with pytest.raises(ConfigurationError, match=r"^RELIABLE_MQ_BROKER: name server 'localhost'"):
        ReliableMQ("shop")
