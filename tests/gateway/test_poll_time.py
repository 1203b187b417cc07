"""How long a receive may wait at a broker: as long as its client, and no longer."""

import pytest

from reliable_mq.gateway.asyncio_consuming import poll_ms_of
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.sessions import Session

SESSION = Session("client-1", TYPES["Settings"](request_timeout={"seconds": 3}))


def poll_ms(left_seconds: float, version: str = "5.2.0", **fields: object) -> int:
    caller = Caller("client-1", "10.0.0.1", {b"x-mq-client-version": version.encode()}, 0.0)
    return poll_ms_of(caller, TYPES["ReceiveMessageRequest"](**fields), SESSION, left_seconds)


def test_a_wait_ends_before_its_client_hangs_up() -> None:
    """Else a message that comes at the end of the wait is given to nobody."""
    assert poll_ms(8.0, long_polling_timeout={"seconds": 20}) == 7_700
    assert poll_ms(5.0, long_polling_timeout={"seconds": 5}) == 4_700
    assert poll_ms(30.0, long_polling_timeout={"seconds": 20}) == 20_000


@pytest.mark.parametrize(
    ("version", "code"),
    [
        ("5.0.2", Code.BAD_REQUEST),
        ("", Code.BAD_REQUEST),
        ("x.y", Code.BAD_REQUEST),
        ("5.0.3", Code.ILLEGAL_POLLING_TIME),
        ("5.10.0", Code.ILLEGAL_POLLING_TIME),
        ("10.0.0", Code.ILLEGAL_POLLING_TIME),
    ],
)
def test_only_clients_before_5_0_3_get_the_older_code(version: str, code: Code) -> None:
    with pytest.raises(RpcRefused) as caught:
        poll_ms(3.0, version, long_polling_timeout={"seconds": 5})
    assert caught.value.code is code
