"""Saved filters, links to traces, and messages that are found by a header."""

import base64
import json
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.console.conftest import Browse
from tests.console.doing_steps import field
from tests.console.planted_rows import ODD, insert_rows, message_id, stub
from tests.console.test_planted_text import check

from reliable_mq import ReliableMQ
from reliable_mq.console.saved_filters import COOKIE_LENGTH_MAX, FILTERS_MAX, cookie_name
from reliable_mq.console.trace_links import TraceLink, checked_template, trace_link
from reliable_mq.errors import ConfigurationError

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
TEMPLATE = "https://traces.example/t/{trace_id}?span={span_id}"


def save(client: TestClient, query: str = "topic=orders&since=-1h", **form: str) -> Any:
    """Save a filter of stubs."""
    token = field(client.get("/topics").text, "token")
    given = {"token": token, "list": "stubs", "name": "late orders", "query": query}
    return client.post("/saved", data=given | form)


def test_a_saved_filter_is_on_its_list_and_on_the_overview_until_it_is_removed(
    browse: Browse, mq: ReliableMQ
) -> None:
    client = browse()
    answer = save(client)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/stubs?topic=orders&since=-1h"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("reliable_mq_saved_")
    assert "HttpOnly; SameSite=Lax; Max-Age=34560000" in cookie
    link = '<a href="/stubs?topic=orders&amp;since=-1h"><bdi>late orders</bdi></a>'
    assert link in client.get("/stubs").text
    assert link in client.get("/").text
    assert "late orders" not in client.get("/topics").text
    save(client, "topic=other")  # the same name
    assert client.get("/stubs").text.count("<bdi>late orders</bdi>") == 1
    again = browse(mq)  # a console that was started again, with another secret
    again.cookies = client.cookies
    assert "<bdi>late orders</bdi>" in again.get("/stubs").text
    assert save(client, remove="yes").headers["location"] == "/stubs"
    assert "late orders" not in client.get("/stubs").text


def test_a_filter_is_saved_without_its_page_and_only_if_the_list_takes_it(browse: Browse) -> None:
    client = browse()
    answer = save(client, "topic=a&cursor=7&format=csv&limit=9")
    assert answer.headers["location"] == "/stubs?topic=a"
    assert save(client, "status=lost").status_code == 400
    assert save(client, name=" ").status_code == 400
    assert save(client, name="x" * 61).status_code == 400
    assert save(client, name="a\x1bb").status_code == 400
    assert save(client, list="none").status_code == 400
    assert client.post("/saved", data={"list": "stubs", "name": "x"}).status_code == 403


def test_there_is_a_limit_that_is_told(browse: Browse) -> None:
    client = browse()
    for number in range(FILTERS_MAX):
        assert save(client, "", name=f"n{number}").status_code == 303
    assert "at most 30 filters" in save(client, "", name="more").text
    other = browse()
    assert save(other, f"topic={'x' * 900}", name="a").status_code == 303
    answers = [save(other, f"topic={'x' * 900}", name=f"b{number}") for number in range(4)]
    assert "too long for a cookie" in answers[-1].text


@pytest.mark.parametrize(
    "text",
    [
        *("", "?", "e30", "bnVsbA", "W10", "W1tdXQ", "é", "x" * 9_000),
        "W1sic3R1YnMiLCJ4Iix7ImEiOjF9XV0",  # a value that is no text
        "W1sibm9uZSIsIngiLHt9XV0",  # a list that there is not
    ],
)
def test_a_cookie_that_is_no_list_of_filters_is_ignored(
    browse: Browse, mq: ReliableMQ, text: str
) -> None:
    client = browse()
    name = field_of_user(client, mq)
    cookie = f"{name}={text}".encode("latin-1", "replace")
    answer = client.get("/stubs", headers={b"cookie": cookie})
    assert answer.status_code == 200
    assert "Saved filters" not in answer.text


@pytest.mark.parametrize(
    "row",
    [
        ["stubs", "x", {"topic": "\ud800"}],
        ["stubs", "x", {"\udfff": "a"}],
        ["stubs", "x", {"topic": "\0"}],
        ["stubs", "\ud800", {}],
        ["stubs", "a\x1bb", {}],
        ["stubs", "x" * 61, {}],
        ["stubs", "x", {"topic": "y" * 4_000}],
    ],
    ids=["value", "field", "NUL", "name", "escape", "long name", "long"],
)
def test_a_filter_that_nobody_could_save_is_left_out(
    browse: Browse, mq: ReliableMQ, row: list[Any]
) -> None:
    client = browse()
    name = field_of_user(client, mq)
    text = base64.urlsafe_b64encode(json.dumps([row, ["stubs", "good", {}]]).encode()).decode()
    for path in ("/", "/stubs"):
        answer = client.get(path, headers={"cookie": f"{name}={text.rstrip('=')}"})
        assert answer.status_code == 200
        assert answer.text.count('href="/stubs?') == client.get(path).text.count('href="/stubs?')
        fits = len(text) <= COOKIE_LENGTH_MAX
        assert answer.text.count('<a href="/stubs"><bdi>') == fits
        assert answer.text.count("<bdi>good</bdi>") == fits


