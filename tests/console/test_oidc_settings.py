"""The settings of a log-in at a provider, and the options of the command that make them."""

from dataclasses import replace
from typing import Any

import pytest
from tests.console.conftest import visitor
from tests.console.oidc_provider import CLIENT, SECRET, Provider, settings
from tests.console.test_oidc import enter

from reliable_mq import ReliableMQ
from reliable_mq.cli.console_oidc import OidcOptions
from reliable_mq.console import console_app
from reliable_mq.console.users import Role
from reliable_mq.errors import ConfigurationError, UsageError


@pytest.mark.parametrize(
    "wrong",
    [
        {"issuer": "http://login.example"},
        {"issuer": "login.example"},
        {"issuer": "https://user@login.example"},
        {"issuer": "https://[login"},
        {"public_url": "http://mq.example"},
        {"client_id": ""},
        {"roles": {}},
        {"claim": ""},
    ],
)
def test_settings_that_let_anybody_in_are_refused(
    provider: Provider, wrong: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError):
        settings(provider, **wrong)
    assert SECRET not in repr(settings(provider))


@pytest.mark.parametrize(
    ("change", "ends"),
    [
        ({"issuer": "https://another.example"}, True),
        ({"client_id": "another"}, True),
        ({"claim": "roles"}, True),
        ({"name_claim": "email"}, True),
        ({"roles": {"on-call": Role.VIEWER}}, True),
        ({"public_url": "https://another.example"}, False),
        ({"client_secret": "another"}, False),
    ],
)
def test_sessions_end_when_it_changes_who_may_do_what(
    provider: Provider, change: dict[str, Any], ends: bool
) -> None:
    made = settings(provider)
    assert (replace(made, **change).proof != made.proof) is ends


def options(**changed: Any) -> OidcOptions:
    given = {
        "issuer": "https://login.example",
        "client_id": CLIENT,
        "secret": "",
        "public_url": "https://mq.example",
        "roles": ["on-call=operator", "a=b=admin"],
        "claim": "groups",
        "name_claim": "email",
    }
    return OidcOptions(**(given | changed))


def test_the_command_takes_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_MQ_CONSOLE_OIDC_SECRET", SECRET)
    made = options().settings()
    assert made is not None
    assert made.client_secret == SECRET
    assert made.roles == {"on-call": Role.OPERATOR, "a=b": Role.ADMIN}
    assert options(issuer="", client_id="", roles=[], public_url="").settings() is None
    assert SECRET not in repr(options(secret=SECRET))
    faults: list[dict[str, Any]] = [
        {"issuer": ""},
        {"client_id": ""},
        {"public_url": ""},
        {"roles": []},
        {"roles": ["on-call"]},
        {"roles": ["on-call=boss"]},
        {"roles": ["=admin"]},
    ]
    for wrong in faults:
        with pytest.raises(UsageError):
            options(**wrong).settings()


def test_people_log_in_after_the_application_has_started_again(
    mq: ReliableMQ, provider: Provider
) -> None:
    app = console_app(mq, oidc=settings(provider))
    for _ in range(2):
        with visitor(app) as client:
            assert enter(client, provider, "vera", "/stubs").headers["location"] == "/stubs"
