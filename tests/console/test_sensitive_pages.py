"""No page, no download and no command shows the value of a sensitive field."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.console.conftest import Browse
from tests.console.planted_rows import insert_rows, log, message_id, plant_everywhere, stub

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import run
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
    for number in range(len(BODIES)):
        with pytest.raises(SystemExit):
            run(["stub", "show", message_id(number), "--app", f"{name}:mq", *form])
    out, err = capfd.readouterr()
    assert SECRET not in out + err
    assert out.count("4711") == 3
    assert out.count("it cannot be looked into") == 3
