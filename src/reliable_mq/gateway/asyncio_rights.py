"""What a client may do: the endpoint asks a broker as the user who has signed the client's call.

Routes, settings of groups and check-backs come from what the endpoint itself knows, and no broker
sees for whom they are. So a broker is asked first. The four questions change nothing: brokers check
the rights of each request before they look at it, also of those that they do not support.
"""

import asyncio
import math
from collections.abc import Mapping

from reliable_mq.gateway.acting import ACTING, Acting
from reliable_mq.gateway.asyncio_upstream import Upstream
from reliable_mq.gateway.codes import Code, RpcRefused, refused_by_broker
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import request

ALLOWED_SECONDS = 20.0
"""How long it is kept that a client may do something,"""
REFUSED_SECONDS = 1.0
"""and that it may not,"""
SHOWN_SECONDS = 1.0
"""and that a producer may be shown half messages of others."""
KEPT_MAX = 20_000

_PASSED: Mapping[int, frozenset[int]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED}),
    RequestCode.CHECK_TRANSACTION_STATE: frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED}),
    RequestCode.QUERY_CONSUMER_OFFSET: frozenset(
        {
            ResponseCode.QUERY_NOT_FOUND,
            ResponseCode.TOPIC_NOT_EXIST,
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        }
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: frozenset({ResponseCode.SYSTEM_ERROR}),  # no members
}
"""What a broker answers, besides success, to those who may ask."""

_Key = tuple[Acting | None, int, str, str]


class Rights:
    """What clients may do. Each answer is for one user at one address.

    Args:
        upstream: the brokers.
    """

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._kept: dict[_Key, tuple[float, str]] = {}  # when it was asked, and why not

    async def see(self, topic: str) -> None:
        """Return if the caller may send to a topic, consume it, or read about it.

        Raises:
            RpcRefused: when it may not.
        """
        fields = {"topic": topic}
        await self._check(ACTING.get(), RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, topic)

    async def send(self, topic: str) -> None:
        """Return if the caller may send to a topic.

        Raises:
            RpcRefused: when it may not.
        """
        await self._check_sender(ACTING.get(), topic)

    async def consume(self, topic: str, group: str) -> None:
        """Return if the caller may consume a topic as a member of a group.

        Raises:
            RpcRefused: when it may not.
        """
        fields = {"topic": topic, "consumerGroup": group, "queueId": "0"}
        await self._check(ACTING.get(), RequestCode.QUERY_CONSUMER_OFFSET, fields, topic, group)

    async def join(self, group: str) -> None:
        """Return if the caller may be a member of a group.

        Raises:
            RpcRefused: when it may not.
        """
        fields = {"consumerGroup": group}
        await self._check(ACTING.get(), RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields, "", group)

    async def may_send(self, acting: Acting | None, topic: str) -> bool:
        """Whether a client may be shown a half message of a topic; it makes no call now."""
        try:
            await self._check_sender(acting, topic, SHOWN_SECONDS)
        except RpcRefused:
            return False
        return True

    async def _check_sender(
        self, acting: Acting | None, topic: str, seconds: float = ALLOWED_SECONDS
    ) -> None:
        fields = {"topic": topic, "tranStateTableOffset": "0", "commitLogOffset": "0"}
        code = RequestCode.CHECK_TRANSACTION_STATE
        await self._check(acting, code, fields, topic, seconds=seconds)

    async def _check(
        self,
        acting: Acting | None,
        code: int,
        fields: Mapping[str, str],
        topic: str,
        group: str = "",
        *,
        seconds: float = ALLOWED_SECONDS,
    ) -> None:
        now = asyncio.get_running_loop().time
        key = (acting, code, topic, group)
        asked_at, fault = self._kept.get(key, (-math.inf, ""))
        if now() - asked_at > (REFUSED_SECONDS if fault else seconds):
            fault = await self._ask(acting, code, fields, topic)
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[key] = (now(), fault)
        if fault:
            raise RpcRefused(Code.FORBIDDEN, fault)

    async def _ask(
        self, acting: Acting | None, code: int, fields: Mapping[str, str], topic: str
    ) -> str:
        """Return why a broker refuses a question of this client; "": it does not."""
        address = await self._upstream.any_master(topic)
        before = ACTING.set(acting)
        try:
            answer = await self._upstream.ask(address, request(code, dict(fields)))
        finally:
            ACTING.reset(before)
        if answer.code == ResponseCode.NO_PERMISSION:
            return answer.remark or "no permission"
        if answer.code != ResponseCode.SUCCESS and answer.code not in _PASSED[code]:
            raise refused_by_broker(answer.code, answer.remark)
        return ""
