"""Signatures of requests are those of Apache's client."""

import gc
import hmac
import tracemalloc
from base64 import b64encode

from hypothesis import given
from hypothesis import strategies as st

from reliable_mq.wire.command import request
from reliable_mq.wire.request_signature import (
    ACCESS_KEY,
    SIGNATURE,
    RequestSigner,
    add_signature,
)


@given(st.binary(max_size=200), st.binary(max_size=200), st.binary(max_size=200))
def test_a_signature_is_the_hmac_of_the_whole_content(
    secret: bytes, content: bytes, more: bytes
) -> None:
    expected = b64encode(hmac.digest(secret, content + more, "sha1"))
    assert RequestSigner(secret).of_content(content, more) == expected


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=6), st.binary())
def test_the_content_is_the_values_in_the_order_of_java_then_the_body(
    fields: dict[str, str], body: bytes
) -> None:
    kept = {name: value for name, value in fields.items() if name != SIGNATURE}
    names = sorted(kept, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
    content = "".join(kept[name] for name in names).encode("utf-8", "replace") + body
    expected = RequestSigner(b"secret").of_content(content)
    assert RequestSigner(b"secret").signature(fields, body, 493) == expected


def test_java_puts_characters_beyond_the_first_plane_before_the_last_of_it() -> None:
    signer = RequestSigner(b"secret")
    signed = signer.signature({"\uff5a": "1", "\U0001f600": "2"}, b"", 493)
    assert signed == signer.of_content(b"21")


def test_a_second_signature_replaces_the_first() -> None:
    command = request(10, {"topic": "t"}, b"x")
    add_signature(command, "a", "one")
    first = dict(command.ext_fields)
    add_signature(command, "b", "two")
    add_signature(command, "a", "one")

    assert command.ext_fields == first
    assert command.ext_fields[ACCESS_KEY] == "a"


def test_a_signer_does_not_show_its_secret() -> None:
    assert "secret" not in repr(RequestSigner(b"a secret"))


def test_odd_shapes_of_requests_are_not_kept() -> None:
    """Given names of a mebibyte each, from a sender who knows only a user's name, then none stays.

    512 of them would stay in memory.
    """
    signer = RequestSigner(b"x")
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(40):
            signer.signature({f"{number}" + "n" * (1 << 20): "value"}, b"", 493)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 8 << 20
