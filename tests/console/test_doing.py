"""Doing: for one row, for the marked, for all that match; preview, reason, cancel, two people."""

import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient
from tests.console.conftest import Browse
from tests.console.doing_steps import WHY, done, ended, field, look, start, state_of
from tests.console.planted_rows import NOW, ODD, insert_rows, stub
from tests.console.test_guard import PASSWORD, log_in
from tests.console.test_planted_text import check
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.console import doing
from reliable_mq.console.deeds_stubs import RETRY_STUBS
from reliable_mq.console.users import Role, add_user
from reliable_mq.console.work import Order, Outcome, Part, Works
from reliable_mq.errors import UsageError

RETRY, VOID = "stub-retry", "stub-void"


def parked(number: int, **values: object) -> dict[str, object]:
    """Return a stub that waits for a person."""
    return stub(number, **{"resend_time": None, "count": 8, **values})


def states(mq: ReliableMQ) -> dict[str, tuple[int, int]]:
    """Return status and sends of each stub, by message id."""
    column = mq.database.stubs.c
    with mq.database.engine.connect() as connection:
        rows = connection.execute(select(column.message_id, column.status, column.count))
        return {row.message_id: (row.status, row[2]) for row in rows}


def acts(mq: ReliableMQ) -> list[tuple[str, str, int, str | None]]:
    """Return actor, action, whether it changed something, and the number of each act."""
    column = mq.database.audit.c
    with mq.database.engine.connect() as connection:
        wanted = select(column.actor, column.action, column.changed, column.run_id)
        return [tuple(row) for row in connection.execute(wanted.order_by(column.seq))]


def touch(mq: ReliableMQ, row: dict[str, object]) -> None:
    """Change a stub, as its scheduler does."""
    table = mq.database.stubs
    later = update(table).values(update_date=NOW - timedelta(seconds=1))
    with mq.database.engine.begin() as connection:
        connection.execute(later.where(table.c.message_id == row["message_id"]))


def test_one_marked_stub_is_sent_again_and_the_audit_says_by_whom_and_why(
    mq: ReliableMQ, browse: Browse
) -> None:
    rows = [parked(1), parked(2)]
    insert_rows(mq.database, "message_stub", *rows)
    client = browse()
    preview = look(client, RETRY, ids=[str(rows[0]["message_id"])])
    assert "1 of topic orders, for billing" in preview.text
    assert "1 of them were sent before" in preview.text
    assert states(mq)[str(rows[0]["message_id"])] == (0, 8)  # nothing was done
    started = start(client, preview)
    assert ended(client, started)["counts"][Outcome.DONE] == 1
    assert states(mq) == {rows[0]["message_id"]: (0, 0), rows[1]["message_id"]: (0, 8)}
    ((actor, action, changed, number),) = acts(mq)
    assert (action, changed) == ("stub retry", 1)
    assert started.headers["location"] == f"/works/{number}"
    page = client.get(started.headers["location"]).text
    assert WHY in page
    assert actor in page
    assert "Send stubs again" in client.get("/works").text
    live = client.get(f"{started.headers['location']}/live").text
    assert 'data-live-end="ended"' in live  # nothing is asked for any more
    assert client.get(f"/works/{'0' * 32}/live").status_code == 404


def test_all_that_match_are_taken_across_pages_in_parts(mq: ReliableMQ, browse: Browse) -> None:
    rows = [parked(number) for number in range(70)]
    insert_rows(mq.database, "message_stub", *rows, *(parked(99, topic="returns"),))
    client = browse()
    preview = look(client, VOID, query={"topic": "orders", "since": "-1000h"})
    assert "70 of topic orders" in preview.text
    assert "Stubs that wait for no person: name a status" in preview.text
    found = ended(client, start(client, preview, rate="1000"))
    assert found["counts"] == {"done": 70, "changed since the preview": 0, "refused": 0}
    assert sorted(states(mq).values()) == [(0, 8)] + [(2, 8)] * 70
    assert len(acts(mq)) == 70


