"""Runs in files (`--runs`) and records in the files of a store (`--store`)."""

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from tests.console.conftest import Browse
from tests.console.planted_rows import ODD, insert_rows, message_id, stub
from tests.console.test_planted_text import check

from reliable_mq import Client, Message, ReliableMQ
from reliable_mq.console import console_app, file_runs
from reliable_mq.console.file_records import NoRecord, record_in, stores_of
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import MessageQueue


def summary(**values: Any) -> dict[str, Any]:
    finding = {"verdict": "lost", "message_id": message_id(1), "consumer_group": "billing"}
    more = {"topic": "orders", "says": "no log", "repair": "resend", "evidence": {"x": 1}}
    return {
        "as_of": "2026-11-29T08:00:00Z",
        "clean": False,
        "verdicts": {"settled": 4, "lost": 2},
        "whole": {"broker log": None, "stubs": "a table is missing"},
        "findings_total": 2,
        "findings": [finding | more, finding | {"message_id": message_id(2), "topic": "other"}],
        **values,
    }


def add_run(folder: Path, run_id: str, text: str, report: str = "") -> Path:
    path = folder / f"run-{run_id}"
    path.mkdir(parents=True)
    (path / "summary.json").write_text(text)
    if report:
        (path / "report.html").write_text(report)
    return path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Give a folder with a run of each kind."""
    folder = tmp_path / "report"
    add_run(folder, "a1", json.dumps(summary(clean=True, findings=[], findings_total=0)))
    add_run(folder, "b2", json.dumps(summary()), "<style>p {}</style><script>alert(1)</script>")
    add_run(folder, "c3", "{")
    (folder / "run-d4").mkdir()
    add_run(folder, "e5", "[]")
    (folder / "run-f6").symlink_to(tmp_path)
    (folder / "latest").symlink_to("run-b2")
    (folder / "other").mkdir()
    return folder


def test_runs_in_files_are_listed_with_what_cannot_be_read(runs: Path, browse: Browse) -> None:
    client = browse(runs=runs)
    rows = client.get("/run-files?format=json").json()
    assert [(row["run_id"], row["state"]) for row in rows] == [
        *(("e5", "unreadable"), ("d4", "unreadable"), ("c3", "unreadable")),
        *(("b2", "has findings"), ("a1", "clean")),
    ]
    assert "it has not ended, or was killed" in rows[1]["missing"]
    assert rows[3]["missing"] == "stubs: a table is missing"
    assert rows[3]["shown_verdicts"] == ["settled: 4", "lost: 2"]
    found = client.get("/run-files?findings=yes&format=json").json()
    assert [row["run_id"] for row in found] == ["b2"]
    assert client.get("/run-files?since=%2B1h").status_code == 400
    page = client.get("/run-files?limit=2")
    assert 'href="/run-files?limit=2&amp;cursor=2"' in page.text
    assert client.get("/run-files?cursor=x").status_code == 400
    assert '<a href="/run-files">Runs in files</a>' in client.get("/").text
    assert "Runs in files</a>" not in browse().get("/").text
    assert "start the console with --runs DIR" in browse().get("/run-files").text


def test_one_summary_is_held_at_a_time(
    runs: Path, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Summary(dict[str, Any]):
        """A summary that a weak reference can follow."""

    known: list[weakref.ref[Summary]] = []
    held = []
    reads = file_runs.read_run

    def read(run_id: str, path: Path) -> file_runs.RunFile:
        held.append(sum(each() is not None for each in known))
        found = reads(run_id, path)
        summary = Summary(found.summary)
        known.append(weakref.ref(summary))
        return found._replace(summary=summary)

    monkeypatch.setattr(file_runs, "read_run", read)
    assert len(browse(runs=runs).get("/run-files?format=json").json()) == 5
    assert held == [0] * 5


def test_the_findings_of_a_file_are_filtered(runs: Path, browse: Browse) -> None:
    client = browse(runs=runs)
    rows = client.get("/run-file-findings?run=b2&format=json").json()
    assert [row["topic"] for row in rows] == ["orders", "other"]
    assert (rows[0]["says"], rows[0]["repair"], rows[0]["evidence"]) == (
        "no log",
        "resend",
        {"x": 1},
    )
    rows = client.get("/run-file-findings?run=b2&topic=other&format=json").json()
    assert [row["message_id"] for row in rows] == [message_id(2)]
    cut = json.dumps(summary(findings_total=1_500_000))
    (runs / "run-b2" / "summary.json").write_text(cut)
    page = client.get("/run-file-findings?run=b2").text
    assert "of 1,500,000 findings, the summary has the first 2" in page
    for run in ("none", "..", "../../etc", "f6", "%00"):
        assert client.get(f"/run-file-findings?run={run}").status_code == 400, run
    answer = client.get("/run-file-findings")  # the newest
    assert "its summary is none" in answer.text


def test_a_report_is_downloaded_and_runs_no_script_here(runs: Path, browse: Browse) -> None:
    client = browse(runs=runs)
    answer = client.get("/run-files/report?run=b2")
    assert answer.status_code == 200
    assert "<style>" in answer.text
    assert answer.headers["content-disposition"] == 'attachment; filename="run-b2.html"'
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    for run in ("a1", "none", "..", "../..", "f6", ""):
        assert client.get("/run-files/report", params={"run": run}).status_code == 404, run
    assert browse().get("/run-files/report?run=b2").status_code == 404


def test_what_a_summary_has_is_shown_as_text(tmp_path: Path, browse: Browse) -> None:
    folder = tmp_path / "report"
    odd = dict.fromkeys(("verdict", "message_id", "consumer_group", "topic", "says"), ODD)
    text = json.dumps(summary(verdicts={ODD: ODD}, whole={ODD: ODD}, as_of=ODD, findings=[odd, 7]))
    add_run(folder, "a1", text)
    client = browse(runs=folder)
    for path in ("/run-files", "/run-file-findings"):
        answer = client.get(path)
        assert answer.status_code == 200
        check(answer.text)
    assert "alert(1)" in client.get("/run-file-findings?format=json").text


def test_a_folder_that_goes_away_is_told(runs: Path, browse: Browse) -> None:
    client = browse(runs=runs)
    runs.rename(runs.with_name("gone"))
    assert "No such file" in client.get("/run-files").text
    assert client.get("/run-files/report?run=b2").status_code == 503


@pytest.mark.parametrize("wrong", [{"runs": "none"}, {"stores": ["none"]}, {"stores": ["a=none"]}])
def test_a_folder_that_is_not_there_is_refused(mq: ReliableMQ, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"--(runs|store) none: "):
        console_app(mq, **wrong)


def test_stores_have_the_names_of_their_brokers(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    named, other = f"broker-a={tmp_path}", str(tmp_path)
    assert stores_of([named, other]) == {"broker-a": tmp_path, "": tmp_path}
    with pytest.raises(ConfigurationError, match="there is one already of broker-a"):
        stores_of([named, named])


@pytest.mark.processes
def test_a_message_is_read_from_the_store_while_its_broker_is_away(
    mq: ReliableMQ, tmp_path: Path, browse: Browse
) -> None:
    with (
        ReliableMQBroker(tmp_path / "broker", "ASYNC_FLUSH") as broker,
        Client(broker.name_server_address) as sender,
    ):
        places = []
        for number in range(3):
            body = json.dumps({"order": number}).encode() + b" " * 6_000 * number
            sent = sender.send(Message(topic="orders", body=body, keys=(f"o-{number}",)))
            places.append(sent)
    (store,) = (path.parent for path in (tmp_path / "broker").rglob("commitlog"))
    found = record_in(store, sent.queue, sent.queue_offset)
    assert (found.message_id, found.keys, json.loads(found.body)) == (
        *(sent.message_id, ("o-2",)),
        {"order": 2},
    )
    row = stub(1, message_id=sent.message_id, broker_name=sent.queue.broker_name)
    row |= {"queue_id": sent.queue.queue_id, "offset": sent.queue_offset}
    insert_rows(mq.database, "message_stub", row)
    client = browse(stores=[str(store)])
    page = client.get("/message", params={"id": sent.message_id}).text
    assert "What the broker keeps was read from its store" in page
    assert "<dt><bdi>KEYS</bdi></dt><dd><bdi>o-2</bdi></dd>" in page
    assert "not asked: it runs inside" in page
    other = browse(stores=[f"another={store}"])
    assert "its store" not in other.get("/message", params={"id": sent.message_id}).text
    place = MessageQueue("orders", "b", sent.queue.queue_id)
    for queue, offset in (
        (place, 4_000_000),
        (place, -1),
        (MessageQueue("../../etc", "b", 0), 0),
    ):
        with pytest.raises(NoRecord):
            record_in(store, queue, offset)
    with pytest.raises(OSError, match="none"):
        record_in(store, MessageQueue("none", "b", 0), 0)
    (log,) = (store / "commitlog").glob("0*")
    with log.open("r+b") as file:
        file.write(b"\0" * 64)
    with pytest.raises(NoRecord, match="no whole record at 0"):
        record_in(store, places[0].queue, places[0].queue_offset)
