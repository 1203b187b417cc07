"""Who has signed a call: the users of a broker, or of the cluster behind the endpoint.

    authorization   MQv2-HMAC-SHA1 Credential=NAME/…, SignedHeaders=x-mq-date-time, Signature=HEX
    Signature       HMAC-SHA1 of the value of x-mq-date-time with the user's secret

What is signed is a time, and nothing of the call: whoever reads the call can make others. Only TLS
prevents that.
Source: apache/rocketmq-clients `Signature.java`; Apache RocketMQ
`DefaultAuthenticationContextBuilder`.
"""

import hmac
import re
from binascii import a2b_base64
from collections.abc import Awaitable, Callable

from reliable_mq.access.guard import Guard
from reliable_mq.access.users import AccessRefused, User, UserStatus, UserType
from reliable_mq.gateway.asyncio_upstream import Upstream
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import Code, RpcRefused

SIGNED = re.compile(
    r"MQv2-HMAC-SHA1\s+Credential=([^,\s/]+)(?:/[^,]*)?,\s*SignedHeaders=([^,\s]+),\s*"
    r"Signature=([0-9A-Fa-f]{40})\s*"
)
AUTHORIZATION_SIZE_MAX = 1024
_DATE_TIME = "x-mq-date-time"

Find = Callable[[str], Awaitable[User | None]]
"""Returns the user with a name, who may be disabled; None: there is none."""


async def signer_of(caller: Caller, find: Find) -> User:
    """Return the user who has signed a call.

    Raises:
        RpcRefused: nobody has, or the signature is not the user's.
    """
    if len(caller.headers.get(b"authorization", b"")) > AUTHORIZATION_SIZE_MAX:
        raise RpcRefused(
            Code.UNAUTHORIZED, f"authorization has at most {AUTHORIZATION_SIZE_MAX} bytes"
        )
    found = SIGNED.fullmatch(caller.text(b"authorization"))
    if found is None:
        raise RpcRefused(
            Code.UNAUTHORIZED, "the call is not signed: the client needs an access key and a secret"
        )
    name, signed, signature = found.groups()
    user = await find(name)
    if user is None:
        raise RpcRefused(Code.UNAUTHORIZED, f"User:{name} is not found.")
    if not user.is_enabled:
        raise RpcRefused(Code.UNAUTHORIZED, f"User:{name} is disabled.")
    content = caller.headers.get(_DATE_TIME.encode(), b"")
    made = a2b_base64(user.signer.of_content(content)).hex()
    is_right = hmac.compare_digest(made, signature.lower())
    if not content or signed.lower() != _DATE_TIME or not is_right:
        raise RpcRefused(Code.UNAUTHORIZED, "check signature failed.")
    return user


def users_of_guard(guard: Guard) -> Find:
    """Return what finds the users of a broker in this process."""

    async def find(name: str) -> User | None:
        try:
            return guard.claimed(name)
        except AccessRefused as refused:
            raise RpcRefused(Code.UNAUTHORIZED, str(refused)) from refused

    return find


def users_of_cluster(upstream: Upstream) -> Find:
    """Return what finds the users of the brokers behind the endpoint, which it asks for them."""

    async def find(name: str) -> User | None:
        row = await upstream.user(name)
        password = row.get("password")
        if not isinstance(password, str):
            return None
        is_super = row.get("userType") == UserType.SUPER
        is_disabled = row.get("userStatus") == UserStatus.DISABLE
        return User(
            username=name,
            password=password,
            user_type=UserType.SUPER if is_super else UserType.NORMAL,
            user_status=UserStatus.DISABLE if is_disabled else UserStatus.ENABLE,
        )

    return find