def test_the_marked_ones_are_taken_whatever_their_state_allows(
    mq: ReliableMQ, browse: Browse
) -> None:
    rows = [parked(1), stub(2, status=1), stub(3, status=2), parked(4)]
    insert_rows(mq.database, "message_stub", *rows)
    ids = [str(row["message_id"]) for row in rows[:3]]
    preview = look(browse(), RETRY, ids=[*ids, "no such stub"])
    assert f"{ids[1]}: it is CONFIRMED" in preview.text
    assert "1 of the marked stubs are not in the database" in preview.text
    assert done(browse(), RETRY, ids=ids) == {"done": 2}
    assert states(mq)[str(rows[3]["message_id"])] == (0, 8)


@pytest.mark.parametrize(
    ("why", "rate", "line"),
    [
        ("", "10", "a reason is needed"),
        ("  ", "10", "a reason is needed"),
        ("x" * 501, "10", "at most 500 characters"),
        (WHY, "0", "the rate is 1 to 10000"),
        (WHY, "\u0663", "the rate is 1 to 10000"),
        (WHY, "10001", "the rate is 1 to 10000"),
        (WHY, "0000000019999999", "the rate is 1 to 10000"),
    ],
)
def test_without_a_reason_and_a_rate_nothing_starts(
    mq: ReliableMQ, browse: Browse, why: str, rate: str, line: str
) -> None:
    row = parked(1)
    insert_rows(mq.database, "message_stub", row)
    client = browse()
    answer = start(client, look(client, RETRY, ids=[str(row["message_id"])]), why=why, rate=rate)
    assert answer.status_code == 400
    assert line in answer.text
    assert field(answer.text, "sealed")  # the preview is still there, for another try
    assert acts(mq) == []


def test_what_has_changed_since_the_preview_is_left_and_counted(
    mq: ReliableMQ, browse: Browse
) -> None:
    rows = [parked(number) for number in range(4)]
    insert_rows(mq.database, "message_stub", *rows)
    client = browse()
    marked = look(client, RETRY, ids=[str(row["message_id"]) for row in rows[:2]])
    matching = look(client, VOID, query={"topic": "orders"})
    touch(mq, rows[0])
    assert ended(client, start(client, marked))["counts"] == {
        "done": 1,
        "changed since the preview": 1,
        "refused": 0,
    }
    assert sorted(each[2] for each in acts(mq)) == [0, 1]
    insert_rows(mq.database, "message_stub", parked(7, update_date=NOW + timedelta(days=1)))
    found = ended(client, start(client, matching))["counts"]
    assert found == {"done": 3, "changed since the preview": 1, "refused": 0}


def test_of_two_consoles_one_does_it_and_the_other_counts_it(
    mq: ReliableMQ, browse: Browse
) -> None:
    rows = [parked(number) for number in range(40)]
    insert_rows(mq.database, "message_stub", *rows)
    ids = [str(row["message_id"]) for row in rows]
    consoles = [browse(), browse()]
    previews = [look(each, RETRY, ids=ids) for each in consoles]
    started = [start(*both, rate="3") for both in zip(consoles, previews, strict=True)]
    for client, work in zip(consoles, started, strict=True):
        until(partial(has_begun, client, work.headers["location"]))
        client.post(f"{work.headers['location']}/cancel", data=token(client))
    counts = [ended(*each)["counts"] for each in zip(consoles, started, strict=True)]
    assert sum(each["done"] for each in counts) == sum(act[2] for act in acts(mq))
    changed = [each for each, (_, sends) in states(mq).items() if not sends]
    assert len(changed) == sum(each["done"] for each in counts)


def has_begun(client: TestClient, place: str) -> bool:
    return bool(sum(state_of(client, place)["counts"].values()))


def token(client: TestClient) -> dict[str, str]:
    return {"token": field(client.get("/topics").text, "token")}


