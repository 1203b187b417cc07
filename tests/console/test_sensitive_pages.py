"""No page, no download and no command shows the value of a sensitive field."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.console.conftest import Browse
from tests.console.planted_rows import insert_rows, log, message_id, plant_everywhere, run, stub
from tests.console.test_files import add_run, summary

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import run as run_command
from reliable_mq.console.all_lists import ROW_LISTS

SECRET = "4111-2222-3333"
BODIES = {
    "field": json.dumps({"order": 4711, "card_number": SECRET}).encode(),
    "alias": json.dumps({"order": 4711, "data": [{"cardNumber": {"digits": SECRET}}]}).encode(),
    "inside": json.dumps({"order": 4711, "raw": json.dumps({"cardNumber": SECRET})}).encode(),
    "no JSON": f"order=4711&card_number={SECRET}".encode(),
    "binary": b"\x00\xff" + SECRET.encode(),
    "long": json.dumps({"card_number": SECRET, "a": "x" * 600_000}).encode(),
}


@pytest.fixture
def shop(mq: ReliableMQ) -> ReliableMQ:
    """Give the application with a message of each body; its key is the name of the body."""
    mq.topic("orders", sensitive=["card_number"])
    plant_everywhere(mq.database)
    for number, (key, body) in enumerate(BODIES.items()):
        headers = json.dumps({"Card-Number": SECRET, "colour": "red"})
        row = stub(1, message_id=message_id(number), message_key=key, content=body)
        insert_rows(mq.database, "message_stub", row | {"properties": headers})
        insert_rows(mq.database, "consume_log", log(row, state=0, failure="no card"))
    return mq


CRC = "89abcdef"
EVIDENCE = {"content_crc": CRC, "record_crc": CRC, "differing_crc": CRC, "note": f"crc {CRC}"}


def plant_findings(mq: ReliableMQ, folder: Path) -> None:
    """Plant a finding of a sensitive message: in the tables, and in a file."""
    row: dict[str, Any] = {
        "run_id": "run-9",
        "message_id": message_id(0),
        "consumer_group": "billing",
    }
    row |= {"verdict": "content differs", "topic": "orders", "create_date": run()["as_of"]}
    row |= {"evidence": json.dumps(EVIDENCE | {"stub_seq": 4712})}
    insert_rows(mq.database, "reconcile_finding", row)
    insert_rows(mq.database, "reconcile_run", run(run_id="run-9", findings=1))
    found: dict[str, Any] = {
        name: row[name] for name in ("message_id", "consumer_group", "verdict", "topic")
    }
    found |= {"says": f"the stub's content has crc {CRC}, the record has {CRC}"}
    found |= {"evidence": EVIDENCE | {"stub_seq": 4712}}
    report = f"<dt>content crc</dt><dd>{CRC}</dd><p>the stub's content has crc {CRC}</p>"
    add_run(folder, "b2", json.dumps(summary(findings=[found])), report)


def test_no_checksum_of_a_whole_body_is_shown(
    shop: ReliableMQ, browse: Browse, tmp_path: Path
) -> None:
    plant_findings(shop, tmp_path / "runs")
    client = browse(runs=tmp_path / "runs")
    for path in ("/findings?run=run-9", "/run-file-findings?run=b2"):
        for form in ("", "&format=csv", "&format=json"):
            text = client.get(path + form).text
            assert message_id(0) in text, path + form
            assert CRC not in text, path + form
        (row,) = client.get(f"{path}&format=json").json()
        assert row["evidence"] == {"note": "crc [masked]", "stub_seq": 4712}
    report = client.get("/run-files/report?run=b2")
    assert report.headers["content-disposition"] == 'attachment; filename="run-b2.html"'
    assert report.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    masked = "<dt>content crc</dt><dd>[masked]</dd><p>the stub's content has crc [masked]</p>"
    assert report.text == masked
    page = client.get(f"/message?id={message_id(0)}").text
    assert "4712" in page
    assert CRC not in page


def test_the_checksums_of_other_topics_are_shown(
    mq: ReliableMQ, browse: Browse, tmp_path: Path
) -> None:
    plant_findings(mq, tmp_path / "runs")
    client = browse(runs=tmp_path / "runs")
    for path in ("/findings?run=run-9&", "/run-file-findings?run=b2&"):
        (row,) = client.get(f"{path}format=json").json()
        assert row["evidence"]["content_crc"] == CRC
    assert client.get("/run-files/report?run=b2").text.count(CRC) == 2


def test_a_guess_of_a_masked_header_finds_nothing(shop: ReliableMQ, browse: Browse) -> None:
    for number, name in ((90, "card_number"), (91, "note")):
        row = stub(1, message_id=message_id(number), message_key=f"k-{number}")
        insert_rows(shop.database, "message_stub", row | {"properties": f'{{"{name}": "4711-x"}}'})
    answer = browse().get("/find?q=4711-x")
    assert answer.headers["location"] == f"/message?id={message_id(91)}"
    answer = browse().get(f"/find?q={SECRET}")
    assert "No source that answered" in answer.text


def pages(client: TestClient) -> Iterator[tuple[str, str]]:
    """Yield the address and the text of each page and each download."""
    addresses = ["/", "/overview/live", "/metrics", "/find?q=field", "/find?q=4711", "/works"]
    for each in ROW_LISTS:
        addresses += [f"/{each.name}{form}" for form in ("", "?format=csv", "?format=json")]
    addresses += [f"/message?id={message_id(number)}" for number in range(len(BODIES))]
    for address in addresses:
        answer = client.get(address, follow_redirects=True)
        yield address, answer.text


def test_no_page_and_no_download_has_it(shop: ReliableMQ, browse: Browse) -> None:
    for address, text in pages(browse()):
        assert SECRET not in text, address
        assert SECRET.encode().hex(" ") not in text, address


@pytest.mark.parametrize(("number", "key"), list(enumerate(BODIES)))
def test_a_page_says_what_is_masked_or_why_nothing_is_shown(
    shop: ReliableMQ, browse: Browse, number: int, key: str
) -> None:
    page = browse().get("/message", params={"id": message_id(number)}).text
    is_shown = key in ("field", "alias", "inside")
    assert ("sensitive fields are masked" in page) is is_shown
    assert ("&#34;order&#34;: 4711" in page) is is_shown
    assert ("this payload cannot be looked into" in page) is not is_shown
    assert "<bdi>red</bdi>" in page


def test_a_topic_without_sensitive_fields_is_shown_as_it_is(mq: ReliableMQ, browse: Browse) -> None:
    row = stub(1, message_id=message_id(1), content=BODIES["field"])
    insert_rows(mq.database, "message_stub", row)
    page = browse().get("/message", params={"id": message_id(1)}).text
    assert SECRET in page
    assert "masked" not in page


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_stub_show_masks_it_too(
    shop: ReliableMQ,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    form: list[str],
) -> None:
    url = shop.database.engine.url.render_as_string(hide_password=False)
    name = f"sensitive_shop{len(form)}"
    (tmp_path / f"{name}.py").write_text(
        "from reliable_mq import ReliableMQ\n"
        f"mq = ReliableMQ('shop', database={url!r}, broker='embedded:{tmp_path}/store')\n"
        "mq.topic('orders', groups=['billing'], sensitive=['card_number'])\n"
    )
    monkeypatch.chdir(tmp_path)
    plant_findings(shop, tmp_path / "runs")
    capfd.readouterr()
    for number in range(len(BODIES)):
        with pytest.raises(SystemExit):
            run_command(["stub", "show", message_id(number), "--app", f"{name}:mq", *form])
    out, err = capfd.readouterr()
    with pytest.raises(SystemExit):
        run_command(["stub", "show", SECRET, "--app", f"{name}:mq", *form])
    assert "no ledger knows a message" in "".join(capfd.readouterr())
    assert SECRET not in out + err
    assert CRC not in out + err
    assert out.count("4711") == 3
    assert out.count("it cannot be looked into") == 3
