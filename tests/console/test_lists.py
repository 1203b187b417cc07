"""A list: its address is its filter, its pages meet, and CSV and JSON have all that is filtered."""

import csv
import html
import io

import msgspec
import pytest
from tests.console.conftest import Browse
from tests.console.planted_rows import NOW, as_of_now, insert_rows, log, stub

from reliable_mq import ReliableMQ
from reliable_mq.console.list_stubs import STUBS
from reliable_mq.console.lists import ListPage, all_rows, wanted_of
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.errors import Unavailable


def rows_of(text: str) -> list[str]:
    """Return the ids in the table of a page."""
    return [
        part.split("</bdi>")[0]
        for part in text.split('<a class="id"')[1:]
        for part in [part.split("<bdi>")[1]]
    ]


def test_pages_meet_and_show_each_stub_once(mq: ReliableMQ, browse: Browse) -> None:
    rows = [stub(number) for number in range(25)]
    insert_rows(mq.database, "message_stub", *rows)
    client, seen, path = browse(), [], "/stubs?limit=10"
    while path:
        page = client.get(path)
        seen += rows_of(page.text)
        _, _, after = page.text.partition('rel="next" href="')
        path = after.partition('"')[0].replace("&amp;", "&")
    assert seen == [row["message_id"] for row in reversed(rows)]


@pytest.mark.parametrize(
    ("filter_text", "found"),
    [
        ("topic=orders", [3, 2, 1]),
        ("topic=returns", [4]),
        ("escalated=yes", [2]),
        ("escalated=no", [4, 3, 1]),
        ("escalated=", [4, 3, 2, 1]),
        ("status=confirmed", [3]),
        ("key=order-1", [1]),
        ("since=-90m", [1]),
        ("until=-150m&topic=orders", [3]),
        ("group=billing&topic=orders", [3, 2]),
        ("note_holds=out%20of", [2]),
        ("topic=&key=", [4, 3, 2, 1]),
    ],
)
def test_a_filter_is_an_address(
    mq: ReliableMQ, browse: Browse, filter_text: str, found: list[int]
) -> None:
    rows = [
        stub(1),
        stub(2, resend_time=None, note="out of sends"),
        stub(3, status=1, resend_time=None),
        stub(4, topic="returns"),
    ]
    insert_rows(mq.database, "message_stub", *rows)
    insert_rows(mq.database, "consume_log", log(rows[0]))
    page = browse().get(as_of_now(f"/stubs?{filter_text}"))
    assert rows_of(page.text) == [rows[number - 1]["message_id"] for number in found]


@pytest.mark.parametrize(
    ("query", "line"),
    [
        ("status=lost", "status takes unconfirmed, confirmed, voided, not 'lost'"),
        ("escalated=perhaps", "escalated takes yes or no, not 'perhaps'"),
        ("since=yesterday", "since takes a time like 2026-11-20T08:00 (UTC) or -2h"),
        (
            "colour=red",
            "there is no filter 'colour'; this list has correlation_id, cursor, database",
        ),
        ("topic=a&topic=b", "topic is given twice: give it once"),
        ("limit=0", "limit takes 1 to 500, not '0'"),
        ("limit=%D9%A3", "limit takes 1 to 500"),
        ("limit=0000000019999999", "limit takes 1 to 500"),
        ("cursor=abc", "cursor is no place in this list: 'abc'"),
        ("database=other", "there is no database 'other'; known: main"),
        ("format=xml", "format takes html, csv, json, not 'xml'"),
        ("topic=a%00b", "topic has a character that no row has"),
        (f"topic={'x' * 1001}", "topic has at most 1000 characters"),
    ],
)
def test_a_wrong_filter_is_told_in_one_line(browse: Browse, query: str, line: str) -> None:
    client = browse()
    page = client.get(f"/stubs?{query}")
    assert page.status_code == 400
    assert line in page.text.replace("&#39;", "'")
    for form in ("json", "csv") if "format" not in query else ():
        answer = client.get(f"/stubs?{query}&format={form}")
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(line)


def test_a_cursor_that_no_database_takes_is_told(browse: Browse) -> None:
    answer = browse().get("/consume-logs", params={"cursor": '["\\ud800", "billing"]'})
    assert answer.status_code == 400
    assert "cursor is no place in this list" in answer.text


def test_csv_and_json_have_all_pages_of_the_filter(mq: ReliableMQ, browse: Browse) -> None:
    rows = [stub(number) for number in range(12)] + [stub(20, topic="returns")]
    insert_rows(mq.database, "message_stub", *rows)
    client = browse()
    table = list(csv.DictReader(io.StringIO(client.get("/stubs?topic=orders&format=csv").text)))
    found = client.get("/stubs?topic=orders&format=json&limit=5").json()
    assert len(table) == len(found) == 12
    assert [row["message_id"] for row in table] == [row["message_id"] for row in found]
    assert table[0]["create_date"] == found[0]["create_date"].replace(" ", "T")
    assert datetime_of(table[-1]["create_date"]) == NOW.isoformat()
    assert client.get("/stubs?topic=none&format=json").json() == []


def test_a_file_ends_with_an_error_if_a_source_goes_away_behind_its_first_page(
    mq: ReliableMQ,
) -> None:
    pages = [ListPage([{"n": 1}], "1"), ListPage((), "", ("broker b: it is away",))]
    kind = msgspec.structs.replace(STUBS, page=lambda _sources, _wanted: pages.pop(0))
    sources = ConsoleSources(mq)
    wanted = wanted_of(kind, [], ["main"])
    rows = all_rows(kind, sources, wanted, kind.page(sources, wanted))
    assert next(rows) == {"n": 1}
    with pytest.raises(Unavailable, match="broker b: it is away"):
        next(rows)


KEY = '\U0001f468\u200d\U0001f469\u200d\U0001f467 \u202e"<b>&'


def test_a_field_sends_back_what_was_typed(mq: ReliableMQ, browse: Browse) -> None:
    insert_rows(mq.database, "message_stub", stub(1, message_key=KEY), stub(2))
    page = browse().get("/stubs", params={"key": KEY}).text
    assert len(rows_of(page)) == 1
    field = page.partition('name="key" value="')[2].partition('"')[0]
    assert field.isprintable()
    assert html.unescape(field) == KEY


def datetime_of(text: str) -> str:
    return text


def test_an_empty_list_says_what_to_do(browse: Browse) -> None:
    assert "Take a condition away" in browse().get("/stubs?topic=none").text
