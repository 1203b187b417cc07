"""Each attempt without an effect has a line in the consume log, and an entry in the timeline."""

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session
from tests.app.kill_switch import Killed, KillSwitch
from tests.app.lives import LONG, A, B, Ledger, Life, delivery, write_effect
from tests.app.test_retry_reasons import log_row, told
from tests.idempotency.test_sql_consume_log import Log, entry

from reliable_mq import ReceivedMessage
from reliable_mq.cli.saying import say_json
from reliable_mq.database.attempt_list import (
    LIST_LENGTH_MAX,
    REASON_LENGTH_MAX,
    UNCOUNTED_LENGTH_MAX,
    AttemptEnd,
    attempts_of,
    line_of,
)
from reliable_mq.escalate.sql_history import readable
from reliable_mq.escalate.timeline import MessageHistory, timeline
from reliable_mq.outbox.sql_attempt_restarts import AttemptRestarts
from reliable_mq.outcomes import CONSUMED, Reject

ODD = "a\tb\r\nc\x1b[31m\0\x85\u2028\ud800 \u00e9 \U0001f600 \\n '%s' :x"
LINE_LENGTH_MAX = REASON_LENGTH_MAX + 100
TWO_MODES: list[dict[str, Any]] = [{}, {"batch": 2, "log_receipt": True}]
EVERY_MODE = [{}, {"log_receipt": True}, {"batch": 2}, {"batch": 2, "log_receipt": True}]


@pytest.fixture
def log(database_url: str) -> Iterator[Log]:
    made = Log(database_url)
    yield made
    made.database.close()


def listed(row: dict[str, Any]) -> list[tuple[int, str, str]]:
    """Return the attempts in the list of a row: number, end and reason."""
    return [
        (each.number, each.end.value if each.end else "", each.reason)
        for each in attempts_of(row["failures"])
    ]


@pytest.mark.parametrize("options", EVERY_MODE, ids=str)
def test_three_attempts_that_fail_and_one_that_succeeds_are_four_entries_in_order(
    database_url: str, ledger: Ledger, redis: str | None, options: dict[str, Any]
) -> None:
    def fourth_time_lucky(session: Session, message: ReceivedMessage) -> None:
        if message.reconsume_times < 3:
            raise ValueError(f"try {message.reconsume_times + 1}")
        write_effect(session, message)

    async def scenario() -> None:
        async with Life(
            database_url, redis, handler=fourth_time_lucky, lease=LONG, **options
        ) as life:
            assert await life.until_settled(delivery(A), delivery(B)) == [CONSUMED] * 2

    asyncio.run(scenario())

    assert ledger.effects() == [A, B]
    for name in (A, B):
        entries = timeline(MessageHistory(logs=[log_row(ledger.database, name)]))
        assert [each.what for each in entries if each.what != "first received"] == [
            "attempt 1 failed: ValueError: try 1",
            "attempt 2 failed: ValueError: try 2",
            "attempt 3 failed: ValueError: try 3",
            "consumed, attempt 4 (attempts 1 to 3 had no effect in this database)",
        ]
        times = [each.time for each in entries if each.time is not None]
        assert times == sorted(times)
        assert len(set(times[-4:])) == 4, "each has its own time"


