"""Two consoles, or a console and the command, that retry one dead letter at the same moment."""

import json
import threading
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.console.conftest import visitor
from tests.console.doing_steps import ended, look, start
from tests.console.test_dead_letter_deeds import RETRY, copies, give_up
from tests.console.test_doing import acts
from tests.console.test_finding_deeds import details
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.client.administering.thread_browser import Browser
from reliable_mq.console import console_app
from reliable_mq.errors import ConnectionLost, RemoteError, RequestTimeout, Unavailable
from reliable_mq.escalate import sql_dead_letters, thread_dead_letters
from reliable_mq.escalate.thread_dead_letters import DeadLetterActions

pytestmark = pytest.mark.processes


def raising(error: Exception) -> Any:
    def refuse(*_: object) -> None:
        raise error

    return refuse


def actions_of(shop: ReliableMQ, broker: str) -> DeadLetterActions:
    return DeadLetterActions(shop.databases, broker)


def test_the_second_sees_what_the_first_did_though_it_had_looked_before(
    broker: str, group: str, shop: ReliableMQ
) -> None:
    ids = [give_up(broker, group) for _ in range(3)]
    first, second = actions_of(shop, broker), actions_of(shop, broker)
    seen = second.of_ids(ids, group)
    done = first.retry(first.of_ids(ids[:2], group), actor="vera", why="outage")
    assert set(done.values()) == {""}

    told = second.retry(seen, actor="otto", why="outage")
    assert [told[group, each].startswith("meanwhile vera has retried it") for each in ids] == [
        *(True, True, False),
    ]
    until(lambda: [copies(broker, group, each) for each in ids] == [1, 1, 1])
    assert sorted(act[2] for act in acts(shop)) == [0, 0, 1, 1, 1]


def test_two_that_start_at_once_send_each_letter_once(
    broker: str, group: str, shop: ReliableMQ
) -> None:
    ids = [give_up(broker, group) for _ in range(10)]
    seen = actions_of(shop, broker).of_ids(ids, group)
    together, outcomes = threading.Barrier(3), []

    def retry(actor: str) -> None:
        mine = actions_of(shop, broker)
        together.wait()
        outcomes.append(mine.retry(seen, actor=actor, why="outage"))

    threads = [threading.Thread(target=retry, args=(name,)) for name in ("vera", "otto", "ada")]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    sent = [sum(not why for why in each.values()) for each in outcomes]
    assert sum(sent) == 10
    until(lambda: [copies(broker, group, each) for each in ids] == [1] * 10)


def test_each_part_of_a_retry_has_the_reason_in_the_audit(
    broker: str, group: str, shop: ReliableMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_dead_letters, "AT_ONCE", 1)
    ids = [give_up(broker, group) for _ in range(3)]
    actions = actions_of(shop, broker)
    done = actions.retry(actions.of_ids(ids, group), actor="vera", why="outage")
    assert set(done.values()) == {""}
    assert [each["why"] for each in details(shop)] == ["outage"] * 3


