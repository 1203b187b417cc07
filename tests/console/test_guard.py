"""Who may: log-in, roles, tokens of forms, and the headers of every answer."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tests.console.conftest import Browse

from reliable_mq import ReliableMQ
from reliable_mq.console import console_app, mount
from reliable_mq.console.sessions import (
    FAILED_MAX,
    FAILED_SECONDS,
    FailedLogIns,
    LogInSession,
    Seal,
)
from reliable_mq.console.users import Role, add_user, read_users
from reliable_mq.errors import ConfigurationError

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReliableMQ]:
    """Give an application whose database is a file: it is not what these tests are about."""
    folder = tmp_path_factory.mktemp("guard")
    made = ReliableMQ(
        "shop", database=f"sqlite:///{folder}/shop.db", broker=f"embedded:{folder}/store"
    )
    made.create_tables()
    yield made
    made.close()


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """Give a file with a viewer and an admin."""
    path = tmp_path / "users.json"
    add_user(path, "vera", Role.VIEWER, PASSWORD)
    add_user(path, "ada", Role.ADMIN, PASSWORD)
    return path


def token_of(page: str) -> str:
    found = re.search(r'name="token" value="([0-9a-f]+)"', page)
    assert found
    return found[1]


def log_in(client: TestClient, name: str, password: str = PASSWORD, to: str = "") -> int:
    """Log in as a browser does; return the status of the answer."""
    token = token_of(client.get("/log-in").text)
    form = {"token": token, "name": name, "password": password, "to": to}
    return int(client.post("/log-in", data=form).status_code)


@pytest.mark.parametrize(
    "path", ["/", "/stubs", "/find", "/none", "/static/console.css", "/healthz"]
)
def test_every_answer_has_the_headers(browse: Browse, path: str) -> None:
    headers = browse().get(path).headers
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"


def test_the_cookie_cannot_be_read_by_scripts_or_sent_by_other_sites(browse: Browse) -> None:
    cookie = browse().get("/").headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


def test_without_users_only_names_of_this_machine_are_answered(browse: Browse) -> None:
    client = browse()
    assert client.get("/", headers={"host": "127.0.0.1:8080"}).status_code == 200
    assert client.get("/", headers={"host": "[::1]:8080"}).status_code == 200
    answer = client.get("/", headers={"host": "evil.example:8080"})
    assert answer.status_code == 421
    assert "127.0.0.1" in answer.text


def test_who_is_not_logged_in_is_led_to_the_log_in_and_back(browse: Browse, users: Path) -> None:
    client = browse(users=users)
    answer = client.get("/stubs?topic=orders")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/log-in?to=%2Fstubs%3Ftopic%3Dorders"
    page = client.get(answer.headers["location"]).text
    form = {"token": token_of(page), "name": "vera", "password": PASSWORD}
    answer = client.post("/log-in", data=form | {"to": "/stubs?topic=orders"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/stubs?topic=orders")
    page = client.get("/stubs?topic=orders").text
    assert "vera" in page
    assert "viewer" in page


@pytest.mark.parametrize("to", ["https://evil.example", "//evil.example", "/\\evil.example", "x"])
def test_a_log_in_leads_to_no_other_site(browse: Browse, users: Path, to: str) -> None:
    client = browse(users=users)
    token = token_of(client.get("/log-in").text)
    form = {"token": token, "name": "ada", "password": PASSWORD, "to": to}
    assert client.post("/log-in", data=form).headers["location"] == "/"


def test_a_wrong_password_is_refused_and_many_are_slowed_down(browse: Browse, users: Path) -> None:
    client = browse(users=users)
    statuses = [log_in(client, "ada", "wrong password") for _ in range(FAILED_MAX)]
    assert statuses == [403] * FAILED_MAX
    assert log_in(client, "ada") == 429


def test_failed_log_ins_are_forgotten_after_a_while() -> None:
    failed = FailedLogIns()
    for _ in range(FAILED_MAX):
        failed.note("10.0.0.1", 100.0)
    assert failed.wait("10.0.0.1", 100.0) == FAILED_SECONDS
    assert failed.wait("10.0.0.2", 100.0) == 0
    assert failed.wait("10.0.0.1", 100.0 + FAILED_SECONDS) == 0


def test_a_form_without_the_token_of_its_session_is_refused(browse: Browse, users: Path) -> None:
    client = browse(users=users)
    assert log_in(client, "ada") == 303
    assert client.post("/log-out", data={"a": "b"}).status_code == 403
    assert client.post("/log-out", data={"token": "0" * 64}).status_code == 403
    other = token_of(browse(users=users).get("/log-in").text)
    assert client.post("/log-out", data={"token": other}).status_code == 403
    assert client.post("/log-out", json={"token": other}).status_code == 415
    own = token_of(client.get("/").text)
    assert client.post("/log-out", data={"token": own, "more": "x" * 1_100_000}).status_code == 413
    assert client.post("/log-out", data={"token": own}).status_code == 303
    assert client.get("/").status_code == 303


def test_a_session_ends_at_its_time_and_with_its_user(browse: Browse, users: Path) -> None:
    seal = Seal(b"key")
    session = LogInSession("nonce", "ada", 100.0)
    cookie = seal.cookie(session)
    assert seal.session(cookie, 99.0) == session
    assert seal.session(cookie, 100.0) is None
    assert seal.session(cookie[:-1] + "0", 99.0) is None
    assert Seal(b"other").session(cookie, 99.0) is None
    assert seal.session("", 99.0) is None
    client = browse(users=users)
    assert log_in(client, "vera") == 303
    users.write_text(users.read_text().replace('"vera"', '"nobody"'))
    assert client.get("/").status_code == 303


def test_a_post_of_an_ended_session_says_that_nothing_was_done(browse: Browse, users: Path) -> None:
    answer = browse(users=users).post("/log-out", data={})
    assert answer.status_code == 401
    assert "nothing was done" in answer.text


def test_users_of_a_broker_may_log_in(browse: Browse, tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    rows = [
        {"username": "root", "password": PASSWORD, "userType": "Super", "userStatus": "enable"},
        {"username": "shop", "password": PASSWORD, "userType": "Normal", "userStatus": "enable"},
        {"username": "gone", "password": PASSWORD, "userType": "Normal", "userStatus": "disable"},
    ]
    path.write_text(str({"users": rows, "acls": []}).replace("'", '"'))
    roles = {name: user.role for name, user in read_users(path.read_text()).items()}
    assert roles == {"root": Role.ADMIN, "shop": Role.VIEWER}
    assert log_in(browse(users=path), "shop") == 303


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"users": [{"role": "god"}]}', '{"users": [1]}'])
def test_a_file_that_has_no_users_is_refused(mq: ReliableMQ, tmp_path: Path, text: str) -> None:
    path = tmp_path / "users.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match="--users"):
        console_app(mq, users=path)


def test_prometheus_logs_in_with_its_request(browse: Browse, users: Path) -> None:
    client = browse(users=users)
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", auth=("vera", "wrong password")).status_code == 401
    answer = client.get("/metrics", auth=("vera", PASSWORD))
    assert "reliable_mq_database_up" in answer.text
    assert client.get("/", auth=("vera", PASSWORD)).status_code == 303


def test_a_mounted_console_asks_the_application_who_may(mq: ReliableMQ) -> None:
    app = Starlette()
    with pytest.raises(ConfigurationError, match="users="):
        mount(app, "/mq", mq=mq)
    mount(app, "/mq", mq=mq, allow=lambda request: _named(request.headers.get("x-user")))
    client = TestClient(app, base_url="https://shop.example", follow_redirects=False)
    refused = client.get("/mq/")
    assert refused.status_code == 403
    assert "Path=/mq;" in refused.headers["set-cookie"]
    assert "Secure" in refused.headers["set-cookie"]
    page = client.get("/mq/stubs", headers={"x-user": "eve"})
    assert page.status_code == 200
    assert 'href="/mq/static/console.css' in page.text
    assert 'action="/mq/stubs"' in page.text
    assert 'href="/mq/stubs" aria-current="page"' in page.text
    assert client.get("/mq/static/console.js").status_code == 200


def _named(user: str | None) -> tuple[str, Role] | None:
    return (user, Role.OPERATOR) if user else None


def test_a_role_has_what_the_lower_ones_have() -> None:
    assert [Role.OPERATOR.may(role) for role in Role] == [True, True, False]
