"""Dead letters that somebody asks for in vain: what is written down of it, where and when."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.app.lives import delivery

from reliable_mq.cli import dlq
from reliable_mq.cli.main import run
from reliable_mq.database.sql_database import Database
from reliable_mq.errors import Unavailable
from reliable_mq.escalate.dead_letter import DeadLetter
from reliable_mq.escalate.thread_dead_letters import DeadLetterActions, Outcome
from reliable_mq.wire.message_id import ledger_id

LONG = "F" * 65
"""A foreign producer may have called its message so; no column of ids is as long."""


def letter(message_id: str) -> DeadLetter:
    return DeadLetter("payments", delivery(message_id))


class Known(DeadLetterActions):
    """Dead letters of a broker that has one of each id that is not `unknown`."""

    def __init__(self) -> None:
        super().__init__({}, "unused:9876")
        self.done: list[str] = []
        self.fails = ""

    def of_ids(self, message_ids: Sequence[str], group: str = "") -> list[DeadLetter]:
        return [letter(ledger_id(each)) for each in message_ids if each != "unknown"]

    def retry(
        self, letters: Sequence[DeadLetter], *, actor: str, why: str, work: str = ""
    ) -> Outcome:
        self.done.append(f"retry {len(letters)}")
        return {(each.group, each.message.message_id): "" for each in letters}

    def note_refused(self, refused: Outcome, *, actor: str, why: str) -> None:
        self.done.append(f"note {len(refused)}")
        if self.fails:
            raise Unavailable(self.fails)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    made = Known()

    @contextmanager
    def given(*_: str) -> Iterator[tuple[Known, None, None]]:
        yield made, None, None

    monkeypatch.setattr(dlq, "_known", given)
    return made


def retry(*message_ids: str) -> None:
    with pytest.raises(SystemExit):
        run(("dlq", "retry", *message_ids, "--yes", "--json"))


def test_a_refusal_is_written_down_before_anything_is_retried(known: Known) -> None:
    """Else what was retried would not be told when that fails."""
    retry("A" * 32, "unknown")
    assert known.done == ["note 1", "retry 1"]

    known.done, known.fails = [], "the disk is full"
    retry("A" * 32, "unknown")
    assert known.done == ["note 1"]


def test_a_letter_whose_id_no_ledger_can_hold_is_retried_and_not_refused_as_well(
    known: Known, capsys: pytest.CaptureFixture[str]
) -> None:
    retry(LONG)
    (retried,) = json.loads(capsys.readouterr().out).items()
    assert retried == (f"payments {ledger_id(LONG)}", True)


def test_a_refusal_is_one_row_however_many_databases_there_are_and_however_long_the_id(
    database_url: str, tmp_path: Path
) -> None:
    urls = {"default": database_url, "billing": f"sqlite:///{tmp_path / 'billing.db'}"}
    databases = {name: Database(url, prefix="rmq_", connections=1) for name, url in urls.items()}
    for database in databases.values():
        database.create_tables()

    known = DeadLetterActions(databases, "unused:9876")
    known.note_refused({("", LONG): "there is none"}, actor="ann", why="")

    rows = {}
    for name, database in databases.items():
        with database.engine.begin() as connection:
            audit = database.audit.c
            wanted = select(audit.message_id, audit.actor, audit.changed)
            rows[name] = [tuple(row) for row in connection.execute(wanted)]
        database.close()
    assert rows == {"default": [("F" * 64, "ann", 0)], "billing": []}
