"""Who may: log-in, roles, tokens of forms, and the headers of every answer."""

import asyncio
import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tests.console.conftest import Browse, visitor
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.cli.console import _serve
from reliable_mq.console import console_app, mount
from reliable_mq.console.sessions import (
    FAILED_MAX,
    FAILED_SECONDS,
    LogInSession,
    LogInTries,
    Seal,
)
from reliable_mq.console.users import Role, UserFile, add_user, read_users
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
    assert "SameSite=Lax" in cookie  # a link in a chat leads to a page, and logs nobody out
    assert "Secure" not in cookie
    proxied = browse().get("/", headers={"x-forwarded-proto": "https"})
    assert "Secure" in proxied.headers["set-cookie"]


def test_two_consoles_of_one_machine_do_not_end_each_others_sessions(browse: Browse) -> None:
    names = {browse().get("/").headers["set-cookie"].partition("=")[0] for _ in range(2)}
    assert len(names) == 2
    same = {browse(secret="a").get("/").headers["set-cookie"].partition("=")[0] for _ in range(2)}
    assert len(same) == 1


@pytest.mark.parametrize(
    ("host", "peer", "status"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 200),
        ("127.0.0.2", "127.0.0.2", 200),
        ("[::1]:8080", "::1", 200),
        ("localhost", "::ffff:127.0.0.1", 200),
        ("evil.example:8080", "127.0.0.1", 421),
        ("testserver", "127.0.0.1", 421),
        ("127.0.0.1.evil.example", "127.0.0.1", 421),
        ("10.0.0.7:8080", "127.0.0.1", 421),
        ("localhost", "10.0.0.7", 421),
        ("[", "127.0.0.1", 421),
        ("", "127.0.0.1", 421),
    ],
)
def test_without_users_only_this_machine_is_answered_at_a_name_of_its_own(
    mq: ReliableMQ, host: str, peer: str, status: int
) -> None:
    answer = visitor(console_app(mq), peer).get("/", headers={"host": host})
    assert answer.status_code == status


@pytest.mark.parametrize("name", ["x-forwarded-for", "x-real-ip", "forwarded"])
def test_without_users_no_proxy_is_answered(browse: Browse, users: Path, name: str) -> None:
    assert browse().get("/", headers={name: "10.0.0.7"}).status_code == 421
    assert browse(users=users).get("/log-in", headers={name: "10.0.0.7"}).status_code == 200


def test_a_file_that_caches_keep_has_no_cookie(browse: Browse) -> None:
    assert "set-cookie" not in browse().get("/static/console.css").headers


@pytest.mark.parametrize("host", ["[", "a b", '"><script>'])
def test_an_odd_host_is_no_bug(browse: Browse, users: Path, host: str) -> None:
    for path in ("/stubs?topic=a", "/log-in", "/none"):
        answer = browse(users=users).get(path, headers={"host": host})
        assert answer.status_code in (200, 303)
        assert "<script>" not in answer.text


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
    tries = LogInTries()
    assert [tries.begin("10.0.0.1", 100.0) for _ in range(FAILED_MAX)] == [0.0] * FAILED_MAX
    assert tries.begin("10.0.0.1", 100.0) == FAILED_SECONDS
    assert tries.begin("10.0.0.2", 100.0) == 0
    assert tries.begin("10.0.0.1", 100.0 + FAILED_SECONDS) == 0


def test_a_right_password_is_no_try_and_a_network_is_one_address() -> None:
    tries = LogInTries()
    for number in range(20):
        assert tries.begin(f"2001:db8::{number:x}", 100.0) == 0
        tries.forget(f"2001:db8::{number:x}")
    assert tries._tries == {}
    waits = [tries.begin(f"2001:db8::{number:x}", 100.0) for number in range(FAILED_MAX + 1)]
    assert waits == [0.0] * FAILED_MAX + [FAILED_SECONDS]


