"""Content types, as RFC 9110 writes them."""

import pytest

from reliable_mq.errors import UsageError
from reliable_mq.outbox.media_type import media_type_of


@pytest.mark.parametrize(
    ("text", "kind", "parameters"),
    [
        ("text/plain", "text/plain", {}),
        (" Text/PLAIN ", "text/plain", {}),
        ("text/plain;charset=latin-1", "text/plain", {"charset": "latin-1"}),
        ("text/plain ; Charset=UTF-8 ; a=b", "text/plain", {"charset": "UTF-8", "a": "b"}),
        ('a/b; name="a;b"', "a/b", {"name": "a;b"}),
        (r'a/b; name="say \"x\" \\"', "a/b", {"name": 'say "x" \\'}),
        ("a/b; x=1; x=2", "a/b", {"x": "1"}),
        ("a/b;", "a/b", {}),
        ("a/b;; x=1", "a/b", {"x": "1"}),
        ('a/b; x=""', "a/b", {"x": ""}),
        ("a/" + "b" * 125, "a/" + "b" * 125, {}),
    ],
)
def test_a_content_type_reads(text: str, kind: str, parameters: dict[str, str]) -> None:
    found = media_type_of(text)
    assert (found.kind, found.parameters) == (kind, parameters)


@pytest.mark.parametrize(
    "text",
    [
        *("", "text", "/plain", "text/", "a b/c", "a/b c", "a/b,c/d"),
        *("a/b; x", "a/b; x=", "a/b; =1", 'a/b; x="1', "a/b x=1", "a/b; x=1 y=2"),
        *("a/b\n", "a/b\0", "a/" + "b" * 126),
    ],
)
def test_what_is_no_content_type_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="content type"):
        media_type_of(text)


@pytest.mark.parametrize("value", [None, 3, b"a/b"])
def test_a_content_type_is_a_text(value: object) -> None:
    with pytest.raises(UsageError, match="is not a text"):
        media_type_of(value)


@pytest.mark.parametrize(
    ("text", "is_json"),
    [
        ("application/json", True),
        ("application/JSON; charset=utf-8", True),
        ("application/cloudevents+json", True),
        ("application/jsonl", False),
        ("text/json", False),
        ("a/json+xml", False),
    ],
)
def test_json_is_named_so_or_stands_below_another_name(text: str, is_json: bool) -> None:
    assert media_type_of(text).is_json is is_json


def test_text_is_utf_8_when_nothing_is_said() -> None:
    assert media_type_of("text/plain").charset == "utf-8"
    assert media_type_of("text/plain; charset=ascii").charset == "ascii"
