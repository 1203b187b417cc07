"""The page of a message: its seven stations, its attempts, its siblings, and where it is found."""

import html
import json
from datetime import timedelta
from pathlib import Path

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.console.conftest import Browse
from tests.console.planted_rows import NOW, insert_rows, log, message_id, run, stub
from tests.waiting import until

from reliable_mq import ReceivedMessage, Reject, ReliableMQ
from reliable_mq.console.message_page import _in_list
from reliable_mq.console.stations import Reached, Station, group_stories, stations
from reliable_mq.database.attempt_list import AttemptEnd, line_of
from reliable_mq.escalate.timeline import MessageHistory
from reliable_mq.measuring.sql_last_run import LastRun

STUB = {
    **dict.fromkeys(("owner", "lease_until", "note", "deliver_time", "broker_name", "queue_id")),
    "given_up_by": "",
    "given_up": False,
    "missed": False,
    "tag": "",
    "ordering_key": "",
    "properties": "{}",
    "offset": None,
    **stub(1),
}
LOG = {**dict.fromkeys(("owner", "lease_until", "note", "failure", "failures")), **log(STUB)}


def reached(history: MessageHistory, last: LastRun | None = None) -> list[Reached]:
    return [each.reached for each in stations(history, [], last)]


D, R, F, W, U = Reached.DONE, Reached.RUNNING, Reached.FAILED, Reached.WAITS, Reached.UNKNOWN


@pytest.mark.parametrize(
    ("history", "way"),
    [
        (MessageHistory(), [U, U, W, D, D, U, U]),
        (MessageHistory(stub=STUB | {"count": 0}), [D, W, W, W, W, W, U]),
        (MessageHistory(stub=STUB | {"owner": "p-1"}), [D, R, W, W, W, W, U]),
        (MessageHistory(stub=STUB | {"resend_time": None}), [D, F, W, W, W, F, U]),
        (MessageHistory(stub=STUB | {"status": 2}), [D, F, W, W, W, F, U]),
        (
            MessageHistory(stub=STUB | {"broker_name": "b", "queue_id": 1, "offset": 2}),
            [D, D, D, W, W, W, U],
        ),
        (
            MessageHistory(
                stub=STUB | {"broker_name": "b"}, logs=[LOG | {"state": 0, "owner": "p-1"}]
            ),
            [D, D, D, R, W, W, U],
        ),
        (
            MessageHistory(
                stub=STUB | {"broker_name": "b"}, logs=[LOG | {"state": 0, "note": "x"}]
            ),
            [D, D, D, D, F, W, U],
        ),
        (MessageHistory(stub=STUB | {"status": 1}, logs=[LOG]), [D, D, D, D, D, D, U]),
    ],
    ids=lambda value: "" if isinstance(value, list) else "history",
)
def test_each_station_says_whether_it_was_reached(
    history: MessageHistory, way: list[Reached]
) -> None:
    assert reached(history) == way


def test_the_last_station_says_what_the_last_run_found() -> None:
    last = LastRun("run-2", NOW, NOW, None, None, 0, is_clean=True, verdicts={})
    settled = MessageHistory(stub=STUB | {"status": 1}, logs=[LOG])

    def station(history: MessageHistory, run_: LastRun) -> Station:
        return stations(history, [], run_)[-1]

    assert station(settled, last).evidence == ("no finding in run run-2",)
    early = LastRun("run-2", NOW, NOW - timedelta(days=9), None, None, 0, True, {})
    assert station(settled, early).reached is Reached.WAITS
    finding = {"verdict": "LOST", "run_id": "run-2", "create_date": NOW}
    found = MessageHistory(stub=STUB, findings=[finding])
    assert station(found, last).reached is Reached.FAILED
    later = LastRun("run-3", NOW, NOW, None, None, 0, is_clean=True, verdicts={})
    assert station(found, later).evidence[-1] == "not found any more in run run-3"


