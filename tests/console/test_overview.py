"""In five seconds: is anything wrong? Each sign has a word, an age, and the list that shows it."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl

import pytest
from tests.console.conftest import Browse
from tests.console.planted_rows import NOW, insert_rows, log, message_id, run, stub
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.client.administering.cluster_reply import ClusterReply
from reliable_mq.client.administering.thread_all_progress import GroupLine, all_progress
from reliable_mq.console import signs
from reliable_mq.console.all_lists import BY_NAME
from reliable_mq.console.lists import wanted_of
from reliable_mq.console.pages import LISTED
from reliable_mq.console.signs import Sign, State, of_database, of_run
from reliable_mq.errors import NotFound
from reliable_mq.escalate.escalation import EscalationKind
from reliable_mq.measuring.sql_last_run import LastRun, last_run
from reliable_mq.measuring.sql_throughput import Happening, SqlThroughput
from reliable_mq.telemetry.families import Sample

ALL = {"stubs", "dead-letters", "groups", "findings"}


def group(name: str, lag: int, members: int) -> GroupLine:
    return GroupLine(
        group=name, members=members, version=(), kind="", model="", per_second=0.0, lag=lag
    )


def by_name(found: list[Sign]) -> dict[str, Sign]:
    return {each.name: each for each in found}


def test_a_calm_application_has_nothing_wrong(mq: ReliableMQ, browse: Browse) -> None:
    insert_rows(mq.database, "reconcile_run", run())
    page = browse().get("/").text
    assert "Not all is known: broker" in page  # it is embedded elsewhere
    assert "0 findings" in page
    assert "Act now" not in page


def test_what_waits_for_a_person_is_the_first_that_is_said(mq: ReliableMQ, browse: Browse) -> None:
    waiting = stub(1, resend_time=None, status=0)
    insert_rows(mq.database, "message_stub", waiting)
    for number, kind in enumerate((EscalationKind.STUCK, EscalationKind.DEAD_LETTER)):
        row = {"kind": kind, "message_id": waiting["message_id"], "consumer_group": "billing"}
        more = {"topic": "orders", "reason": "no", "open_key": str(number), "create_date": NOW}
        insert_rows(mq.database, "escalation", row | more)
    insert_rows(mq.database, "reconcile_run", run(findings=3, is_clean=False))
    page = browse().get("/overview/live").text
    assert "Act now: escalations, dead letters, reconciliation" in page
    place = "/escalations?open=yes&amp;no_dead_letters=yes"
    assert f'href="{place}"' in page
    listed = browse().get(place.replace("amp;", "") + "&format=json").json()
    assert [row["kind"] for row in listed] == ["stuck"]
    assert "3 findings" in page


def test_figures_become_signs() -> None:
    samples = [
        Sample("reliable_mq_outbox_unsent_stubs", 3, ("main", "orders")),
        Sample("reliable_mq_outbox_oldest_unsent_seconds", 300.0, ("main",)),
        Sample("reliable_mq_dead_letters_open", 2, ("main", "billing")),
    ]
    found = by_name(signs.of_database("", samples, 4.0, "", ALL))
    assert found["Oldest unsent stub"].state is State.BAD
    assert found["Oldest unsent stub"].figure == "5 min"
    assert found["Dead letters"].figure == "2"
    assert found["Dead letters"].link.startswith("/dead-letters")
    assert found["Escalations"].state is State.WELL
    assert {each.age for each in found.values()} == {4.0}
    assert by_name(signs.of_database("", samples, 4.0, "", set()))["Dead letters"].link == ""
    named = by_name(signs.of_database("billing", samples, 4.0, "", ALL))
    assert named["billing: Backlog"].link.endswith("&database=billing")


def test_a_database_that_is_away_is_the_worst_and_its_last_figures_stay() -> None:
    samples = [Sample("reliable_mq_dead_letters_open", 2, ("main", "billing"))]
    found = by_name(signs.of_database("", samples, 90.0, "connection refused", ALL))
    assert found["Database"].state is State.BAD
    assert found["Database"].text == "connection refused"
    assert found["Dead letters"].age == 90.0
    assert len(signs.of_database("", None, None, "connection refused", ALL)) == 1


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        ([group("billing", 0, 1)], State.WELL),
        ([group("billing", 10, 1)], State.WELL),
        ([group("billing", 10, 0)], State.WARN),
        ([group("billing", 2_000, 1)], State.WARN),
    ],
)
def test_a_group_that_is_far_behind_or_alone_is_worth_a_look(
    lines: list[GroupLine], state: State
) -> None:
    assert by_name(signs.of_cluster(lines, {}, 1.0, "", ALL))["Lag of groups"].state is state


def test_a_broker_that_does_not_answer_is_named() -> None:
    found = by_name(signs.of_cluster([], {"broker-b": "timed out"}, 1.0, "", ALL))
    assert found["Broker"] == Sign("Broker", State.BAD, "partly away", "broker-b: timed out", 1.0)
    assert by_name(signs.of_cluster(None, {}, 0.0, "refused", ALL))["Broker"].age is None


def test_an_old_run_is_worth_a_look() -> None:
    old = LastRun("run-1", NOW, NOW, None, None, 0, is_clean=True, verdicts={})
    assert signs.of_run(old, NOW, 0.0, "", ALL).state is State.WELL
    late = NOW.replace(year=NOW.year + 1)
    assert signs.of_run(old, late, 0.0, "", ALL).state is State.WARN


def test_the_last_run_is_the_one_that_ended_last(mq: ReliableMQ) -> None:
    assert last_run(mq.database) is None
    earlier = NOW.replace(year=NOW.year - 1)
    insert_rows(mq.database, "reconcile_run", run(run_id="new", verdicts='{"SETTLED": 4}'))
    insert_rows(mq.database, "reconcile_run", run(run_id="old", finish_date=earlier))
    found = last_run(mq.database)
    assert found is not None
    assert (found.run_id, found.verdicts) == ("new", {"SETTLED": 4})


def test_each_minute_of_the_last_hour_is_counted(mq: ReliableMQ) -> None:
    throughput = SqlThroughput(mq.database)
    assert sum(map(sum, throughput.read().values())) == 0
    moment = datetime.now(UTC).replace(microsecond=0)  # `NOW` may be minutes ago
    row = stub(0, message_id=message_id(7, moment), status=1, resend_time=None, update_date=moment)
    insert_rows(mq.database, "message_stub", row)
    insert_rows(mq.database, "consume_log", log(row, consume_date=moment))
    counts = throughput.read()
    assert {what: sum(values) for what, values in counts.items()} == dict.fromkeys(Happening, 1)
    assert all(len(values) == 60 for values in counts.values())
    assert {tuple(values) for values in counts.values()} == {tuple(counts[Happening.COMMITTED])}


def test_a_minute_that_is_over_is_counted_once(mq: ReliableMQ, browse: Browse) -> None:
    throughput = SqlThroughput(mq.database, spans=5)
    throughput.read()
    asked: list[object] = []
    count = throughput._count
    throughput._count = lambda *given: asked.append(given) or count(*given)  # type: ignore[method-assign, func-returns-value]
    throughput.read()
    most = len(Happening) * (SqlThroughput.FRESH + 2)  # a minute may have begun meanwhile
    assert len(asked) <= most
    client = browse()
    until(lambda: "in the last hour, at most" in client.get("/overview/live").text)


def test_a_group_that_is_deleted_meanwhile_is_left_out() -> None:
    def gone(_group: str) -> Any:
        raise NotFound(17, "the group was deleted")

    admin: Any = SimpleNamespace(
        groups=SimpleNamespace(
            all_settings=lambda: ClusterReply({"gone": None}, {}), connections=gone
        ),
        offsets=SimpleNamespace(progress=lambda _group: ClusterReply(None, {})),
    )
    assert all_progress(admin) == ClusterReply([], {})


def test_each_link_of_a_sign_is_a_filter_that_its_list_takes() -> None:
    found = of_database("billing", [], 0.0, "", LISTED)
    links = [each.link for each in found if each.link]
    assert {each.partition("?")[0] for each in links} == {"/escalations", "/dead-letters", "/stubs"}
    for each in links:
        name, _, query = each.strip("/").partition("?")
        wanted_of(BY_NAME[name], parse_qsl(query, strict_parsing=bool(query)), ["main", "billing"])


def test_a_link_names_a_run_and_a_database_whatever_their_letters() -> None:
    run = LastRun("a&b#c", NOW, NOW, None, None, 1, False, {})
    assert of_run(run, NOW, 0.0, "", {"findings"}).link == "/findings?run=a%26b%23c"
    assert of_run(run, NOW, 0.0, "", {"findings"}, "a&b").link.endswith("c&database=a%26b")
    found = of_database("a&b", [], 0.0, "", {"stubs", "escalations"})
    assert {each.link for each in found if each.link} == {
        "/escalations?open=yes&no_dead_letters=yes&database=a%26b",
        "/stubs?status=unconfirmed&database=a%26b",
    }
