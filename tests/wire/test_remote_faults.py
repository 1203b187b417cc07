"""Which error a refused request raises: by its code, or by the words of code 1."""

import pytest

from reliable_mq.errors import BrokerBusy, NotFound, NotPermitted, Refused, RemoteError
from reliable_mq.wire.remote_faults import remote_error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *((code, BrokerBusy) for code in (2, 14, 215)),
        *((code, NotPermitted) for code in (16, 3001, 3002)),
        *((code, NotFound) for code in (17, 22, 26)),
        *((code, Refused) for code in (13, 23, 29, 604)),
        *((code, RemoteError) for code in (1, 3, 3000, 3003, 9999)),
    ],
)
def test_a_code_says_whose_fault_it_is(code: int, kind: type[RemoteError]) -> None:
    error = remote_error(code, "why")
    assert type(error) is kind
    assert (error.code, error.remark) == (code, "why")


@pytest.mark.parametrize(
    ("remark", "kind"),
    [
        ("[PC_SYNCHRONIZED]broker BUSY", BrokerBusy),
        ("[OVERLOAD]system is overloaded", BrokerBusy),
        ("[REJECTREQUEST]too many", BrokerBusy),
        ("[TIMEOUT_CLEAN_QUEUE]broker waits", BrokerBusy),
        ("org.apache.rocketmq.acl.common.AclException: no", NotPermitted),
        ("AuthenticationException: who?", NotPermitted),
        ("AuthorizationException: not you, although BUSY", NotPermitted),
        ("disk is full", RemoteError),
        (None, RemoteError),
    ],
)
def test_what_a_broker_says_in_words_only_is_read(
    remark: str | None, kind: type[RemoteError]
) -> None:
    assert type(remote_error(1, remark)) is kind


def test_words_count_only_where_the_code_says_nothing() -> None:
    assert type(remote_error(17, "BUSY")) is NotFound
    assert type(remote_error(3, "AclException")) is RemoteError


@pytest.mark.parametrize(
    ("code", "remark"),
    [(16, "username cannot be null."), (1, "AclException: No accessKey is configured")],
)
def test_who_has_no_account_is_asked_to_give_one(code: int, remark: str) -> None:
    error = remote_error(code, remark)

    assert type(error) is NotPermitted
    assert str(error).startswith(f"code {code}: {remark.rstrip('.')}")
    assert str(error).count("RELIABLE_MQ_SECRET_KEY") == 1


@pytest.mark.parametrize(
    ("remark", "remedy"),
    [
        ("User:ann is not found.", "correct access_key and secret_key (RELIABLE_MQ_ACCESS_KEY"),
        (
            "User:ann has no permission to access Group:pay from 10.0.0.1, no matched policies.",
            "(reliable-mq access grant ann --allow Group:pay=ACTION; ACTION is Pub to send, ",
        ),
    ],
)
def test_a_refusal_says_who_can_end_it(remark: str, remedy: str) -> None:
    assert remedy in str(remote_error(16, remark))
