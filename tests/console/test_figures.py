"""What the console counts of itself, at its address /metrics."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from tests.console.conftest import Browse
from tests.console.doing_steps import done, ended, look, start
from tests.console.oidc_provider import Provider, settings
from tests.console.planted_rows import insert_rows
from tests.console.test_doing import parked, touch
from tests.console.test_guard import PASSWORD, log_in

from reliable_mq import ReliableMQ
from reliable_mq.console.users import Role, add_user
from reliable_mq.telemetry.metrics import metrics_of


def figures(client: TestClient) -> dict[str, float]:
    """Return the figures of the console, by name and the value of the label."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        "/".join((sample.name.removeprefix("reliable_mq_console_"), *sample.labels.values())): (
            sample.value
        )
        for family in families
        for sample in family.samples
        if sample.name.startswith("reliable_mq_console_")
    }


def test_answers_and_work_are_counted(mq: ReliableMQ, browse: Browse) -> None:
    rows = [parked(1), parked(2)]
    insert_rows(mq.database, "message_stub", *rows)
    client = browse()
    before = figures(client)
    assert before["works_total/ended"] == before["rows_total/done"] == 0
    for path in ("/topics", "/stubs?nothing=1", "/log-in/none", "/static/none", "/healthz"):
        client.get(path)
    after = figures(client)
    # The reading before is counted, too; the style sheet and the probe are not.
    assert after["answers_total/2xx"] == before["answers_total/2xx"] + 2
    assert after["answers_total/4xx"] == 2
    assert after["answers_total/5xx"] == after["running_works"] == 0
    assert after["answer_seconds_total"] > before["answer_seconds_total"]

    preview = look(client, "stub-retry", ids=[str(row["message_id"]) for row in rows])
    touch(mq, rows[0])
    ended(client, start(client, preview))
    last = figures(client)
    assert last["works_total/ended"] == last["rows_total/done"] == last["rows_total/changed"] == 1


def test_work_that_fails_and_log_ins_that_are_refused_are_counted(
    mq: ReliableMQ, browse: Browse, provider: Provider, tmp_path: Path
) -> None:
    users = tmp_path / "users.json"
    add_user(users, "ada", Role.ADMIN, PASSWORD)
    client = browse(users=users, oidc=settings(provider))
    assert log_in(client, "ada", "wrong") == 403
    assert client.get("/log-in/oidc/back").status_code == 403
    assert log_in(client, "ada") == 303
    insert_rows(mq.database, "message_stub", parked(1))
    preview = look(client, "stub-retry")
    with mq.database.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE rmq_audit")
    assert ended(client, start(client, preview))["state"] == "failed"
    found = figures(client)
    assert found["refused_log_ins_total"] == 2
    assert found["works_total/failed"] == 1


@pytest.mark.parametrize("name", [each.name for each in metrics_of("console")])
def test_each_declared_figure_is_served(browse: Browse, name: str) -> None:
    served = {f"reliable_mq_console_{each.partition('/')[0]}" for each in figures(browse())}
    assert name in served


def test_a_deed_that_is_done_is_no_failure(mq: ReliableMQ, browse: Browse) -> None:
    insert_rows(mq.database, "message_stub", parked(1))
    client = browse()
    assert done(client, "stub-void", query={"topic": "orders"}) == {"done": 1}
    assert figures(client)["works_total/failed"] == 0