@pytest.mark.parametrize("options", TWO_MODES, ids=str)
def test_a_message_that_succeeds_at_once_has_no_list(
    database_url: str, ledger: Ledger, redis: str | None, options: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with Life(database_url, redis, lease=LONG, **options) as life:
            assert await life.until_settled(delivery(A), delivery(B)) == [CONSUMED] * 2

    asyncio.run(scenario())

    assert [log_row(ledger.database, name)["failures"] for name in (A, B)] == [None, None]


@pytest.mark.parametrize("options", TWO_MODES, ids=str)
def test_a_reason_with_any_characters_is_one_line(
    database_url: str,
    ledger: Ledger,
    redis: str | None,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
) -> None:
    caplog.set_level(logging.CRITICAL, "reliable_mq")  # pytest-xdist cannot send a lone surrogate

    def fails(message: ReceivedMessage) -> None:
        raise ValueError(ODD + "x" * 10_000)

    async def scenario() -> None:
        async with Life(database_url, redis, handler=fails, lease=LONG, **options) as life:
            await life.handle(delivery(A), delivery(B))

    asyncio.run(scenario())

    row = log_row(ledger.database)
    ((number, end, reason),) = listed(row)
    assert (number, end) == (1, "failed")
    assert reason.startswith(
        "ValueError: a\\tb\\r\\nc\\x1b[31m\\x00\\x85\\u2028\\ud800 \u00e9 \U0001f600 \\n '%s' :x"
    )
    assert (len(reason), reason[-4:]) == (REASON_LENGTH_MAX, "x...")
    assert row["failures"].count("\n") == 1
    assert told(row)[-1] == "attempt 1 failed; not tried again before this time"


def test_a_rejected_message_says_so(database_url: str, ledger: Ledger, redis: str | None) -> None:
    def rejects(message: ReceivedMessage) -> Reject:
        return Reject("no such order")

    async def scenario() -> None:
        async with Life(database_url, redis, handler=rejects, lease=LONG) as life:
            await life.handle(delivery(A))

    asyncio.run(scenario())

    row = log_row(ledger.database)
    assert listed(row) == [(1, "rejected", "no such order")]
    assert told(row)[1:] == [
        "attempt 1 rejected the message: no such order",
        "attempt 1 was the last one: no such order",
    ]


@pytest.mark.parametrize("log_receipt", [False, True])
def test_an_attempt_whose_process_was_killed_is_in_doubt(
    database_url: str, ledger: Ledger, redis: str | None, log_receipt: bool
) -> None:
    switch = KillSwitch()

    def kills(message: ReceivedMessage) -> None:
        switch.dead = True
        raise Killed(message.message_id)

    async def die() -> None:
        options: dict[str, Any] = {"handler": kills, "log_receipt": log_receipt}
        async with Life(database_url, redis, switch, **options) as life:
            with suppress(Killed):
                await life.handle(delivery(A))

    async def live() -> None:
        async with Life(database_url, redis, log_receipt=log_receipt) as life:
            assert await life.until_settled(delivery(A)) == [CONSUMED]

    asyncio.run(die())
    asyncio.run(live())

    row = log_row(ledger.database)
    assert [(number, end) for number, end, _ in listed(row)] == [(1, "in doubt")]
    assert any(what.startswith("attempt 1 is in doubt: its lease ended") for what in told(row))
    assert told(row)[-1].startswith("consumed, attempt 2 (attempt 1 is in doubt")


def test_a_message_that_is_given_up_lists_the_attempts_that_did_not_end(
    database_url: str, ledger: Ledger, redis: str | None
) -> None:
    async def die() -> None:
        switch = KillSwitch()

        def kills(message: ReceivedMessage) -> None:
            switch.dead = True
            raise Killed(message.message_id)

        options: dict[str, Any] = {"handler": kills, "log_receipt": True, "max_attempts": 2}
        async with Life(database_url, redis, switch, **options) as life:
            with suppress(Killed):
                await life.until_settled(delivery(A))

    async def live() -> None:
        options: dict[str, Any] = {"log_receipt": True, "max_attempts": 2, "lease": 60.0}
        async with Life(database_url, redis, **options) as life:
            (outcome,) = await life.until_settled(delivery(A))
            assert isinstance(outcome, Reject)

    asyncio.run(die())
    asyncio.run(die())
    asyncio.run(live())

    found = listed(log_row(ledger.database))
    assert [(number, end) for number, end, _ in found[:2]] == [(1, "in doubt"), (2, "in doubt")]
    assert found[2][1:] == ("given up", "2 attempts did not finish")


def fail(log: Log, number: int, at: float, reason: str) -> None:
    with log.engine.begin() as connection:
        mine = entry(attempt=number)
        assert log.log.fail(connection, mine, at, at + 1, failure=reason)


def explain(log: Log, at: float, reason: str) -> None:
    with log.engine.begin() as connection:
        log.log.explain(connection, entry(), at, at + 1, reason)


def the_row(log: Log) -> dict[str, Any]:
    (row,) = log.rows()
    return dict(row._mapping)


def test_attempts_that_do_not_count_stay_within_the_bound_and_hide_no_other(log: Log) -> None:
    for turn in range(80):
        explain(log, 100.0 + turn, f"busy {turn} " + "x" * 1_000)

    row = the_row(log)
    first = listed(row)
    assert UNCOUNTED_LENGTH_MAX <= len(row["failures"]) < UNCOUNTED_LENGTH_MAX + LINE_LENGTH_MAX
    assert [number for number, *_ in first] == [1] * len(first)
    assert {end for _, end, _ in first} == {"postponed"}
    assert row["failure"].startswith("busy 79"), "the newest reason is kept in any case"
    assert "the list of attempts is full: later ones may be missing in it" in told(row)
    assert told(row)[1].startswith("attempt 1 was postponed and does not count: busy 0 xx")

    fail(log, 1, 300.0, "no stock")
    explain(log, 301.0, "busy again")

    assert listed(the_row(log)) == [*first, (1, "failed", "no stock")]


@pytest.mark.parametrize("letter", ["x", "\u00e9", "\U0001f600"])
def test_attempts_that_fail_stay_within_the_bound(log: Log, letter: str) -> None:
    for turn in range(80):
        fail(log, turn + 1, 100.0 + turn, letter * 1_000)

    failures = the_row(log)["failures"]
    assert len(failures) < LIST_LENGTH_MAX + LINE_LENGTH_MAX
    assert len(failures.encode()) >= LIST_LENGTH_MAX
    assert [number for number, *_ in listed(the_row(log))] == list(
        range(1, failures.count("\n") + 1)
    )


def test_after_a_persons_retry_the_numbers_begin_anew_and_the_list_goes_on(log: Log) -> None:
    fail(log, 1, 100.0, "one")
    fail(log, 2, 101.0, "two")
    with log.engine.begin() as connection:
        AttemptRestarts(log.database.logs, log.database.dialect).forget(connection, ["m"])
    assert told(the_row(log))[-1].startswith("no attempt counted yet; may be tried again")
    fail(log, 1, 103.0, "three")

    assert listed(the_row(log)) == [
        (1, "failed", "one"),
        (2, "failed", "two"),
        (1, "failed", "three"),
    ]


def test_what_a_process_of_the_older_release_writes_is_told_too(log: Log) -> None:
    """It knows no list: its failure is in the other column, and the list stays."""
    fail(log, 1, 100.0, "ours")
    with log.engine.begin() as connection:
        connection.execute(
            text("UPDATE rmq_consume_log SET attempt = 2, failure = 'theirs' WHERE message_id='m'")
        )
    row = the_row(log)
    assert told(row)[1] == "attempt 1 failed: ours"
    assert told(row)[-1] == (
        "attempt 2 (attempt 1 had no effect in this database) failed: theirs; "
        "not tried again before this time"
    )

    fail(log, 3, 102.0, "ours again")

    assert listed(the_row(log)) == [(1, "failed", "ours"), (3, "failed", "ours again")]


def test_a_doubt_that_only_redis_knows_is_listed_once(log: Log) -> None:
    fail(log, 1, 101.0, "no")
    for token, attempt in (("two", 3), ("two", 3)):
        doubtful = msgspec.structs.replace(entry(token=token, attempt=attempt), in_doubt=True)
        assert log.receive(doubtful, now=110.0)[0].attempt == 3
    assert [each[:2] for each in listed(the_row(log))] == [(1, "failed"), (2, "in doubt")]

    log.receive(msgspec.structs.replace(entry(token="x", attempt=4), in_doubt=True), now=130.0)

    assert [number for number, *_ in listed(the_row(log))] == [1, 2, 3]


def test_a_batch_of_doubts_that_only_redis_knows_is_listed_for_each_message(log: Log) -> None:
    doubtful = msgspec.structs.replace(entry("old", attempt=2), in_doubt=True)
    log.receive(doubtful, entry("new"))
    found = {row.message_id: listed(dict(row._mapping)) for row in log.rows()}
    assert found["new"] == []
    assert [each[:2] for each in found["old"]] == [(1, "in doubt")]


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    """Note the statements that are executed."""
    said: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        if not statement.startswith("BEGIN"):
            said.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield said
    finally:
        event.remove(engine, "before_cursor_execute", note)


def test_the_list_costs_no_statement(log: Log) -> None:
    """A failure is one statement; MySQL needs two, as ever. An effect writes no list."""
    is_mysql = log.database.dialect in ("mysql", "mariadb")
    fail(log, 1, 100.0, "no")
    with statements(log.engine) as said:
        fail(log, 2, 101.0, "no")
    assert len(said) == (2 if is_mysql else 1)
    with statements(log.engine) as said:
        explain(log, 102.0, "later")
    assert len(said) == 2
    with statements(log.engine) as said:
        log.insert(entry("new"))
        log.receive(entry("received"))
        log.consume(entry("received"))
    assert not any("failures" in each for each in said)


def test_json_has_the_attempts_as_a_list(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    fail(log, 1, 100.25, "no\tstock")
    log.receive(entry("fresh"))
    rows = [dict(row._mapping) for row in log.rows()]

    say_json(readable(MessageHistory(logs=rows)))

    shown = json.loads(capsys.readouterr().out)["consume_logs"]
    attempt = {"attempt": 1, "time": "1970-01-01T00:01:40.250000+00:00", "end": "failed"}
    assert {row["message_id"]: row["failures"] for row in shown} == {
        "fresh": [],
        "m": [attempt | {"reason": "no\\tstock"}],
    }


FOREIGN = [
    "free text",
    "\t\t\t",
    "1\t2026-11-28\tfailed\tno zone",
    "1\tyesterday\tfailed\tno",
    "one\t2026-11-28T12:00:00+00:00\tfailed\tno",
    "1\t2026-11-28T12:00:00+00:00\tsome other end\tno",
    "1\t0001-01-01T00:00:00+14:00\tfailed\tbefore time",
    "\x1b[2J",
]


@pytest.mark.parametrize("line", FOREIGN)
def test_a_line_that_another_program_has_written_is_shown_as_it_is(line: str) -> None:
    ours = line_of(1, 100.0, AttemptEnd.FAILED, "no")
    first, foreign = attempts_of(f"{ours}{line}\n\n")

    assert (first.number, first.reason) == (1, "no")
    assert (foreign.number, foreign.time, foreign.end) == (0, None, None)
    assert foreign.reason.isprintable()


def test_a_line_without_a_reason_is_whole() -> None:
    (only,) = attempts_of(line_of(7, 100.0, AttemptEnd.FAILED, ""))
    assert (only.number, only.end, only.reason) == (7, AttemptEnd.FAILED, "")
    assert attempts_of(None) == attempts_of("") == []
