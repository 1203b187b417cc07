"""What other programs wrote is shown on no page as anything but text."""

from html.parser import HTMLParser
from urllib.parse import quote

import pytest
from tests.console.conftest import Browse
from tests.console.planted_rows import ODD, insert_rows, message_id, plant_everywhere, stub

from reliable_mq import ReliableMQ
from reliable_mq.console.all_lists import ROW_LISTS


class Tags(HTMLParser):
    """The tags and the attributes of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def check(page: str) -> None:
    """Check that a page has only what our templates have."""
    read = Tags(page)
    assert read.tags.count("script") <= 1  # the file of our own
    assert not any(name.startswith("on") or name == "style" for name in read.attributes)
    assert "<img src=x" not in page
    assert "7777819" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page  # a mark that turns what follows it


@pytest.mark.parametrize("place", [f"/{each.name}" for each in ROW_LISTS])
def test_no_list_shows_it_as_html(mq: ReliableMQ, browse: Browse, place: str) -> None:
    plant_everywhere(mq.database)
    answer = browse().get(place)
    assert answer.status_code == 200
    check(answer.text)


def test_no_other_page_shows_it_as_html(mq: ReliableMQ, browse: Browse) -> None:
    planted = plant_everywhere(mq.database)
    client = browse()
    paths = ["/", "/overview/live", f"/message?id={quote(planted, safe='')}"]
    paths += [f"/find?q={quote(ODD, safe='')}", f"/message?id={quote(ODD, safe='')}"]
    paths += [f"/stubs?topic={quote(ODD, safe='')}", f"/stubs?{quote(ODD, safe='')}=1"]
    paths += [f"/stubs?status={quote(ODD, safe='')}", f"/{quote(ODD, safe='')}"]
    for path in paths:
        answer = client.get(path)
        check(answer.text)
        assert answer.status_code < 500, path


def test_its_own_page_shows_all_of_it_as_text(mq: ReliableMQ, browse: Browse) -> None:
    planted = plant_everywhere(mq.database)
    answer = browse().get("/message", params={"id": planted})
    words = "".join(Tags(answer.text).words)
    assert answer.status_code == 200
    assert words.count("<script>alert(1)</script>") >= 10
    assert "😀\\u202eשלום\\x1b[31m" in words


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"x" * (4 << 20), "text, 4.0 MiB; the first 64.0 KiB are shown"),
        (b"\x00\xff" * 1000, "binary, 2.0 KiB"),
        (b'{"a": "\xd7\xa9"}', "JSON, 11 bytes"),
        ('"' + "é" * 40_000 + '"', "text, 78.1 KiB; the first 64.0 KiB are shown"),
        (b"[" * 20_000, "text, 19.5 KiB"),
        (b"", "text, 0 bytes"),
    ],
    ids=["4 MiB", "binary", "JSON", "cut in a letter", "deep", "empty"],
)
def test_a_payload_is_shown_by_its_type_and_at_most_64_kib_of_it(
    mq: ReliableMQ, browse: Browse, body: bytes | str, shown: str
) -> None:
    content = body.encode() if isinstance(body, str) else body
    insert_rows(mq.database, "message_stub", stub(1, content=content, message_id=message_id(1)))
    answer = browse().get("/message", params={"id": message_id(1)})
    assert shown in " ".join("".join(Tags(answer.text).words).split())
    assert len(answer.text) < 200_000


def test_a_cell_of_csv_is_never_a_formula(mq: ReliableMQ, browse: Browse) -> None:
    insert_rows(mq.database, "message_stub", stub(1, message_key="=HYPERLINK(1)", note="-1+1"))
    text = browse().get("/stubs?format=csv").text
    assert "'=HYPERLINK(1)" in text
    assert "'-1+1" in text
