"""Requests that nobody sends by accident: of roles that may not, with forged cookies and headers.

No answer is a bug, nothing is done, and the console goes on.
"""

import base64
import http.client
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from starlette.testclient import TestClient
from tests.console.browser.conftest import serving
from tests.console.conftest import Browse, visitor
from tests.console.doing_steps import field, look
from tests.console.planted_rows import ODD, insert_rows, plant_everywhere, stub
from tests.console.test_doing import acts, parked
from tests.console.test_guard import PASSWORD, log_in, token_of
from tests.console.test_planted_text import check

from reliable_mq import ReliableMQ
from reliable_mq.console import console_app
from reliable_mq.console.all_deeds import DEEDS
from reliable_mq.console.all_lists import ROW_LISTS
from reliable_mq.console.deeds import Deed
from reliable_mq.console.lists import FilterFault, RowList, wanted_of
from reliable_mq.console.sessions import KNOWN_MAX, EndedSessions, LogInSession
from reliable_mq.console.users import Role, add_user
from reliable_mq.plain_text import printable
from reliable_mq.testing.local_servers import free_port

NAMES = {Role.VIEWER: "vera", Role.OPERATOR: "otto", Role.ADMIN: "ada"}
HOSTILE = (
    *("", " ", "%", "%%", "_", "\\", "'", '"', "';--", "' OR ''='", "*", "/", "../..", "\r\nX: y"),
    *("\x1b[2J", "\u202e", "😀", "é" * 500, "1" * 400, "-1", "9" * 18, "1e9", "NaN", "null"),
    *("[]", "[1,2]", '["a","b"]', '{"a": 1}', "[[[[", "-9999999999h", "-1h-1h", "0001-01-01"),
    *(
        "0001-01-01T00:00:00",
        "9999-12-31T23:59:59",
        "2026-02-30",
        "-0h",
        "yes",
        "unconfirmed",
        "run-1",
        ODD,
    ),
)
"""Values for any field of any filter. Each is text that somebody may type or send."""
SOME = 6
"""So many of them a page is asked for by a parameter of text."""


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """Give a file with a user of each role."""
    path = tmp_path / "users.json"
    for role, name in NAMES.items():
        add_user(path, name, role, PASSWORD)
    return path


def of_role(browse: Browse, users: Path, role: Role) -> TestClient:
    client = browse(users=users, secret="one")
    assert log_in(client, NAMES[role]) == 303
    return client


def form_of(client: TestClient, deed: Deed) -> dict[str, str]:
    """Return a form for a deed, as the page of an admin would have it."""
    form = {"deed": deed.name, "token": field(client.get("/topics").text, "token"), "scope": "all"}
    names = ("topic", "group", "id", "to", "body")
    return form | {f"more-{name}": "start" if name == "to" else "orders" for name in names}


@pytest.mark.parametrize("role", Role)
def test_who_may_not_gets_no_preview_of_a_deed(
    mq: ReliableMQ, browse: Browse, users: Path, role: Role
) -> None:
    insert_rows(mq.database, "message_stub", parked(1))
    client = of_role(browse, users, role)
    for deed in DEEDS:
        answer = client.post("/do", data=form_of(client, deed))
        assert (answer.status_code == 403) == (not role.may(deed.role)), (deed, answer.text)
    assert acts(mq) == []


def test_a_viewer_does_nothing_at_any_address_of_doing(mq: ReliableMQ, users: Path) -> None:
    insert_rows(mq.database, "message_stub", parked(1))
    app = console_app(mq, users=users)
    admin, viewer = visitor(app), visitor(app)
    assert (log_in(admin, "ada"), log_in(viewer, "vera")) == (303, 303)
    sealed = field(look(admin, "stub-retry").text, "sealed")
    own = {"token": field(viewer.get("/topics").text, "token")}
    stolen = {"sealed": sealed, "why": "because", "rate": "5", "user": "ada", "role": "admin"}
    assert viewer.post("/do/start", data=own | stolen).status_code == 403
    assert viewer.get("/dead-letters/copy?group=billing&id=1").status_code == 403
    started = admin.post(
        "/do/start", data=stolen | {"token": field(admin.get("/topics").text, "token")}
    )
    place = started.headers["location"]
    assert viewer.post(f"{place}/cancel", data=own).status_code == 403
    assert viewer.get(place).status_code == 200  # to look is no deed


@pytest.mark.parametrize("path", ["/do", "/do/start", "/works/1/cancel", "/saved", "/log-out"])
def test_an_address_that_changes_something_takes_no_get(browse: Browse, path: str) -> None:
    answer = browse().get(f"{path}?deed=stub-void&scope=all&why=because&rate=5")
    assert answer.status_code == 405
    for method in ("PUT", "DELETE", "PATCH"):
        assert browse().request(method, path).status_code == 405


def forged(cookie: str) -> Iterator[str]:
    """Yield cookies that differ from one of the console, or are none."""
    body, _, mac = cookie.partition(".")
    fields = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    fields[1] = "ada"
    other = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")
    yield from (f"{other}.{mac}", f"{body}.", f".{mac}", body, ".", "", "=", "a.b.c", "x" * 5_000)
    yield from (f"{body}.{mac}0", f"{body}=.{mac}", f"{body}.{mac.upper()}", f'"{body}.{mac}"x')
    for place in range(0, len(cookie), 7):
        letter = "A" if cookie[place] != "A" else "B"
        yield cookie[:place] + letter + cookie[place + 1 :]


