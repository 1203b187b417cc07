"""Whether the brokers behind a proxy accept the proxy itself; asked once when it starts.

A proxy asks brokers for topics, groups and users as its own user. If that is wrong, each call of
each client fails later, for a reason that no client can mend.
"""

import asyncio
from typing import Final

from reliable_mq.access.users import User
from reliable_mq.gateway.asyncio_upstream import Upstream
from reliable_mq.gateway.codes import RpcRefused
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import request

log = limited_log(__name__)

_MAY_NOT = "has no permission"
"""What a broker says to a user whose signature is right."""
AGAIN_SECONDS: Final = 3.0
"""Until brokers that did not answer are asked again. The connections tell that they are away."""


class TrustCheck:
    """Asks each broker for one user.

    Args:
        upstream: the brokers.
        user: signs the questions; None: nobody.
        needs_users: whether the proxy must know the users of the brokers, as clients sign. Without
            that, its own user needs no right to ask for them.
    """

    def __init__(self, upstream: Upstream, user: User | None, *, needs_users: bool) -> None:
        self._upstream = upstream
        self._needs_users = needs_users
        self._name = user.username if user is not None else ""
        self._asked: set[str] = set()

    async def run(self) -> None:
        """Ask until all brokers have answered; write a line for each that refuses."""
        while not await self.run_once():
            await asyncio.sleep(AGAIN_SECONDS)

    async def run_once(self) -> bool:
        """Ask the brokers that have not answered yet; return whether all have."""
        try:
            brokers = await self._upstream.brokers()
        except RpcRefused:  # no name server answers
            return False
        for broker in brokers:
            if broker.name not in self._asked and broker.master:
                await self._ask(broker.name, broker.master)
        return bool(brokers) and all(each.name in self._asked for each in brokers)

    async def _ask(self, name: str, address: str) -> None:
        question = request(RequestCode.AUTH_GET_USER, {"username": self._name or "-"})
        try:
            answer = await self._upstream.ask(address, question)
        except RpcRefused:  # it does not answer
            return
        self._asked.add(name)
        is_known = not self._needs_users and _MAY_NOT in (answer.remark or "")
        if answer.code == ResponseCode.NO_PERMISSION and not is_known:
            broker_events.PROXY_REFUSED.log(
                log,
                broker=name,
                address=address,
                user=f"user {self._name}" if self._name else "somebody who does not sign",
                reason=(answer.remark or "").strip().rstrip("."),
            )
