"""The pages of any filter, together, have the rows that the filter says: each once, in order.

Windows are a few rows here, so that each list has many, and an index seldom leads to the rows.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest
from tests.console.planted_rows import NOW, insert_rows, log, run, stub

from reliable_mq import ReliableMQ
from reliable_mq.console.list_ledgers import LOGS
from reliable_mq.console.list_runs import FINDINGS
from reliable_mq.console.list_stubs import STUBS
from reliable_mq.console.lists import RowList, wanted_of
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.database import sql_windows
from reliable_mq.escalate import sql_stub_ways

Row = dict[str, Any]
Matches = Callable[[Row, str], bool]
NUMBERS = range(24)
GROUPS, TOPICS, RUNS = ("billing", "stock"), ("orders", "returns"), ("run-1", "run-2", "run-3")
STATUSES = ("unconfirmed", "confirmed", "voided")


def planted(random: Random) -> tuple[list[Row], list[Row], list[Row]]:
    """Return stubs, consume logs and findings."""
    stubs, logs, findings = [], [], []
    for number in NUMBERS:
        status, topic = random.choice((0, 0, 1, 2)), random.choice(TOPICS)
        due = NOW if status == 0 and random.random() < 0.7 else None
        groups = random.choice(("billing", "stock", "billing,stock"))
        more: Row = {"topic": topic, "required_groups": groups, "message_key": f"k{number % 4}"}
        stubs.append(stub(number, status=status, resend_time=due, **more))
        for group in GROUPS:
            if random.random() < 0.6:
                state, failure = random.choice((0, 1)), random.choice((None, "refused"))
                more = {"consumer_group": group, "state": state, "failure": failure}
                logs.append(log(stubs[-1], **more, consume_date=NOW if state else None))
            for name in RUNS:
                if random.random() < 0.5:
                    verdict = random.choice(("stuck", "orphan"))
                    key: Row = {"run_id": name, "message_id": stubs[-1]["message_id"]}
                    more = {"consumer_group": group, "topic": topic, "verdict": verdict}
                    findings.append({**key, **more, "create_date": NOW, "evidence": "{}"})
    return stubs, logs, findings


@pytest.fixture(params=["sqlite", "postgresql"])
def mq(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[ReliableMQ]:
    url = f"sqlite:///{tmp_path}/s.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    made = ReliableMQ("shop", database=url, broker=f"embedded:{tmp_path}/store")
    made.create_tables()
    yield made
    made.close()


def filters(fields: dict[str, tuple[str, ...]]) -> Iterator[dict[str, str]]:
    """Yield all filters; "" is a field that was not given."""
    for values in itertools.product(*(("", *fields[name]) for name in fields)):
        yield {name: value for name, value in zip(fields, values, strict=True) if value}


def pages(sources: ConsoleSources, kind: RowList, query: dict[str, str]) -> list[Row]:
    """Return the rows of all pages of a filter."""
    found: list[Row] = []
    wanted = wanted_of(kind, [*query.items(), ("limit", "3")], list(sources.databases))
    for _ in range(200):
        page = kind.page(sources, wanted)
        assert len(page.rows) <= 3
        found += [dict(row) for row in page.rows]
        if not page.next:
            return found
        wanted = wanted._replace(cursor=page.next)
    raise AssertionError(f"{kind.name} {query}: no page is the last one")


def keys(rows: Sequence[Row], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


def matching(
    rows: Sequence[Row], query: dict[str, str], by: dict[str, Matches], *key: str
) -> list[tuple[Any, ...]]:
    """Return the keys of the rows that a filter matches, the greatest first."""
    some = [row for row in rows if all(by[name](row, value) for name, value in query.items())]
    return sorted(keys(some, *key), reverse=True)


def equals(name: str) -> Matches:
    return lambda row, value: bool(row[name] == value)


@pytest.mark.parametrize("few", [4, 1_000])
def test_all_pages_of_a_filter_have_its_rows(
    mq: ReliableMQ, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    for name, rows in (("WINDOW_ROWS", 7), ("COSTLY_ROWS", 5)):
        monkeypatch.setattr(sql_windows, name, rows)
    for name in ("FEW", "FEW_TOGETHER"):
        monkeypatch.setattr(sql_stub_ways, name, few)
    stubs, logs, findings = planted(Random(few))
    insert_rows(mq.database, "message_stub", *stubs)
    insert_rows(mq.database, "consume_log", *logs)
    insert_rows(mq.database, "reconcile_run", *(run(run_id=name, findings=1) for name in RUNS))
    insert_rows(mq.database, "reconcile_finding", *findings)
    consumed = {(row["message_id"], row["consumer_group"]) for row in logs if row["state"] == 1}
    verdicts = {
        (row["run_id"], row["message_id"], row["consumer_group"]): row["verdict"]
        for row in findings
    }
    sources = ConsoleSources(mq)
    order = {row["message_id"]: number for number, row in enumerate(stubs)}

    of_stubs: dict[str, Matches] = {
        "status": lambda row, value: STATUSES[row["status"]] == value,
        "escalated": lambda row, _: row["status"] == 0 and row["resend_time"] is None,
        "topic": equals("topic"),
        "key": equals("message_key"),
        "group": lambda row, value: (
            value in row["required_groups"].split(",")
            and (row["message_id"], value) not in consumed
        ),
    }
    fields: dict[str, tuple[str, ...]]
    fields = {"status": STATUSES, "escalated": ("yes",), "topic": TOPICS[:1], "key": ("k1",)}
    for query in filters({**fields, "group": GROUPS}):
        found = keys(pages(sources, STUBS, query), "message_id")
        match = matching(stubs, query, of_stubs, "message_id")
        assert found == sorted(match, key=lambda one: order[one[0]], reverse=True), query

    of_logs: dict[str, Matches] = {
        "group": equals("consumer_group"),
        "topic": equals("topic"),
        "state": lambda row, value: (row["state"] == 0) == (value == "received"),
        "failed": lambda row, _: row["failure"] is not None,
    }
    fields = {"group": GROUPS, "topic": TOPICS[:1], "state": ("received", "consumed")}
    key = ("message_id", "consumer_group")
    for query in filters({**fields, "failed": ("yes",)}):
        found = keys(pages(sources, LOGS, query), *key)
        assert found == matching(logs, query, of_logs, *key), query

    of_findings: dict[str, Matches] = {
        "run": equals("run_id"),
        "group": equals("consumer_group"),
        "verdict": equals("verdict"),
        "not_in": lambda row, value: (
            verdicts.get((value, row["message_id"], row["consumer_group"])) != row["verdict"]
        ),
    }
    fields = {"run": RUNS[:2], "group": GROUPS[:1], "verdict": ("orphan",)}
    for query in filters({**fields, "not_in": ("run-2", "none")}):
        found = keys(pages(sources, FINDINGS, query), "run_id", *key)
        assert found == matching(findings, query, of_findings, "run_id", *key), query
    sources.close()