def test_the_attempts_of_a_group_have_their_error_and_duration() -> None:
    begun = LOG["create_date"]
    failures = line_of(1, begun.timestamp() + 0.25, AttemptEnd.FAILED, "no card")
    row = LOG | {"attempt": 2, "failures": failures}
    (story,) = group_stories(MessageHistory(stub=STUB, logs=[row]))
    first, second = story.attempts
    assert (first.number, first.outcome, first.reason, first.seconds) == (
        *(1, "failed", "no card"),
        0.25,
    )
    assert (second.number, second.outcome, second.seconds) == (2, "effect committed", None)


def test_a_row_that_was_written_at_once_has_no_duration() -> None:
    at_once = LOG | {"attempt": 1, "consume_date": LOG["create_date"]}
    (story,) = group_stories(MessageHistory(stub=STUB, logs=[at_once]))
    assert [each.seconds for each in story.attempts] == [None]
    begun = LOG["create_date"].timestamp()
    lines = [line_of(1, begun + number, AttemptEnd.POSTPONED, "no") for number in (0.0, 3.0)]
    row = LOG | {"attempt": 1, "failures": "".join(lines)}
    (story,) = group_stories(MessageHistory(stub=STUB, logs=[row]))
    assert [each.seconds for each in story.attempts] == [None, None, None]


def test_a_message_page_has_the_evidence_and_leads_to_what_can_be_done(
    mq: ReliableMQ, browse: Browse
) -> None:
    key = "a/b%'&"
    planted = stub(1, message_key=key, resend_time=None, given_up_by="billing", note="no card")
    insert_rows(mq.database, "message_stub", planted)
    for name in ("run-1", "run-2"):
        insert_rows(mq.database, "reconcile_run", run(run_id=name, findings=1, is_clean=False))
        row = {"run_id": name, "message_id": planted["message_id"], "topic": "orders"}
        more = {"consumer_group": "billing", "verdict": "stuck", "create_date": NOW}
        evidence = {"evidence": json.dumps({"commit_log_offset": f"4976 in {name}"})}
        insert_rows(mq.database, "reconcile_finding", row | more | evidence)
    client = browse()
    page = client.get("/message", params={"id": planted["message_id"]}).text
    assert "What reconciliation found" in page
    assert "4976 in run-2" in page
    assert "4976 in run-1" not in page
    _, _, rest = page.partition('Act on it in the list: <a href="')
    path = rest.partition('"')[0].replace("&amp;", "&")
    assert [row["message_key"] for row in client.get(f"{path}&format=json").json()] == [key]
    assert '<a href="/dead-letters?key=' in page


def test_a_stub_without_a_key_is_found_in_its_list_by_its_moment(
    mq: ReliableMQ, browse: Browse
) -> None:
    row = stub(1, resend_time=None, message_key="")
    insert_rows(mq.database, "message_stub", row, stub(2, message_key=""))
    page = browse().get("/message", params={"id": str(row["message_id"])}).text
    place = html.unescape(page.partition('list: <a href="')[2].partition('"')[0])
    listed = browse().get(f"{place}&format=json").json()
    assert [each["message_id"] for each in listed] == [row["message_id"]]


def test_a_stub_is_found_in_the_list_of_its_database() -> None:
    assert _in_list(STUB, "billing")["database"] == "billing"
    assert "database" not in _in_list(STUB, "")
    assert _in_list({}, "billing") == {}


def test_of_many_attempts_the_last_ones_are_seen_at_once(mq: ReliableMQ, browse: Browse) -> None:
    planted = stub(1)
    insert_rows(mq.database, "message_stub", planted)
    begun = NOW.timestamp()
    lines = [line_of(1, begun + each, AttemptEnd.POSTPONED, f"no {each}") for each in range(60)]
    failed = {"failures": "".join(lines), "state": 0, "consume_date": None}
    insert_rows(mq.database, "consume_log", log(planted) | failed)
    page = browse().get("/message", params={"id": planted["message_id"]}).text
    assert "55 earlier attempts</summary>" in page
    assert "more in between</summary>" in page
    assert all(page.count(f"<bdi>no {each}</bdi>") == 1 for each in range(60))


