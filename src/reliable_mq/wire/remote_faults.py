"""Error replies of a peer as exceptions: whose fault it is, and whether to retry.

Receives the code and the remark of an error reply. Returns the exception to raise.
Source: Apache RocketMQ `ResponseCode`, `BrokerFastFailure`, `AclException`.
"""

import re
from collections.abc import Mapping

from reliable_mq.errors import BrokerBusy, NotFound, NotPermitted, Refused, RemoteError
from reliable_mq.wire.codes import ResponseCode

_USER_NOT_EXIST, _POLICY_NOT_EXIST = 3001, 3002

RETRY_AFTER_MS = "retryAfterMs"
"""A field of our broker's refusals: after so many ms the same request may succeed."""
_RETRY_MS_MAX = 3_600_000

_CLASSES: dict[int, type[RemoteError]] = {
    ResponseCode.SYSTEM_BUSY: BrokerBusy,
    ResponseCode.SERVICE_NOT_AVAILABLE: BrokerBusy,
    ResponseCode.FLOW_CONTROL: BrokerBusy,
    ResponseCode.NO_PERMISSION: NotPermitted,
    _USER_NOT_EXIST: NotPermitted,
    _POLICY_NOT_EXIST: NotPermitted,
    ResponseCode.TOPIC_NOT_EXIST: NotFound,
    ResponseCode.QUERY_NOT_FOUND: NotFound,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: NotFound,
    ResponseCode.MESSAGE_ILLEGAL: Refused,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: Refused,
    ResponseCode.INVALID_PARAMETER: Refused,
    ResponseCode.ILLEGAL_OPERATION: Refused,
}
# Code 1 may mean anything. The remark says whether a broker shed load or denied access.
_BUSY_WORDS = ("BUSY", "[OVERLOAD]", "[REJECTREQUEST]", "_CLEAN_QUEUE]")
_ACCESS_WORDS = ("AclException", "AuthenticationException", "AuthorizationException")
_NO_ACCOUNT = "No accessKey is configured"
_NO_USER = re.compile(r"User:\S* is not found")
_RIGHT_MISSING = re.compile(
    r"User:(?P<user>\S+) has no permission to access (?P<resource>\S+:\S+) from "
)
_ACCOUNT = "access_key and secret_key (RELIABLE_MQ_ACCESS_KEY and RELIABLE_MQ_SECRET_KEY)"
_GIVE_ACCOUNT = f"the broker wants an account: set {_ACCOUNT}"
_CORRECT_ACCOUNT = f"correct {_ACCOUNT}: they are not those of a user of this broker"


def with_remedy(remark: str) -> str:
    """Return a remark of access control, with what to do about it if that is known."""
    text = remark.rstrip(".")
    if _NO_ACCOUNT in text:
        return f"{text}: {_GIVE_ACCOUNT}"
    if _NO_USER.search(text):
        return f"{text}: {_CORRECT_ACCOUNT}"
    if (found := _RIGHT_MISSING.search(text)) is not None:
        return (
            f"{text}: if it shall, give it the right (reliable-mq access grant {found['user']}"
            f" --allow {found['resource']}=ACTION; ACTION is Pub to send, Sub to consume, Get to"
            " look)"
        )
    return remark


def pause_seconds(ext: Mapping[str, str]) -> float:
    """Return how long a refused request should wait, at most an hour; 0.0: the peer says nothing.

    `ext`: the fields of the refusal.
    """
    text = ext.get(RETRY_AFTER_MS, "")
    is_number = text.isascii() and text.isdecimal() and len(text) < 11
    return min(int(text), _RETRY_MS_MAX) / 1000 if is_number else 0.0


def no_name_server(address: str) -> str:
    """Return the text for a broker that was asked a question of a name server."""
    return (
        f"{address} is a broker, not a name server: give the address after namesrv= in its ready"
        " line (port 9876)"
    )


def remote_error(
    code: int, remark: str | None, ext: Mapping[str, str] | None = None
) -> RemoteError:
    """Return the most specific error for a reply with this code, remark and fields."""
    text = remark or ""
    kind = _CLASSES.get(code, RemoteError)
    if code == ResponseCode.SYSTEM_ERROR:
        if any(word in text for word in _ACCESS_WORDS):
            kind = NotPermitted
        elif any(word in text for word in _BUSY_WORDS):
            kind = BrokerBusy
    if kind is NotPermitted:
        text = with_remedy(text)
    error = kind(code, text)
    if ext:
        error.pause_seconds = pause_seconds(ext)
    return error