def test_many_at_once_have_no_more_tries_than_one_after_the_other(
    mq: ReliableMQ, users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = console_app(mq, users=users)
    number = 4 * FAILED_MAX
    looked_at: list[str] = []
    refused: list[int] = []

    def looks(_file: UserFile, _name: str, password: str) -> None:
        looked_at.append(password)
        until(lambda: len(looked_at) + len(refused) == number)  # all are on their way

    monkeypatch.setattr(UserFile, "checked", looks)

    def one(_number: int) -> None:
        if log_in(visitor(app), "ada", "wrong") == 429:
            refused.append(429)

    with ThreadPoolExecutor(number) as pool:
        list(pool.map(one, range(number)))
    assert len(looked_at) == FAILED_MAX


def test_a_header_of_a_visitor_chooses_no_address(tmp_path: Path, users: Path) -> None:
    options: list[dict[str, object]] = []

    class Config:
        def __init__(self, _app: object, **given: object) -> None:
            options.append(given)
            raise KeyboardInterrupt

    fake = SimpleNamespace(Config=Config)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(_serve(fake, None, "127.0.0.1", 0, None))
    assert options[0]["proxy_headers"] is False


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
    session = LogInSession("nonce", "ada", 100.0, "proof")
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


def test_a_session_ends_when_its_password_changes(browse: Browse, users: Path) -> None:
    client = browse(users=users)
    assert log_in(client, "vera") == 303
    add_user(users, "vera", Role.VIEWER, "another horse")
    assert client.get("/").status_code == 303
    assert log_in(client, "vera", "another horse") == 303
    add_user(users, "vera", Role.ADMIN, "another horse")
    assert log_in(client, "vera", "another horse") == 303
    assert "admin" in client.get("/stubs").text


def test_a_form_of_another_site_is_refused_even_with_a_token(browse: Browse, users: Path) -> None:
    client = browse(users=users)
    token = token_of(client.get("/log-in").text)
    form = {"token": token, "name": "ada", "password": PASSWORD}
    for site in ("cross-site", "same-site"):  # same-site: also another port of 127.0.0.1
        answer = client.post("/log-in", data=form, headers={"sec-fetch-site": site})
        assert answer.status_code == 403
    fields = form | {"more": ["x"] * 2_001}
    assert client.post("/log-in", data=fields).status_code == 400
    answer = client.post("/log-in", data=form, headers={"sec-fetch-site": "same-origin"})
    assert answer.status_code == 303


def test_a_file_of_users_that_breaks_later_is_told_and_lets_nobody_in(
    browse: Browse, users: Path
) -> None:
    client = browse(users=users)
    assert log_in(client, "ada") == 303
    kept = users.read_text()
    users.write_text(kept[:-20])
    answer = client.get("/stubs")
    assert answer.status_code == 503
    assert "the file of users cannot be read" in answer.text
    assert client.get("/healthz").status_code == 200
    users.write_text(kept)
    assert client.get("/stubs").status_code == 200


def test_it_takes_as_long_for_a_name_that_nobody_has(
    tmp_path: Path, users: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes: list[int] = []

    def hashed(*_values: object, **_named: object) -> bytes:
        hashes.append(1)
        return bytes(32)

    monkeypatch.setattr(hashlib, "scrypt", hashed)
    of_broker = tmp_path / "access.json"
    row = {"username": "ada", "password": PASSWORD, "userType": "Super", "userStatus": "enable"}
    of_broker.write_text(json.dumps({"users": [row], "acls": []}))
    for path in (users, of_broker):
        file = UserFile(path)
        counts = []
        for name in ("ada", "nobody"):
            hashes.clear()
            assert file.checked(name, "wrong") is None
            counts.append(len(hashes))
        assert counts == [1, 1]


def test_only_who_may_see_the_pages_learns_why_a_database_is_away(
    browse: Browse, users: Path
) -> None:
    away = ReliableMQ(
        "shop", database="postgresql+psycopg://nobody@127.0.0.1:1/none", broker="embedded:x"
    )
    client = browse(away, users=users)
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "failed"})
    assert log_in(client, "vera") == 303
    assert "connection failed" in client.get("/readyz").text
    away.close()


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


HASH = "scrypt$" + "0" * 32 + "$" + "0" * 64
ODD_USERS = [
    *("", "[]", "{}", '{"users": [{"role": "god"}]}', '{"users": [1]}'),
    '{"users": [{"role": "admin", "name": "ada", "password": "scrypt$zz$00"}]}',
    json.dumps({"users": [{"role": "admin", "name": "", "password": HASH}]}),
]


@pytest.mark.parametrize("text", ODD_USERS)
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
