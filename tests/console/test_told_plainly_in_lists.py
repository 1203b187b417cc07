"""An address and a form mean what they say: a flag that is no, a name that nothing uses."""

import csv
import io
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.console.conftest import Browse
from tests.console.doing_steps import look
from tests.console.planted_rows import ODD, insert_rows, log, message_id, run, stub
from tests.console.test_planted_text import check

from reliable_mq import ReliableMQ
from reliable_mq.client.administering.thread_all_progress import GroupLine
from reliable_mq.console.kept import Reading
from reliable_mq.console.list_cluster import GROUPS
from reliable_mq.console.lists import WantedPage, csv_lines
from reliable_mq.console.sources import ClusterState
from reliable_mq.errors import UsageError
from reliable_mq.escalate.audit_filter import AuditFilter
from reliable_mq.escalate.sql_operator_actions import OperatorActions
from reliable_mq.escalate.stub_filter import StubFilter
from reliable_mq.outbox.stub import StubEvent


@pytest.fixture
def shop(mq: ReliableMQ) -> ReliableMQ:
    """Give an application with a row that a flag wants, and one that it does not, in each list."""
    for number in range(2):
        row = stub(1, message_id=message_id(number))
        insert_rows(mq.database, "consume_log", log(row, failure=("late", None)[number]))
        act = {"create_date": row["create_date"], "actor": "ada", "action": "x", "detail": "{}"}
        insert_rows(
            mq.database, "audit", act | {"message_id": row["message_id"], "changed": 1 - number}
        )
        open_key = (row["message_id"], None)[number]
        escalation = {"kind": "stuck", "topic": "orders", "reason": "", "open_key": open_key}
        times = {"create_date": row["create_date"]}
        insert_rows(
            mq.database,
            "escalation",
            escalation | times | {"message_id": row["message_id"]},
        )
        insert_rows(mq.database, "reconcile_run", run(run_id=f"run-{number}", findings=1 - number))
    return mq


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("consume-logs", "failed"),
        ("audit", "changed"),
        ("escalations", "open"),
        ("runs", "findings"),
    ],
)
def test_no_means_the_rows_that_yes_does_not_have(
    shop: ReliableMQ, browse: Browse, name: str, flag: str
) -> None:
    client = browse()
    place = f"/{name}?format=json"
    key = "run_id" if name == "runs" else "message_id"
    found = {
        said: [row[key] for row in client.get(f"{place}&{flag}={said}").json()]
        for said in ("yes", "no", "")
    }
    assert len(found["yes"]) == len(found["no"]) == 1
    assert sorted(found["yes"] + found["no"]) == sorted(found[""])
    page = client.get(f"/{name}?{flag}=no").text
    assert "<option selected>no</option>" in page  # the form keeps it
    assert f'type="checkbox" id="f-{flag}"' in client.get(f"/{name}?{flag}=yes").text
    assert shop.database is not None


@pytest.mark.parametrize(
    ("values", "has_it", "wanted"),
    [
        ({}, 0, True),
        ({}, 7, True),
        ({"away": True}, 7, True),
        ({"away": True}, "", False),
        ({"away": False}, "", True),
        ({"away": False}, "x", False),
    ],
)
def test_a_flag_wants_a_row_or_does_not(
    values: dict[str, bool], has_it: object, wanted: bool
) -> None:
    assert WantedPage(values, "", 50, "main").agrees("away", has_it) is wanted


@pytest.mark.parametrize("changed", [0, 1])
def test_an_entry_of_a_broker_is_filtered_like_one_of_a_database(changed: int) -> None:
    row: dict[str, Any] = {"actor": "ada", "action": "x", "changed": changed}
    wanted = [AuditFilter(is_changed=each).takes(row, "") for each in (None, True, False)]
    assert wanted == [True, bool(changed), not changed]


def test_what_waits_for_no_person_is_not_taken_without_a_status(mq: ReliableMQ) -> None:
    actions = OperatorActions(mq.database, StubEvent.RETRY, actor="ada", why="")
    with pytest.raises(UsageError, match="only stubs that wait for a person"):
        actions.chosen(StubFilter(escalated=False))


@pytest.mark.parametrize("topic", ["ordres", "Orders"])
def test_the_pause_of_a_topic_that_nothing_knows_warns(
    mq: ReliableMQ, browse: Browse, topic: str
) -> None:
    client = browse()
    told = "Check the spelling: nothing uses this name."
    preview = look(client, "topic-pause", more={"topic": topic})
    assert preview.status_code == 200
    assert told in preview.text
    assert "The brokers cannot be asked" in preview.text
    assert told not in look(client, "topic-pause", more={"topic": "orders"}).text  # declared
    insert_rows(mq.database, "message_stub", stub(1, topic=topic))
    assert told not in look(client, "topic-pause", more={"topic": topic}).text  # has a stub


def test_a_field_sends_back_what_was_in_it(browse: Browse) -> None:
    client = browse()
    page = client.get("/topics", params={"name": ODD}).text
    check(page)
    field = page.partition('id="do-topic" name="more-topic" value="')[2].partition('"')[0]
    assert "&#8238;" in field  # the mark that turns what follows it
    assert "&#27;[31m" in field


@pytest.mark.parametrize(("fault", "old"), [("", ""), ("the broker is away", "61")])
def test_a_download_of_groups_says_how_old_kept_rows_are(fault: str, old: str) -> None:
    line = GroupLine(
        group="payments", members=1, version=(), kind="", model="", per_second=0.0, lag=7
    )
    reading = Reading(ClusterState([line], {}), 61.4, fault)
    sources = SimpleNamespace(cluster=SimpleNamespace(look=lambda: reading))
    page = GROUPS.page(cast("Any", sources), WantedPage({}, "", 50, "main"))
    (row,) = csv.DictReader(io.StringIO("".join(csv_lines(GROUPS, iter(page.rows)))))
    assert row["seconds_old"] == old
    assert ("61 s old" in " ".join(page.away)) == bool(fault)