def test_a_forged_cookie_is_nobody(browse: Browse, users: Path) -> None:
    viewer = of_role(browse, users, Role.VIEWER)
    ((name, cookie),) = viewer.cookies.items()
    assert viewer.get("/stubs").status_code == 200
    for text in forged(cookie):
        stranger = browse(users=users, secret="one")
        answer = stranger.get("/stubs", headers={"cookie": f"{name}={text}"})
        assert (answer.status_code, "log-in" in answer.headers.get("location", "")) == (303, True)


def test_a_cookie_that_was_copied_is_nobody_after_the_log_out(mq: ReliableMQ, users: Path) -> None:
    app = console_app(mq, users=users)
    owner, thief = visitor(app), visitor(app)
    assert log_in(owner, "ada") == 303
    thief.cookies.update(dict(owner.cookies))
    assert thief.get("/stubs").status_code == 200
    assert owner.post("/log-out", data={"token": token_of(owner.get("/").text)}).status_code == 303
    assert thief.get("/stubs").status_code == 303
    assert log_in(owner, "ada") == 303
    assert (owner.get("/stubs").status_code, thief.get("/stubs").status_code) == (200, 303)


def test_ended_sessions_are_forgotten_when_their_time_is_over() -> None:
    ended, old = EndedSessions(), LogInSession("old", "ada", 100.0)
    ended.add(old, 50.0)
    assert ended.has(old)
    for number in range(KNOWN_MAX + 5):
        ended.add(LogInSession(str(number), "ada", 300.0), 101.0)
    assert not ended.has(old)
    assert len(ended._ends) == KNOWN_MAX
    assert ended.has(LogInSession(str(KNOWN_MAX), "ada", 300.0))


def test_no_text_of_a_request_becomes_a_header(mq: ReliableMQ, browse: Browse, users: Path) -> None:
    planted = plant_everywhere(mq.database, "a\r\nSet-Cookie: forged=1\r\n\r\n<script>")
    local, stranger = browse(), browse(users=users)
    text = quote("\r\nSet-Cookie: forged=1\r\n\r\n<script>", safe="")
    known = {"token": field(stranger.get("/log-in").text, "token")}
    known |= {"name": "ada", "password": PASSWORD}
    answers = [
        local.get(f"/find?q={quote(planted, safe='')}"),
        local.get(f"/stubs?format=csv&topic={text}"),
        local.get("/", headers={"x-forwarded-proto": "https, http"}),
        stranger.get(f"/stubs?topic={text}"),
        stranger.get(f"/{text}"),
        *(stranger.post("/log-in", data=known | {"to": each}) for each in ("/\r\nX: y", "/\u2028")),
    ]
    for answer in answers:
        assert "forged" not in answer.headers.get("set-cookie", "")
        assert "x" not in answer.headers
        assert answer.status_code < 500


def refusal(kind: RowList, name: str, text: str) -> str:
    """Return why a list does not take a value for a parameter; "": it does."""
    try:
        wanted_of(kind, [(name, text)], ["default"])
    except FilterFault as fault:
        return str(fault)
    return ""


def asked_of(kind: RowList) -> Iterator[tuple[str, str]]:
    """Yield which values a page of a list is asked for, by the parameters.

    All values that a list takes for a time, as they go into its statements; half of them for a
    cursor, which the list reads by itself, and for the next list the others; for another parameter
    some, and for the next one others. Of those that are refused, one: all end at the same place.
    """
    moments = {each.name for each in kind.fields if each.kind == "moment"}
    own = ["cursor", "limit", "database", "format", ODD]
    values = itertools.cycle(HOSTILE)
    for name in [each.name for each in kind.fields] + own:
        said = {text: refusal(kind, name, text) for text in HOSTILE}
        assert all(printable(each) == each for each in said.values())
        taken = [text for text in HOSTILE if not said[text]]
        refused = [text for text in HOSTILE if said[text]]
        if name == "cursor":
            taken = taken[ROW_LISTS.index(kind) % 2 :: 2]
        elif name not in moments:
            taken = [text for text in itertools.islice(values, SOME) if text in taken]
        yield from ((name, text) for text in (*taken, *refused[:1]))


@pytest.mark.parametrize("kind", ROW_LISTS, ids=lambda each: each.name)
def test_no_value_of_a_filter_is_a_bug(mq: ReliableMQ, browse: Browse, kind: RowList) -> None:
    insert_rows(mq.database, "message_stub", parked(1), stub(2))
    client = browse()
    for name, text in asked_of(kind):
        answer = client.get(f"/{kind.name}", params={name: text})
        assert answer.status_code in (200, 400), (name, text)
        if not answer.headers["content-type"].startswith(("text/csv", "application/json")):
            check(answer.text)


@pytest.fixture
def address(mq: ReliableMQ) -> Iterator[str]:
    """Give the address of a console that is served as its command serves it."""
    with serving(console_app(mq), free_port()) as served:
        yield served


def test_a_very_long_address_is_refused_and_the_console_goes_on(address: str) -> None:
    place = urlsplit(address)
    for length in (2_000, 60_000, 70_000, 1_000_000):
        connection = http.client.HTTPConnection(place.netloc, timeout=30)
        try:
            connection.request("GET", f"/stubs?topic={'a' * length}")
            answer = connection.getresponse()
            assert answer.status in (400, 414, 431)
            answer.read()
        except (ConnectionError, http.client.HTTPException):
            assert length > 2_000  # the server has hung up
        finally:
            connection.close()
    connection = http.client.HTTPConnection(place.netloc, timeout=30)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