def test_a_message_is_found_by_id_and_by_key_and_has_its_siblings(
    mq: ReliableMQ, browse: Browse
) -> None:
    moment = NOW - timedelta(minutes=5)
    rows = [
        stub(number, message_id=message_id(number), message_key=key, create_date=moment)
        for number, key in enumerate(["a/b%'\"", "a/b%'\"", "other"])
    ]
    insert_rows(mq.database, "message_stub", *rows)
    insert_rows(mq.database, "reconcile_run", run())
    client = browse()
    answer = client.get("/find", params={"q": "other"})
    assert answer.headers["location"] == f"/message?id={message_id(2)}"
    both = client.get("/find", params={"q": "a/b%'\""}).text
    assert "2 messages" in both
    page = client.get("/message", params={"id": f"{message_id(2)}"}).text
    assert "Committed at the same instant" in page
    assert message_id(0) in page
    assert message_id(1) in page
    assert "not asked: it runs inside the application" in page


def test_names_of_topics_and_groups_are_found(browse: Browse) -> None:
    page = browse().get("/find?q=BILL").text
    assert "/queues?group=billing" in page
    assert "/stubs?topic=orders" in browse().get("/find?q=rder").text
    assert "No " in browse().get("/find?q=nothing").text


@pytest.mark.parametrize("path", ["/message", "/message?id=a%00", f"/message?id={'x' * 301}"])
def test_what_is_no_id_is_refused(browse: Browse, path: str) -> None:
    assert browse().get(path).status_code == 400


def test_an_unknown_message_is_not_found(browse: Browse) -> None:
    answer = browse().get("/find?q=nothing%00")
    assert answer.status_code == 400
    answer = browse().get("/message?id=nothing")
    assert "No source that answered knows this message" in answer.text


@pytest.mark.processes
def test_the_whole_life_of_a_message_is_on_its_page(
    postgres_url: str, tmp_path: Path, browse: Browse
) -> None:
    with ReliableMQBroker(tmp_path / "broker", "ASYNC_FLUSH") as broker:
        shop = ReliableMQ("shop", database=postgres_url, broker=broker.name_server_address)

        @shop.consumer("orders", group="billing", max_attempts=1)
        def pay(message: ReceivedMessage) -> None:
            if b"4711" in message.body:
                raise Reject("the card is stolen")

        shop.create_tables()
        with shop:
            for number in (4711, 4712, 4712):
                with shop.transaction() as tx:
                    tx.send("orders", {"id": number}, key=number)
            client = browse(shop)
            until(lambda: "dead letter of billing" in find(client, "4711"))
            page = find(client, "4711")
            assert "Act now" in client.get("/").text
            for word in ("attempt 1 rejected", "the card is stolen", "stored in orders", "JSON"):
                assert word in page
            until(lambda: "settled: consumed by billing" in find_first(client, "4712"))
            page = find_first(client, "4712")
            assert "Messages with the same key" in page
            assert "stored</span>" in page
            until(lambda: "billing" in client.get("/overview/live").text)
            offset_id = json.loads(client.get("/stubs?key=4711&format=json").text)[0]
            assert offset_id["message_key"] == "4711"


def find(client, text: str) -> str:  # type: ignore[no-untyped-def]
    """Return the page of the only message with a key."""
    return str(client.get("/find", params={"q": text}, follow_redirects=True).text)


def find_first(client, key: str) -> str:  # type: ignore[no-untyped-def]
    """Return the page of the newest stub with a key."""
    newest = client.get("/stubs", params={"key": key, "format": "json"}).json()[0]
    return str(client.get("/message", params={"id": newest["message_id"]}).text)