def test_a_console_is_told_while_the_command_is_at_work(
    broker: str,
    group: str,
    shop: ReliableMQ,
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    letter = give_up(broker, group)
    sending, go_on = threading.Event(), threading.Event()
    redeliver = Browser.redeliver

    def slow(browser: Browser, to: str, message: Any) -> None:
        sending.set()
        go_on.wait(30)
        redeliver(browser, to, message)

    preview = look(client, RETRY, ids=[f"{group} {letter}"])
    with monkeypatch.context() as patched:
        patched.setattr(Browser, "redeliver", slow)
        command = actions_of(shop, broker)
        seen = command.of_ids([letter], group)
        outcome: dict[Any, str] = {}
        thread = threading.Thread(
            target=lambda: outcome.update(command.retry(seen, actor="cron", why="nightly"))
        )
        thread.start()
        assert sending.wait(30)
        started = start(client, preview)
        counts = ended(client, started)["counts"]
        go_on.set()
        thread.join()
    assert counts == {"done": 0, "changed since the preview": 1, "refused": 0}
    assert "meanwhile cron retries it" in client.get(started.headers["location"]).text
    assert list(outcome.values()) == [""]
    until(lambda: copies(broker, group, letter) == 1)


def test_a_letter_that_the_broker_refused_is_retried_by_the_next_one(
    broker: str, group: str, shop: ReliableMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = give_up(broker, group)
    command = actions_of(shop, broker)
    seen = command.of_ids([letter], group)
    with monkeypatch.context() as patched:
        patched.setattr(Browser, "redeliver", raising(RemoteError(1, "its disk is full")))
        told = "code 1: its disk is full"
        assert [*command.retry(seen, actor="cron", why="").values()] == [told]
    assert details(shop) == [{"group": group, "why": "", "outcome": told}]
    assert [*command.retry(seen, actor="vera", why="").values()] == [""]


@pytest.mark.parametrize("error", [RequestTimeout("no answer"), ConnectionLost("no answer")])
def test_a_letter_without_a_clear_answer_is_left_alone_until_its_claim_ends(
    broker: str,
    group: str,
    shop: ReliableMQ,
    monkeypatch: pytest.MonkeyPatch,
    error: Unavailable,
) -> None:
    letter = give_up(broker, group)
    command = actions_of(shop, broker)
    seen = command.of_ids([letter], group)
    with monkeypatch.context() as patched:
        redeliver = Browser.redeliver

        def unanswered(browser: Browser, to: str, message: Any) -> None:
            redeliver(browser, to, message)
            raise error

        patched.setattr(Browser, "redeliver", unanswered)
        (told,) = command.retry(seen, actor="cron", why="").values()
    assert told == "no answer; it may have been sent: if it does not come, try again 120 s later"
    assert details(shop) == [{"group": group, "why": "", "unclear": told}]
    (again,) = command.retry(seen, actor="vera", why="").values()
    assert again.startswith("meanwhile cron retries it")
    until(lambda: copies(broker, group, letter) == 1)


def test_a_process_sends_nothing_when_its_claim_may_have_ended(
    broker: str, group: str, shop: ReliableMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = give_up(broker, group)
    command = actions_of(shop, broker)
    seen = command.of_ids([letter], group)
    with monkeypatch.context() as patched:
        patched.setattr(thread_dead_letters, "CLAIM_SECONDS", -1.0)
        assert [
            "not sent in time" in why for why in command.retry(seen, actor="a", why="").values()
        ]
    assert copies(broker, group, letter) == 0
    assert sql_dead_letters.CLAIM_SECONDS > 0
    assert [*command.retry(seen, actor="a", why="").values()] == [""]


def test_an_export_reads_the_broker_once_and_pages_go_on_where_the_last_one_ended(
    broker: str, group: str, shop: ReliableMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [give_up(broker, group) for _ in range(7)]
    readings = []
    messages = Browser.messages

    def counted(browser: Browser, topic: str, since_ms: int = 0) -> Any:
        readings.append((topic, since_ms))
        return messages(browser, topic, since_ms)

    monkeypatch.setattr(Browser, "messages", counted)
    client = visitor(console_app(shop))
    rows = client.get(f"/dead-letters?group={group}&format=json").json()
    assert sorted(row["message_id"] for row in rows) == sorted(ids)
    times = [row["time"] for row in rows]
    assert times == sorted(times, reverse=True)
    assert len(readings) <= 4  # an hour, a day, a week, all
    readings.clear()

    place, seen = f"/dead-letters?group={group}&limit=3", []
    while place:
        page = client.get(place).text
        seen += [each for each in ids if f"id={each}" in page]
        found = page.partition('rel="next" href="')[2].partition('"')[0]
        place = found.replace("&amp;", "&")
    assert sorted(seen) == sorted(ids)
    assert all(since_ms for _, since_ms in readings[:2])  # not all were read for a page
    for cursor in ("5", "[1]", '["a", 1]', '[-1, "a"]', "[1e400, 1]", "{}"):
        answer = client.get("/dead-letters", params={"group": group, "cursor": cursor})
        assert answer.status_code == 400, cursor
    assert json.loads("[]") == client.get("/dead-letters?group=none&format=json").json()
