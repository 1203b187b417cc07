"""What a call is and who makes it: its own headers say it, also if others say nearly the same."""

import pytest

from reliable_mq.gateway.answer_heads import NOT_GRPC, NOT_POST
from reliable_mq.gateway.caller import CLIENT_ID, KindOfCall, kind_of_call, seconds_of
from reliable_mq.gateway.codes import Code
from reliable_mq.gateway.hpack import Headers
from reliable_mq.gateway.message_facts import SERVICE
from reliable_mq.gateway.request_heads import TIMEOUT, RequestHead, RequestHeads

SIGNED, DATE, REQUEST = b"authorization", b"x-mq-date-time", b"x-mq-request-id"
ADA = {
    b":method": b"POST",
    b":scheme": b"http",
    b":path": f"/{SERVICE}/AckMessage".encode(),
    b"content-type": b"application/grpc",
    CLIENT_ID: b"ada",
    SIGNED: b"MQv2-HMAC-SHA1 one",
    DATE: b"20261129T080000Z",
    REQUEST: b"1",
    TIMEOUT: b"3S",
}


def kind(heads: RequestHeads, headers: dict[bytes, bytes]) -> KindOfCall:
    head = heads.of(list(headers.items()))
    assert head.why == ""
    return kind_of_call(head)


@pytest.mark.parametrize(
    "changed",
    [
        {CLIENT_ID: b"bob"},
        {SIGNED: b"MQv2-HMAC-SHA1 two"},
        {DATE: b"20261129T080001Z"},
        {b"x-mq-language": b"JAVA"},
        {b"x-mq-client-version": b"5.2.0"},
        {b":path": f"/{SERVICE}/SendMessage".encode()},
    ],
)
def test_each_call_has_the_sender_of_its_own_headers(changed: dict[bytes, bytes]) -> None:
    heads, other = RequestHeads(), {**ADA, **changed}
    for number, headers in enumerate((ADA, other, ADA, ADA, other)):
        found = kind(heads, {**headers, REQUEST: b"%d" % number})
        assert found.name == headers[b":path"].decode().rpartition("/")[2]
        assert found.sender.client_id.encode() == headers[CLIENT_ID]
        kept = {SIGNED, DATE, b"x-mq-language", b"x-mq-client-version"}
        assert found.sender.headers == {name: headers[name] for name in kept & headers.keys()}
        assert found.sender.refused is None


def test_a_call_without_a_signature_gets_none_of_the_call_before() -> None:
    heads = RequestHeads()
    kind(heads, ADA)
    unsigned = {name: value for name, value in ADA.items() if name not in {SIGNED, DATE}}
    assert kind(heads, unsigned).sender.headers == {}


def test_a_call_without_a_client_is_refused_each_time() -> None:
    heads = RequestHeads()
    nobody = {name: value for name, value in ADA.items() if name != CLIENT_ID}
    for _ in range(2):
        kind(heads, ADA)
        refused = kind(heads, nobody).sender.refused
        assert refused is not None
        assert refused.code is Code.CLIENT_ID_REQUIRED


def test_each_call_has_its_own_time() -> None:
    heads = RequestHeads()
    for seconds in (3, 5, 7):
        headers = list({**ADA, TIMEOUT: b"%dS" % seconds}.items())
        assert seconds_of(heads.of(headers).timeout(headers)) == seconds
    without = list(ADA.items())[:-1]
    assert heads.of(without).timeout(without) is None


def test_calls_that_differ_in_number_and_time_share_a_head() -> None:
    heads = RequestHeads()
    first = heads.of(list(ADA.items()))
    assert heads.of(list({**ADA, REQUEST: b"2", TIMEOUT: b"9S"}.items())) is first
    assert heads.of(list({**ADA, DATE: b"later"}.items())) is not first


@pytest.mark.parametrize("value", [b"", b"a\nb", b" a", b"a\r", b"\0"])
def test_a_changing_value_is_judged_each_time(value: bytes) -> None:
    heads = RequestHeads()
    heads.of(list(ADA.items()))
    headers: Headers = list({**ADA, REQUEST: value}.items())
    assert heads.of(headers).why == RequestHead(headers).why


def test_other_headers_at_the_same_places_are_other_heads() -> None:
    heads = RequestHeads()
    heads.of(list(ADA.items()))
    renamed = [(b"upgrade" if name == REQUEST else name, value) for name, value in ADA.items()]
    assert "upgrade" in heads.of(renamed).why
    assert heads.of([]).why != ""


def test_what_is_no_call_of_grpc_has_an_answer_of_http() -> None:
    heads = RequestHeads()
    assert kind(heads, {**ADA, b"content-type": b"text/html"}).no_call == NOT_GRPC
    assert kind(heads, {**ADA, b":method": b"GET"}).no_call == NOT_POST
    assert kind(heads, {**ADA, b":path": b"/elsewhere"}).name == ""


def test_long_headers_do_not_stay_in_memory() -> None:
    heads = RequestHeads()
    long = {**ADA, SIGNED: b"x" * 30_000}
    found = kind(heads, long)
    assert (found.sender.client_id, len(found.sender.headers[SIGNED])) == ("ada", 1_025)
    assert heads._kept == {}
    for number in range(100):
        kind(heads, {**ADA, b":path": b"/%d" % number, SIGNED: b"x" * 300})
        heads.invariants()
    assert 0 < len(heads._kept) < 20


def test_many_short_headers_do_not_stay_in_memory() -> None:
    """Each costs an object, however few bytes it has."""
    heads = RequestHeads()
    heads.of([*ADA.items(), *((b"x%d" % number, b"") for number in range(250))])
    assert not heads._kept
    heads.of(list(ADA.items()))
    assert heads._kept
    heads.invariants()
