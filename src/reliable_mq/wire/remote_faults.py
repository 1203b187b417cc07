"""Error replies of a peer as exceptions: whose fault it is, and whether to retry.

Receives the code and the remark of an error reply. Returns the exception to raise.
Source: Apache RocketMQ `ResponseCode`, `BrokerFastFailure`, `AclException`.
"""

from reliable_mq.errors import BrokerBusy, NotFound, NotPermitted, Refused, RemoteError
from reliable_mq.wire.codes import ResponseCode

_USER_NOT_EXIST, _POLICY_NOT_EXIST = 3001, 3002

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


def no_name_server(address: str) -> str:
    """Return the text for a broker that was asked a question of a name server."""
    return (
        f"{address} is a broker, not a name server: give the address after namesrv= in its ready"
        " line (port 9876)"
    )


def remote_error(code: int, remark: str | None) -> RemoteError:
    """Return the most specific error for a reply with this code and remark."""
    text = remark or ""
    kind = _CLASSES.get(code, RemoteError)
    if code == ResponseCode.SYSTEM_ERROR:
        if any(word in text for word in _ACCESS_WORDS):
            kind = NotPermitted
        elif any(word in text for word in _BUSY_WORDS):
            kind = BrokerBusy
    return kind(code, text)