def field_of_user(client: TestClient, mq: ReliableMQ) -> str:
    """Return the name of the cookie of who visits a console without users."""
    page = client.get("/").text
    user = page.partition('<div class="who">')[2].partition("<bdi>")[2].partition("</bdi>")[0]
    return cookie_name(mq.name, user)


def test_an_odd_name_and_filter_are_shown_as_text(browse: Browse) -> None:
    client = browse()
    odd = ODD.replace("\u202e", "").replace("\x1b[31m", "")[:60]
    assert save(client, f"topic={'%3Cscript%3Ealert(1)%3C/script%3E'}", name=odd).status_code == 303
    for path in ("/stubs", "/"):
        check(client.get(path).text)


@pytest.mark.parametrize(
    ("header", "link"),
    [
        (PARENT, TraceLink(TRACE, SPAN, f"https://traces.example/t/{TRACE}?span={SPAN}")),
        (
            f"cc-{TRACE}-{SPAN}-01-more",
            TraceLink(TRACE, SPAN, f"https://traces.example/t/{TRACE}?span={SPAN}"),
        ),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE[1:]}-{SPAN}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        ('"><script>', None),
        ("", None),
    ],
)
def test_a_trace_is_read_as_w3c_says(header: str, link: TraceLink | None) -> None:
    assert trace_link(header, TEMPLATE) == link


@pytest.mark.parametrize(
    "template",
    [
        "javascript:alert('{trace_id}')",
        "data:text/html,{trace_id}",
        "//traces.example/{trace_id}",
        "https://traces.example/",
        "https://{trace_id}/",
        "https:///{trace_id}",
        "https://user:word@traces.example/{trace_id}",
        "https://traces.example/{trace_id}/{other}",
        "https://traces.example/{trace_id}\n",
        "https://traces.example/ {trace_id}",
        "https://[traces/{trace_id}",
        f"https://traces.example/{{trace_id}}{'x' * 2_000}",
    ],
)
def test_an_address_of_traces_that_is_none_is_refused(mq: ReliableMQ, template: str) -> None:
    from reliable_mq.console import console_app

    with pytest.raises(ConfigurationError, match="the address of traces"):
        console_app(mq, trace_url=template)
    assert checked_template("") == ""


def test_the_page_of_a_message_leads_to_its_trace(mq: ReliableMQ, browse: Browse) -> None:
    headers = [{"traceparent": PARENT}, {"traceparent": '"><script>alert(1)</script>'}]
    for number, properties in enumerate(headers):
        row = stub(1, message_id=message_id(number), properties=json.dumps(properties))
        insert_rows(mq.database, "message_stub", row)
    linked, plain = browse(trace_url=TEMPLATE), browse()
    address = f"https://traces.example/t/{TRACE}?span={SPAN}"
    page = linked.get("/message", params={"id": message_id(0)}).text
    assert f'<a href="{address}" rel="noopener noreferrer"><code>{TRACE}</code></a>' in page
    page = plain.get("/message", params={"id": message_id(0)}).text
    assert f"<code>{TRACE}</code>" in page
    assert "traces.example" not in page
    page = linked.get("/message", params={"id": message_id(1)}).text
    check(page)
    assert "names no trace" in page


def test_a_message_is_found_by_a_header_of_its_own(mq: ReliableMQ, browse: Browse) -> None:
    odd = 'é"\\%_x'
    headers = [{"CORRELATION_ID": "c-4711"}, {"x": "c-4711"}, {"traceparent": PARENT}, {"y": odd}]
    for number, properties in enumerate(headers):
        row = stub(1, message_id=message_id(number), properties=json.dumps(properties))
        insert_rows(mq.database, "message_stub", row)
    client = browse()
    page = client.get("/find", params={"q": "c-4711"}).text
    assert "They have it as a header" in page
    assert message_id(0) in page
    assert message_id(1) in page
    for number, text in ((2, TRACE), (3, odd)):
        answer = client.get("/find", params={"q": text})
        assert answer.headers["location"] == f"/message?id={message_id(number)}"
    for text in ("4711xx", "c-471", "_-4711", "ORRELATION"):  # a part, or a pattern
        assert "No source that answered" in client.get("/find", params={"q": text}).text