def test_a_preview_is_started_once(mq: ReliableMQ, browse: Browse) -> None:
    row = parked(1)
    insert_rows(mq.database, "message_stub", row)
    client = browse()
    preview = look(client, RETRY, ids=[str(row["message_id"])])
    first, second = start(client, preview), start(client, preview)
    assert first.headers["location"] == second.headers["location"]
    ended(client, first)
    assert len(acts(mq)) == 1


def test_an_old_preview_is_refused(
    mq: ReliableMQ, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert_rows(mq.database, "message_stub", parked(1))
    client = browse()
    preview = look(client, RETRY)
    monkeypatch.setattr(doing, "PREVIEW_SECONDS", -1.0)
    answer = start(client, preview)
    assert answer.status_code == 409
    assert "older than an hour" in answer.text
    assert acts(mq) == []


def test_work_that_is_done_when_somebody_cancels_it_has_ended(mq: ReliableMQ) -> None:
    works, at_end = Works(), threading.Event()

    def parts(order: Order) -> Iterator[Part]:
        yield Part({Outcome.DONE: order.total})
        at_end.wait()

    order = Order(number="1", title="t", back="/", actor="ada", why=WHY, rate=1_000, total=1)
    work = works.start(order, parts)
    work.cancel()
    at_end.set()
    work.thread.join()
    assert work.progress().state.value == "ended"


def test_a_changed_preview_is_refused(mq: ReliableMQ, browse: Browse) -> None:
    insert_rows(mq.database, "message_stub", parked(1))
    client = browse()
    page = look(client, RETRY).text
    sealed = field(page, "sealed")
    for text in (sealed[:-1] + "0", "A" + sealed, "", "é"):
        answer = client.post("/do/start", data=token(client) | {"sealed": text, "why": WHY})
        assert answer.status_code == 400
    other = browse()
    answer = other.post("/do/start", data=token(other) | {"sealed": sealed, "why": WHY})
    assert answer.status_code == 400  # another process, which has another key
    assert acts(mq) == []


def test_work_can_be_cancelled_and_keeps_what_is_done(mq: ReliableMQ, browse: Browse) -> None:
    insert_rows(mq.database, "message_stub", *(parked(number) for number in range(30)))
    client = browse()
    place = start(client, look(client, RETRY), rate="5").headers["location"]
    until(lambda: state_of(client, place)["counts"]["done"] >= 5)
    page = client.get(place).text
    assert "Cancel the rest" in page
    assert client.post(f"{place}/cancel", data=token(client)).status_code == 303
    until(lambda: state_of(client, place)["state"] == "cancelled")
    count = state_of(client, place)["counts"]["done"]
    assert 5 <= count < 30
    assert sum(not sends for _, sends in states(mq).values()) == count == len(acts(mq))
    assert "Cancel the rest" not in client.get(place).text


@pytest.fixture
def users(tmp_path: Path) -> Path:
    """Give a file with a user of each role."""
    path = tmp_path / "users.json"
    for name, role in (("vera", Role.VIEWER), ("otto", Role.OPERATOR), ("ada", Role.ADMIN)):
        add_user(path, name, role, PASSWORD)
    return path


def test_a_role_does_what_it_may(mq: ReliableMQ, browse: Browse, users: Path) -> None:
    insert_rows(mq.database, "message_stub", parked(1))
    viewer, operator, admin = (browse(users=users, secret="one") for _ in range(3))
    assert {log_in(viewer, "vera"), log_in(operator, "otto"), log_in(admin, "ada")} == {303}
    assert look(viewer, RETRY).status_code == 403
    assert look(operator, RETRY).status_code == 200
    assert look(operator, VOID).status_code == 403
    preview = look(admin, VOID)
    assert preview.status_code == 200
    sealed = field(preview.text, "sealed")
    form = {"sealed": sealed, "why": WHY, "rate": "5"}
    assert operator.post("/do/start", data=token(operator) | form).status_code == 403
    assert 'name="deed"' not in viewer.get("/stubs").text
    assert "Void stubs" not in operator.get("/stubs").text
    assert acts(mq) == []


def test_work_goes_on_when_the_session_has_ended(
    mq: ReliableMQ, browse: Browse, users: Path
) -> None:
    insert_rows(mq.database, "message_stub", *(parked(number) for number in range(8)))
    client = browse(users=users)
    log_in(client, "otto")
    place = start(client, look(client, RETRY), rate="4").headers["location"]
    client.post("/log-out", data=token(client))
    answer = client.get(place)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/log-in?to=%2Fworks%2F")
    assert client.post(f"{place}/cancel").status_code == 401
    log_in(client, "otto")
    until(lambda: state_of(client, place)["state"] == "ended")
    assert {actor for actor, *_ in acts(mq)} == {"otto"}
    assert len(acts(mq)) == 8


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"deed": "none", "scope": "all"}, 400),
        ({"deed": RETRY}, 400),
        ({"deed": RETRY, "scope": "marked"}, 400),
        ({"deed": RETRY, "scope": "all", "query": "colour=red"}, 400),
        ({"deed": RETRY, "scope": "all", "query": f"status={quote(ODD)}"}, 400),
        ({"deed": RETRY, "scope": "all", "query": "status=confirmed"}, 409),
        ({"deed": RETRY, "scope": "all", "query": f"topic={quote(ODD)}"}, 409),
        ({"deed": RETRY, "scope": "all", "database": ODD}, 400),
        ({"deed": RETRY, "scope": "marked", "id": ODD}, 409),
        ({"deed": RETRY, "scope": "marked", "id": "\0"}, 400),
        ({"deed": RETRY, "scope": "marked", "id": "x" * 601}, 400),
        ({"deed": RETRY, "scope": "marked", "id": ["x"] * 501}, 400),
    ],
)
def test_a_form_that_cannot_be_used_does_nothing(
    mq: ReliableMQ, browse: Browse, form: dict[str, str | list[str]], status: int
) -> None:
    insert_rows(mq.database, "message_stub", parked(1))
    client = browse()
    answer = client.post("/do", data={**form, **token(client)})
    assert answer.status_code == status
    check(answer.text)
    assert client.post("/do", data=form).status_code == 403
    assert acts(mq) == []


