"""Log-in at a provider of OpenID Connect: who gets in, and every answer that does not count."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient
from tests.console.conftest import Browse
from tests.console.doing_steps import look
from tests.console.oidc_provider import (
    CLIENT,
    PUBLIC,
    Provider,
    elliptic_key,
    forged,
    other_key,
    settings,
    shared_secret,
    signed_by_public_key,
)
from tests.console.planted_rows import ODD
from tests.console.test_guard import PASSWORD, log_in, token_of
from tests.console.test_guard import mq as mq  # noqa: PLC0414 - a fixture
from tests.console.test_planted_text import check

from reliable_mq.console import http_oidc, oidc_endpoints, sessions
from reliable_mq.console.http_oidc import OidcProvider
from reliable_mq.console.users import Role, add_user
from reliable_mq.errors import Unavailable

Changes = Callable[[Provider], None]


def there(client: TestClient, to: str = "/") -> str:
    """Begin a log-in; return the address at the provider."""
    answer = client.get("/log-in/oidc", params={"to": to})
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def back(client: TestClient, address: str) -> Any:
    """Follow the provider back to the console."""
    return client.get(address.removeprefix(PUBLIC))


def enter(client: TestClient, provider: Provider, person: str, to: str = "/") -> Any:
    """Log in as a browser does; return the answer of the console."""
    return back(client, provider.authorized(there(client, to), person))


def test_people_get_in_with_the_role_of_their_claim(browse: Browse, provider: Provider) -> None:
    client = browse(oidc=settings(provider))
    assert client.get("/stubs").headers["location"] == "/log-in?to=%2Fstubs"
    page = client.get("/log-in?to=/stubs").text
    assert 'href="/log-in/oidc?to=/stubs"' in page
    assert 'name="password"' not in page
    answer = enter(client, provider, "vera", "/stubs?status=voided")
    assert (answer.status_code, answer.headers["location"]) == (303, "/stubs?status=voided")
    page = client.get("/").text
    assert "vera" in page
    assert "viewer" in page
    assert look(client, "stub-retry").status_code == 403
    (form,) = provider.asked
    assert (form["grant_type"], form["client_id"]) == ("authorization_code", CLIENT)
    client.post("/log-out", data={"token": token_of(client.get("/topics").text)})
    assert client.get("/").status_code == 303
    assert enter(client, provider, "otto").status_code == 303
    assert "operator" in client.get("/").text  # of two roles, the one that may more


def test_a_claim_may_lie_in_an_object_or_be_a_text(browse: Browse, provider: Provider) -> None:
    client = browse(oidc=settings(provider, claim="realm_access.roles"))
    assert enter(client, provider, "ada").status_code == 303
    assert "admin" in client.get("/").text
    client = browse(oidc=settings(provider, name_claim="email"))
    assert enter(client, provider, "ada").status_code == 303
    page = client.get("/").text
    assert "operator" in page
    assert "id-of-ada" in page  # without the claim, the subject


def test_nobody_without_a_mapped_role_gets_in(browse: Browse, provider: Provider) -> None:
    client = browse(oidc=settings(provider))
    answer = enter(client, provider, "eve")
    assert answer.status_code == 403
    assert "you have no role in this console" in answer.text
    assert client.get("/").status_code == 303
    for told in ({"groups": None}, {"groups": 7}, {"groups": {"on-call": True}}, {"groups": [7]}):
        provider.told = told
        assert enter(client, provider, "otto").status_code == 403
    assert client.get("/").status_code == 303


def now(seconds: float) -> int:
    return int(time.time() + seconds)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"iss": "http://127.0.0.1:1"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "another"}, "another audience"),
        ({"aud": None}, "another audience"),
        ({"aud": [CLIENT, "another"]}, "another audience"),
        ({"aud": [CLIENT, "another"], "azp": "another"}, "another audience"),
        ({"azp": "another"}, "another audience"),
        ({"exp": now(-120)}, "does not count"),
        ({"exp": None}, "does not count"),
        ({"exp": "soon"}, "does not count"),
        ({"iat": now(600)}, "does not count"),
        ({"iat": None}, "does not count"),
        ({"nbf": now(600)}, "does not count"),
        ({"nonce": "of another log-in"}, "its nonce is another one"),
        ({"nonce": None}, "its nonce is another one"),
        ({"sub": None}, "no subject"),
        ({"sub": ""}, "no subject"),
    ],
)
def test_a_token_that_is_not_for_this_log_in_is_refused(
    browse: Browse, provider: Provider, wrong: dict[str, Any], line: str
) -> None:
    client = browse(oidc=settings(provider))
    provider.told = wrong
    answer = enter(client, provider, "otto")
    assert answer.status_code == 403
    assert line in answer.text
    assert client.get("/").status_code == 303
    provider.told = {}
    assert enter(client, provider, "otto").status_code == 303


def signed_by_another(provider: Provider) -> None:
    provider.signed_by = other_key()


def signed_by_the_public_key(provider: Provider) -> None:
    provider.raw_token = signed_by_public_key(provider)


def not_signed(provider: Provider) -> None:
    provider.raw_token = forged(provider.issuer)


def no_token(provider: Provider) -> None:
    provider.raw_token = "a.b"


def key_of_another_use(provider: Provider) -> None:
    rows = provider.public_keys()["keys"]
    provider.keys = {"keys": [row | {"use": "enc"} for row in rows]}


def a_shared_secret_among_the_keys(provider: Provider) -> None:
    secret = shared_secret()
    provider.signed_by, provider.algorithm = secret, "HS256"
    provider.keys = {"keys": [secret.as_dict(private=True) | {"kid": "one"}]}


@pytest.mark.parametrize(
    ("change", "status", "line"),
    [
        (signed_by_another, 403, "does not count"),
        (signed_by_the_public_key, 403, "does not count"),
        (not_signed, 403, "does not count"),
        (no_token, 403, "does not count"),
        (key_of_another_use, 502, "has no key that signs"),
        (a_shared_secret_among_the_keys, 502, "has no key that signs"),
    ],
)
def test_a_forged_signature_is_refused(
    browse: Browse, provider: Provider, change: Changes, status: int, line: str
) -> None:
    client = browse(oidc=settings(provider))
    change(provider)
    answer = enter(client, provider, "otto")
    assert answer.status_code == status
    assert line in answer.text
    check(answer.text)
    assert client.get("/").status_code == 303


def test_an_answer_counts_once_and_in_the_browser_that_asked(
    browse: Browse, provider: Provider
) -> None:
    client, other = (browse(oidc=settings(provider), secret="one") for _ in range(2))
    address = provider.authorized(there(client), "otto")
    assert back(other, address).status_code == 403  # it has begun no log-in
    there(other)
    answer = back(other, address)
    assert answer.status_code == 403
    assert "its state is another one" in answer.text
    kept = dict(client.cookies)
    assert back(client, address).status_code == 303
    assert back(client, address).status_code == 403  # the cookie is gone
    for name, value in kept.items():
        client.cookies.set(name, value, domain="127.0.0.1")
    answer = back(client, address)  # the cookie and the state again
    assert answer.status_code == 403
    assert "has ended already" in answer.text
    assert len(provider.asked) == 1


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ({"state": "x", "code": "y"}, "its state is another one"),
        ({"code": "y"}, "its state is another one"),
        ({"state": "é", "code": "y"}, "its state is another one"),
        ({"error": "access_denied"}, "says: access_denied"),
        ({"error": "x", "error_description": ODD}, "says: "),
        ({"iss": "https://other.example", "code": "y"}, "of another issuer"),
        ({"code": ""}, "has no code"),
        ({"code": "never given"}, "refused the code: invalid_grant"),
    ],
)
def test_an_answer_without_what_is_needed_is_refused(
    browse: Browse, provider: Provider, query: dict[str, str], line: str
) -> None:
    client = browse(oidc=settings(provider))
    state = parse_qs(urlsplit(there(client)).query)["state"][0]
    first = next(iter(query))
    given = query if "state" in line else {"state": state} | query
    answer = client.get("/log-in/oidc/back", params=given)
    assert answer.status_code == 403, first
    assert line in answer.text
    check(answer.text)


def test_an_old_log_in_is_refused(
    browse: Browse, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = browse(oidc=settings(provider))
    monkeypatch.setattr(http_oidc, "LOG_IN_SECONDS", -1.0)
    answer = enter(client, provider, "otto")
    assert answer.status_code == 403
    assert "too long ago" in answer.text


def test_a_session_ends_soon_and_with_the_settings(
    browse: Browse, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = browse(oidc=settings(provider), secret="one")
    enter(client, provider, "otto")
    cookies = dict(client.cookies)
    for changed in (
        browse(oidc=settings(provider, roles={"staff": Role.VIEWER}), secret="one"),
        browse(secret="one"),
        browse(oidc=settings(provider), secret="another"),
    ):
        for name, value in cookies.items():
            changed.cookies.set(name, value, domain="127.0.0.1")
        assert "otto" not in changed.get("/").text
    assert client.get("/").status_code == 200
    monkeypatch.setattr("reliable_mq.console.guard.OIDC_SECONDS", -1.0)
    enter(client, provider, "otto")
    assert client.get("/").status_code == 303
    assert sessions.OIDC_SECONDS < sessions.SESSION_SECONDS


def test_new_keys_of_the_provider_are_read(
    browse: Browse, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = browse(oidc=settings(provider))
    assert enter(client, provider, "otto").status_code == 303
    provider.key, provider.algorithm = elliptic_key(), "ES256"
    assert enter(client, provider, "otto").status_code == 403  # they were read a moment ago
    monkeypatch.setattr(http_oidc, "KEYS_AGAIN_SECONDS", 0.0)
    assert enter(client, provider, "otto").status_code == 303


def test_users_of_the_file_log_in_beside(
    browse: Browse, provider: Provider, tmp_path: Path
) -> None:
    users = tmp_path / "users.json"
    add_user(users, "ada", Role.ADMIN, PASSWORD)
    client = browse(oidc=settings(provider), users=users)
    page = client.get("/log-in").text
    assert 'name="password"' in page
    assert "/log-in/oidc" in page
    assert log_in(client, "ada") == 303
    assert client.get("/").status_code == 200
    answer = enter(client, provider, "ada")  # another person of that name
    assert answer.status_code == 403
    assert "who is another one" in answer.text
    assert enter(browse(oidc=settings(provider), users=users), provider, "vera").status_code == 303
    assert client.get("/metrics", auth=("ada", PASSWORD)).status_code == 200
    fresh = browse(oidc=settings(provider), users=users)
    users.write_text("{")
    assert enter(fresh, provider, "vera").status_code == 503


@pytest.mark.parametrize(
    ("discovered", "line"),
    [
        ({"issuer": "https://other.example"}, "its issuer is another one"),
        ({"token_endpoint": "http://other.example/token"}, "does not say where it is asked"),
        ({"jwks_uri": 7}, "does not say where it is asked"),
    ],
)
def test_a_provider_that_says_odd_things_of_itself_is_not_asked(
    browse: Browse, provider: Provider, discovered: dict[str, Any], line: str
) -> None:
    provider.discovered = discovered
    answer = browse(oidc=settings(provider)).get("/log-in/oidc")
    assert answer.status_code == 502
    assert line in answer.text


def test_a_provider_that_is_away_keeps_nobody_of_the_file_out(
    browse: Browse, provider: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users.json"
    add_user(users, "ada", Role.ADMIN, PASSWORD)
    away = settings(provider, issuer="http://127.0.0.1:1")
    client = browse(oidc=away, users=users)
    answer = client.get("/log-in/oidc")
    assert answer.status_code == 502
    assert "127.0.0.1 does not answer" in answer.text
    assert log_in(client, "ada") == 303
    monkeypatch.setattr(http_oidc, "ANSWER_BYTES_MAX", 10)
    assert "too long" in browse(oidc=settings(provider)).get("/log-in/oidc").text


def test_many_tries_wait(browse: Browse, provider: Provider) -> None:
    client = browse(oidc=settings(provider))
    for status in (403, 403, 403, 403, 403, 429):
        state = parse_qs(urlsplit(there(client)).query)["state"][0]
        given = {"state": state, "code": "never given"}
        assert client.get("/log-in/oidc/back", params=given).status_code == status


def test_who_has_begun_no_log_in_locks_nobody_out(browse: Browse, provider: Provider) -> None:
    client = browse(oidc=settings(provider))
    for query in ("", "?state=x&code=y") * 5:  # as images of another web site
        assert client.get(f"/log-in/oidc/back{query}").status_code == 403
        there(client)
        assert client.get("/log-in/oidc/back?state=x&code=y").status_code == 403
    assert enter(client, provider, "otto").status_code == 303


def test_a_provider_that_is_away_is_not_asked_by_each_request(provider: Provider) -> None:
    times = [1_000.0]
    asks = OidcProvider(settings(provider), lambda: times[-1])
    provider.discovered = {"issuer": "https://other.example"}
    with pytest.raises(Unavailable, match="its issuer is another one"):
        asks.begin("")
    provider.discovered = {}
    for seconds in (0.0, oidc_endpoints.AWAY_SECONDS - 0.1):
        times.append(1_000.0 + seconds)
        with pytest.raises(Unavailable, match="its issuer is another one"):
            asks.begin("")
    times.append(1_000.0 + oidc_endpoints.AWAY_SECONDS)
    with (
        asks._endpoints._asking,
        pytest.raises(Unavailable),
    ):  # another thread asks: this one does not wait
        asks.begin("")
    assert asks.begin("")[0].startswith(provider.issuer)
    asks.close()


@pytest.mark.parametrize("to", ["//other.example", "https://other.example", "/\\x", "\n"])
def test_a_log_in_leads_to_a_page_of_this_console(
    browse: Browse, provider: Provider, to: str
) -> None:
    client = browse(oidc=settings(provider))
    assert enter(client, provider, "vera", to).headers["location"] == "/"


def test_the_cookie_of_a_log_in_is_read_by_no_script_and_goes_to_two_pages(
    browse: Browse, provider: Provider
) -> None:
    answer = browse(oidc=settings(provider)).get("/log-in/oidc")
    (line,) = [each for each in answer.headers.get_list("set-cookie") if "_oidc=" in each]
    assert "; Path=/log-in/oidc; HttpOnly; SameSite=Lax; Max-Age=600" in line
    assert provider.issuer in answer.headers["location"]
    assert OidcProvider(settings(provider)).redirect_uri == f"{PUBLIC}/log-in/oidc/back"
