"""`reliable-mq audit`: one list of a broker's file and an application's tables, with filters."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from tests.cli.test_conventions import call, database, shop

from reliable_mq import ReliableMQ
from reliable_mq.broker_core.audit import PATH, AuditRecord
from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.cli.main import BAD_USAGE, DONE
from reliable_mq.runtime.audit_file import AuditFile

__all__ = ["call", "database", "shop"]  # fixtures

Call = Callable[..., tuple[int, str, str]]
START_MS = 1_790_000_000_000  # 2026-09-21T14:13:20


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Give a store whose audit has six lines, one each minute, in several files."""
    record, folder = AuditRecord(), tmp_path / "store"
    folder.mkdir()
    audit = AuditFile(folder)
    for number in range(6):
        record.note(
            now_ms=START_MS + 60_000 * number,
            actor=("ann", "-")[number % 2],
            address="10.0.0.7:5",
            action=("UPDATE_AND_CREATE_TOPIC", "DELETE_SUBSCRIPTIONGROUP")[number // 3],
            on={"topic": f"t{number}"},
            seen=None,
            result="SUCCESS" if number != 4 else "NO_PERMISSION",
            is_done=number != 4,
            why="" if number != 4 else "no\x1b[31m",
        )
        audit.write(record.take(), BrokerConfig(audit_file_size=64 * 1024), 0)
        if number in (1, 3):
            audit._rotate(9)
    audit.close()
    return folder


def topics(out: str) -> list[str]:
    return [row["detail"]["on"]["topic"] for row in json.loads(out)]


def test_the_newest_change_of_all_files_comes_first(call: Call, store: Path) -> None:
    code, out, _ = call("audit", "--store", str(store), "--json")

    assert code == DONE
    assert topics(out) == ["t5", "t4", "t3", "t2", "t1", "t0"]
    newest = json.loads(out)[0]
    assert datetime.fromisoformat(newest["create_date"]) == datetime.fromtimestamp(
        START_MS / 1000 + 300, UTC
    )
    assert newest["source"] == "broker"
    assert topics(call("audit", "--store", str(store), "--json", "--limit", "3")[1]) == [
        *("t5", "t4", "t3"),
    ]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--user", "ann"], ["t4", "t2", "t0"]),
        (["--user", "-"], ["t5", "t3", "t1"]),
        (["--action", "topic"], ["t2", "t1", "t0"]),
        (["--holds", "T3"], ["t3"]),
        (["--since", "2026-09-21T14:16:20"], ["t5", "t4", "t3"]),
        (["--until", "2026-09-21T14:16:20"], ["t2", "t1", "t0"]),
        (["--changed", "--action", "group"], ["t5", "t3"]),
        (["--since", "-1s"], []),
    ],
)
def test_filters_are_met_all_together(
    words: list[str], found: list[str], call: Call, store: Path
) -> None:
    assert topics(call("audit", "--store", str(store), "--json", *words)[1]) == found


def test_a_person_sees_a_table_without_control_characters(call: Call, store: Path) -> None:
    _, out, _ = call("audit", "--store", str(store))

    head, _, refused, *_ = out.splitlines()
    assert head.split() == ["time", "actor", "address", "action", "on", "changed", "result"]
    assert "NO_PERMISSION: no\\x1b[31m" in refused
    assert "topic t4" in refused


def test_lines_that_cannot_be_read_are_counted(call: Call, store: Path) -> None:
    """Given a torn line and one of another program, then the others are shown."""
    with (store / PATH).open("a") as file:
        file.write('{"create_date": "20\n{}\n')
    code, out, err = call("audit", "--store", str(store), "--json")

    assert (code, len(json.loads(out))) == (DONE, 6)
    assert err == "warning: 2 lines of the audit cannot be read\n"


def test_changes_by_people_are_in_the_same_list(
    call: Call, store: Path, database: str, shop: str
) -> None:
    """Given a stub that a person voids, then the change is in the list of an application."""
    mq = ReliableMQ("shop", broker="127.0.0.1:1", database=database, relay_lease_seconds=60.0)
    mq.topic("orders", groups=["payments"])
    with mq.transaction() as tx:
        sent = tx.send("orders", {"id": 1}, key="4711")
    mq.close()
    void = ("stub", "void", sent, "--db", database, "--by", "bob", "--note", "50% wrong")
    assert call(*void)[0] == DONE

    (row,) = json.loads(call("audit", "--app", shop, "--json")[1])
    assert (row["actor"], row["action"], row["message_id"]) == ("bob", "stub void", sent)
    assert (row["source"], row["changed"]) == ("main", 1)
    assert datetime.fromisoformat(row["create_date"]).tzinfo is not None
    for words, count in (
        (["--user", "bob"], 1),
        (["--user", "ann"], 0),
        (["--action", "VOID"], 1),
        (["--holds", "50%"], 1),
        (["--holds", "5_%"], 0),
        (["--since", "-1h"], 1),
        (["--until", "-1h"], 0),
        (["--changed"], 1),
    ):
        found = json.loads(call("audit", "--db", database, "--json", *words)[1])
        assert len(found) == count, words
    both = json.loads(call("audit", "--app", shop, "--store", str(store), "--json")[1])
    assert len(both) == 7
    assert {row["source"] for row in both} == {"broker", "main"}
    assert both[0].keys() >= {"create_date", "actor", "action", "message_id", "run_id", "changed"}
    with create_engine(database).begin() as connection:
        connection.execute(text("UPDATE rmq_audit SET detail = 'by hand'"))
    assert "by hand" in call("audit", "--db", database)[1], "a detail that is no JSON is shown"


def test_what_is_missing_is_one_line(call: Call, tmp_path: Path) -> None:
    for words, says in (
        ([], "give --store DIR of a broker, --app MODULE:OBJECT or --db URL"),
        (["--store", str(tmp_path / "no")], "there is no such folder"),
        (["--store", str(tmp_path)], "it has no audit/audit.log"),
    ):
        code, out, err = call("audit", *words)
        assert (code, out) == (BAD_USAGE, "")
        assert says in err
    assert call("audit", "--store", str(tmp_path), "--since", "soon")[0] != DONE


def test_the_verb_list_of_other_commands_may_be_written(call: Call, store: Path) -> None:
    plain = call("audit", "--store", str(store), "--json")

    assert call("audit", "list", "--store", str(store), "--json") == plain
    code, _, err = call("audit", "shop:mq", "too_many")
    assert code == BAD_USAGE
    assert "'too_many' is one word too many" in err
