"""The fence of a master: it ends when another broker has been promoted to master of its name.

It asks the name servers who the master of this name is, and that broker for its epoch: before it
serves anybody, and every two seconds. So it also works with Apache's name servers, which know no
epochs. Ours refuse the registration of a former master, too.
"""

import asyncio
import ssl
from collections.abc import Callable

import msgspec

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.decodable import decodable
from reliable_mq.errors import FormerMaster, FrameError, Unavailable
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.broker_role import BrokerRole, RoleEnd
from reliable_mq.runtime.links import Links
from reliable_mq.runtime.registrar import send_nothing, sign_as
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import request
from reliable_mq.wire.peer_texts import read_json_as

log = limited_log(__name__)

LOOK_SECONDS = 2.0
"""Between two looks of a master at the name servers."""
_TIMEOUT = 2.0
_FAULTS = (Unavailable, FrameError, ValueError, KeyError, msgspec.MsgspecError)


class Fence:
    """The fence of one master.

    Args:
        core: the broker.
        role: its epoch; it ends the broker.
        tls: see `Links`.
    """

    def __init__(
        self,
        core: BrokerCore,
        role: BrokerRole,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._core = core
        self._role = role
        config = core.state.config
        self._name_servers = config.name_servers.split(";")
        self._links = Links(
            connect_timeout=_TIMEOUT,
            on_request=lambda _address, _command: None,
            greet=send_nothing,
            on_lost=lambda _address: None,
            sign=sign_as(config.access.inner_client),
            tells_outages=False,
            tls=tls,
        )

    async def check(self) -> None:
        """Look before the broker serves: another master with the same epoch was there first.

        Raises:
            FormerMaster: when another master has this epoch or a newer one.
        """
        for address, epoch, end in await self._others():
            if epoch >= self._role.note.epoch:
                raise self._former(address, epoch, end)

    async def watch_forever(self) -> None:
        """End the broker when another master has a newer epoch."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for address, epoch, end in await self._others():
                if epoch > self._role.note.epoch:
                    end_fenced(self._core, self._role, self._former(address, epoch, end))

    def _former(self, address: str, epoch: int, end: int) -> FormerMaster:
        name = self._core.state.config.broker_name
        return FormerMaster(
            f"the master of {name} is {address}: its epoch is {epoch} and its log ends at {end}; "
            f"{_what_is_here(self._core, self._role)}; start it with brokerRole=SLAVE and a "
            "brokerId above 0"
        )

    async def _others(self) -> list[tuple[str, int, int]]:
        """Return address, epoch and end of the log of other masters that have this name."""
        found = await asyncio.gather(*map(self._master_at, self._name_servers))
        own = self._core.state.config.address
        others = dict.fromkeys(each for each in found if each and each != own)
        return [each for each in await asyncio.gather(*map(self._epoch_of, others)) if each]

    async def _master_at(self, name_server: str) -> str:
        """Return the master of this name, as a name server knows it; "": it knows none."""
        config = self._core.state.config
        fields = {"clusterName": config.broker_cluster_name, "brokerName": config.broker_name}
        try:
            body = await self._ask(name_server, RequestCode.GET_BROKER_MEMBER_GROUP, fields)
            addresses = read_json_as(body, _Answer).broker_member_group.broker_addrs
        except _FAULTS:
            return ""
        return addresses.get(0, "")

    async def _epoch_of(self, address: str) -> tuple[str, int, int] | None:
        """Return the epoch of a master and where its log ends; None: it does not answer."""
        try:
            body = await self._ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, {})
            table = msgspec.json.decode(body, type=dict[str, dict[str, str]])["table"]
            return address, int(table.get("brokerEpoch", 0)), int(table["commitLogMaxOffset"])
        except _FAULTS:
            return None

    async def _ask(self, address: str, code: RequestCode, fields: dict[str, str]) -> bytes:
        answer = await self._links.call(address, request(code, fields), _TIMEOUT)
        if answer.code != ResponseCode.SUCCESS:
            raise ValueError(answer.remark or str(answer.code))
        return answer.body

    async def close(self) -> None:
        """Close the connections."""
        await self._links.close()


def end_second(core: BrokerCore, role: BrokerRole, remark: str) -> None:
    """End a broker that a name server refuses because another one has its name and id."""
    is_slave = core.state.config.is_slave
    advice = "another brokerId" if is_slave else "brokerRole=SLAVE and its own brokerId"
    what = _what_is_here(core, role)
    end_fenced(core, role, FormerMaster(f"{remark}; {what}; start it with {advice}"))


def _what_is_here(core: BrokerCore, role: BrokerRole) -> str:
    """Say what the store of this broker has."""
    end = core.state.store.log.end
    return (
        f"this store has epoch {role.note.epoch}, its log ends at {end}, and up to "
        f"{role.acknowledged(end)} it may have been acknowledged"
    )


def end_fenced(core: BrokerCore, role: BrokerRole, error: FormerMaster) -> None:
    """Refuse all messages from now on, and end the broker."""
    if role.is_fenced:
        return
    core.fence()
    broker_events.MASTER_FENCED.log(log, error=error)
    role.end(RoleEnd(error))


@decodable
class _Members(msgspec.Struct, frozen=True, rename="camel"):
    broker_addrs: dict[int, str] = {}


@decodable
class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    broker_member_group: _Members
