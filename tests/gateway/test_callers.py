"""Who makes a call: its own headers say it, also if a connection says the same each time."""

import pytest

from reliable_mq.gateway.caller import CLIENT_ID, Senders
from reliable_mq.gateway.codes import Code, RpcRefused

SIGNED, DATE = b"authorization", b"x-mq-date-time"
ADA = {CLIENT_ID: b"ada", SIGNED: b"MQv2-HMAC-SHA1 one", DATE: b"20261129T080000Z"}


@pytest.mark.parametrize(
    "changed",
    [
        {CLIENT_ID: b"bob"},
        {SIGNED: b"MQv2-HMAC-SHA1 two"},
        {DATE: b"20261129T080001Z"},
        {b"x-mq-language": b"JAVA"},
        {b"x-mq-client-version": b"5.2.0"},
    ],
)
def test_each_call_has_the_sender_of_its_own_headers(changed: dict[bytes, bytes]) -> None:
    senders, other = Senders(), {**ADA, **changed}
    for headers in (ADA, other, ADA, ADA, other):
        client_id, kept = senders.of(headers)
        assert client_id.encode() == headers[CLIENT_ID]
        assert kept == {name: value for name, value in headers.items() if name != CLIENT_ID}


def test_a_call_without_a_signature_gets_none_of_the_call_before() -> None:
    senders = Senders()
    senders.of(ADA)
    assert senders.of({CLIENT_ID: b"ada"}) == ("ada", {})


def test_a_call_without_a_client_is_refused_each_time() -> None:
    senders = Senders()
    for _ in range(2):
        senders.of(ADA)
        with pytest.raises(RpcRefused) as caught:
            senders.of({SIGNED: ADA[SIGNED]})
        assert caught.value.code is Code.CLIENT_ID_REQUIRED


def test_long_headers_do_not_stay_in_memory() -> None:
    senders = Senders()
    long = {**ADA, SIGNED: b"x" * 30_000}
    client_id, kept = senders.of(long)
    assert (client_id, len(kept[SIGNED])) == ("ada", 1_025)
    assert senders._headers == ()
    assert senders.of(ADA)[1][SIGNED] == ADA[SIGNED]
