"""Messages of one request are one search away, and no text of theirs is more than text."""

import json
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from tests.console.conftest import Browse
from tests.console.planted_rows import ODD, insert_rows, message_id, stub
from tests.console.test_planted_text import check

from reliable_mq import ReliableMQ
from reliable_mq.cli import found_headers
from reliable_mq.cli.main import run as run_command
from reliable_mq.console.search import search
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.errors import Unavailable

LONG = "r" * 10_000


@pytest.fixture
def shop(mq: ReliableMQ) -> ReliableMQ:
    """Give an application with messages of five requests."""
    for text in ("r-17", "r-17", "order-2", ODD, LONG):
        with mq.transaction() as tx:
            tx.send("orders", {}, properties={"CORRELATION_ID": text})
    insert_rows(mq.database, "message_stub", stub(1, message_key="order-2"))
    return mq


def test_one_search_finds_all_messages_of_a_request(
    shop: ReliableMQ, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(found_headers, "HEADER_STUBS", 0)  # an index finds it
    client = browse()
    page = client.get("/find", params={"q": "r-17"}).text
    assert "2 messages" in page
    assert "They have it as a header" not in page
    both = client.get("/find", params={"q": "order-2"}).text
    assert "2 messages" in both  # one by its key, one by its correlation id
    assert client.get("/find", params={"q": "r-1"}).text.count("No source that answered") == 1


def test_the_page_of_a_message_leads_to_the_others_of_its_request(
    shop: ReliableMQ, browse: Browse
) -> None:
    client = browse()
    (row, *_) = client.get("/stubs?correlation_id=r-17&format=json").json()
    page = client.get("/message", params={"id": row["message_id"]}).text
    assert '<a href="/stubs?correlation_id=r-17">All messages with this correlation id</a>' in page
    assert len(client.get("/stubs?correlation_id=r-17&format=json").json()) == 2
    assert len(client.get("/stubs?correlation_id=r-17&topic=none&format=json").json()) == 0
    other = client.get("/message", params={"id": stub(1)["message_id"]}).text
    assert "All messages with this correlation id" not in other


def test_a_planted_script_is_found_and_is_text(shop: ReliableMQ, browse: Browse) -> None:
    client = browse()
    answer = client.get("/find", params={"q": ODD})
    assert answer.status_code == 303
    page = client.get(answer.headers["location"]).text
    check(page)
    link = page.partition('<a href="/stubs?correlation_id=')[2].partition('"')[0]
    listed = client.get(f"/stubs?correlation_id={unescape(link)}")
    check(listed.text)
    assert listed.text.count('<a class="id"') == 1


def test_an_id_that_no_address_has_room_for_is_told(shop: ReliableMQ, browse: Browse) -> None:
    client = browse()
    assert client.get("/find", params={"q": LONG}).status_code == 400
    answer = client.get("/stubs", params={"correlation_id": LONG})
    assert answer.status_code == 400
    assert "correlation_id has at most 1000 characters" in answer.text
    (row,) = found_headers.CorrelationSearch(LONG, (), shop._declared.sensitive_of).ids(
        [shop.database]
    )
    page = client.get("/message", params={"id": row}).text
    check(page)
    assert "All messages with this correlation id" not in page


@pytest.mark.parametrize("name", ["correlation_id", "X-Correlation-ID"])
def test_a_masked_id_is_neither_shown_nor_found(mq: ReliableMQ, browse: Browse, name: str) -> None:
    mq.topic("orders", sensitive=[name])
    with mq.transaction() as tx:
        sent = tx.send("orders", {}, properties={name: "r-17"})
        tx.send("other", {}, properties={name: "r-17"})
    client = browse()
    assert client.get("/find", params={"q": "r-17"}).status_code == 303  # the other one
    assert sent not in client.get("/stubs?correlation_id=r-17").text
    page = client.get("/message", params={"id": sent}).text
    assert "r-17" not in page
    assert "All messages with this correlation id" not in page


def test_the_filter_is_refused_where_all_ids_are_masked(postgres_url: str, browse: Browse) -> None:
    made = ReliableMQ(
        "shop", database=postgres_url, broker="127.0.0.1:1", sensitive=["correlation_id"]
    )
    made.create_tables()
    answer = browse(made).get("/stubs?correlation_id=r-17")
    assert answer.status_code == 400
    assert "correlation ids are masked by the setting" in answer.text
    made.close()


def test_a_header_of_an_older_release_is_found_among_the_newest(
    mq: ReliableMQ, browse: Browse
) -> None:
    row = stub(1, message_id=message_id(7), properties=json.dumps({"CORRELATION_ID": "r-1777"}))
    insert_rows(mq.database, "message_stub", row)
    answer = browse().get("/find", params={"q": "r-1777"})
    assert answer.headers["location"] == f"/message?id={message_id(7)}"


def test_stubs_of_the_release_before_are_found_beside_those_of_this_one(
    shop: ReliableMQ, browse: Browse
) -> None:
    """During a deployment, processes of both send messages of one request."""
    headers = json.dumps({"X-Correlation-ID": "request-17"})
    for number in (2, 3):
        old = stub(number, properties=headers, correlation_id=None)
        insert_rows(shop.database, "message_stub", old)
    other = stub(4, properties=json.dumps({"note": "request-17"}), message_key="request-17")
    insert_rows(shop.database, "message_stub", other)
    with shop.transaction() as tx:
        tx.send("orders", {}, correlation_id="request-17")
    page = browse().get("/find", params={"q": "request-17"}).text
    assert "4 messages" in page  # one by its key, three by their correlation id


def test_the_list_says_which_stubs_it_lacks_and_leads_to_the_search(
    shop: ReliableMQ, browse: Browse
) -> None:
    headers = json.dumps({"X-Correlation-ID": "request-17 &<b>"})
    old = stub(2, properties=headers, correlation_id=None)
    insert_rows(shop.database, "message_stub", old)
    client = browse()
    page = client.get("/stubs", params={"correlation_id": "request-17 &<b>"}).text
    assert "Stubs of an older release are not in this list" in page
    link = page.partition('href="/find?')[2].partition('"')[0]
    found = client.get(f"/find?{unescape(link)}")
    assert found.headers["location"] == f"/message?id={old['message_id']}"
    short = client.get("/stubs?correlation_id=r-17").text  # a search takes it for no header
    assert "Stubs of an older release are not in this list" in short
    assert 'href="/find?' not in short
    assert "older release" not in client.get("/stubs?topic=orders").text


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_says_which_stubs_its_list_lacks(
    shop: ReliableMQ, capfd: pytest.CaptureFixture[str], as_json: bool
) -> None:
    url = shop.database.url.render_as_string(hide_password=False)
    words = ("stub", "list", "--db", url, *(("--json",) if as_json else ()))
    capfd.readouterr()
    for more, is_told in ((("--correlation-id", "order 2"), not as_json), ((), False)):
        with pytest.raises(SystemExit):
            run_command((*words, *more))
        out = capfd.readouterr().out
        hint = "stubs of an older release are not listed; to look for them: reliable-mq stub show"
        assert (hint in out) is is_told
        assert ("show 'order 2'" in out) is is_told


def test_blanks_at_the_ends_of_an_id_are_found_by_the_box_as_by_the_list(
    shop: ReliableMQ, browse: Browse
) -> None:
    with shop.transaction() as tx:
        blank = tx.send("orders", {}, correlation_id=" r-18 ")
    client = browse()
    listed = client.get("/stubs", params={"correlation_id": " r-18 ", "format": "json"}).json()
    assert [row["message_id"] for row in listed] == [blank]
    answer = client.get("/find", params={"q": " r-18 "})
    assert answer.headers["location"] == f"/message?id={blank}"
    assert "2 messages" in client.get("/find", params={"q": "  r-17\t"}).text
    key = stub(9, message_key=" order-9")
    insert_rows(shop.database, "message_stub", key)
    answer = client.get("/find", params={"q": " order-9"})
    assert answer.headers["location"] == f"/message?id={key['message_id']}"


def test_newer_messages_that_mask_an_id_hide_no_other(mq: ReliableMQ, browse: Browse) -> None:
    mq.topic("orders", sensitive=["correlation_id"])
    with mq.transaction() as tx:
        shown = tx.send("other", {}, correlation_id="r-17")
        for _ in range(2 * found_headers.MATCHES_MAX):
            tx.send("orders", {}, correlation_id="r-17")
    answer = browse().get("/find", params={"q": "r-17"})
    assert answer.headers["location"] == f"/message?id={shown}"


@pytest.fixture
def two(postgres_url: str, tmp_path: Path) -> Iterator[ReliableMQ]:
    """Give an application with two databases; the second one has a stub of an older release."""
    made = ReliableMQ(
        "shop",
        databases={"new": postgres_url, "old": f"sqlite:///{tmp_path}/old.db"},
        broker=f"embedded:{tmp_path}/store",
    )
    made.create_tables()
    headers = json.dumps({"CORRELATION_ID": "request-17"})
    insert_rows(made.databases["old"], "message_stub", stub(2, properties=headers))
    yield made
    made.close()


def test_stubs_of_an_older_release_in_another_database_are_found(
    two: ReliableMQ, browse: Browse
) -> None:
    with two.transaction(database="new") as tx:
        tx.send("orders", {}, correlation_id="request-17")
    assert "2 messages" in browse(two).get("/find", params={"q": "request-17"}).text


def test_a_database_that_is_away_is_named_also_beside_the_message_that_is_found(
    shop: ReliableMQ, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_index(*_: object) -> list[str]:
        raise Unavailable("gone")

    monkeypatch.setattr(found_headers.CorrelationSearch, "by_index", by_index)
    found = search(ConsoleSources(shop), str(stub(1)["message_id"]))
    assert found.away == ("Database main, by correlation id: gone",)
    assert len(found.messages) == 1


def test_an_id_finds_its_message_and_those_that_name_it_as_their_request(
    shop: ReliableMQ, browse: Browse
) -> None:
    first = stub(1)["message_id"]
    client = browse()
    assert client.get("/find", params={"q": first}).status_code == 303
    with shop.transaction() as tx:
        tx.send("orders", {}, correlation_id=first)
    assert "2 messages" in client.get("/find", params={"q": first}).text