def test_odd_texts_are_text_on_every_page_of_doing(mq: ReliableMQ, browse: Browse) -> None:
    row = parked(1, topic=ODD[:127], required_groups=ODD[:127], message_id=ODD[:32])
    insert_rows(mq.database, "message_stub", row)
    client = browse()
    check(client.get("/stubs").text)
    for chosen in ({"ids": [ODD[:32]]}, {"query": {"topic": ODD[:127]}}):
        preview = look(client, RETRY, **chosen)
        assert preview.status_code == 200
        check(preview.text)
    started = start(client, preview, why=ODD)
    ended(client, started)
    place = started.headers["location"]
    for path in (place, f"{place}/live", "/works", "/works/none", f"/works/{'0' * 32}"):
        check(client.get(path).text)
    assert states(mq) == {row["message_id"]: (0, 0)}


def test_no_more_than_some_work_runs_at_once_and_a_bug_in_it_is_told() -> None:
    works, go_on = Works(), threading.Event()

    def waits(_order: Order) -> Iterator[Part]:
        go_on.wait()
        yield Part({Outcome.DONE: 1})

    def breaks(_order: Order) -> Iterator[Part]:
        yield Part({Outcome.DONE: 1})
        raise KeyError("odd")

    def order(number: int) -> Order:
        return Order(
            number=str(number),
            title=RETRY_STUBS.title,
            back="/",
            actor="ada",
            why=WHY,
            rate=10_000,
            total=3,
        )

    running = [works.start(order(number), waits) for number in range(4)]
    with pytest.raises(UsageError, match="4 pieces of work are under way"):
        works.start(order(4), waits)
    go_on.set()
    works.close()
    assert {each.progress().state.value for each in running} <= {"ended", "cancelled"}
    broken = works.start(order(5), breaks)
    broken.thread.join()
    assert broken.progress().state.value == "failed"
    assert re.search("this is a bug: KeyError", broken.progress().fault)
    assert len(works.all()) == 5
