"""The fence of a master: it ends when another broker has been promoted to master of its name.

It asks the name servers who the master of this name is, and that broker for its epoch: before it
serves anybody, and every two seconds. So it also works with Apache's name servers, which know no
epochs. Ours refuse the registration of a former master, too.
"""

import asyncio
import ssl
from collections.abc import Callable

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.master_tables import epoch_of, log_bounds
from reliable_mq.errors import FormerMaster
from reliable_mq.line_limit import limited_log
from reliable_mq.replication.standing_in import MASTER
from reliable_mq.runtime.broker_members import ASKING_FAULTS, TIMEOUT, all_members, asked
from reliable_mq.runtime.broker_role import BrokerRole, RoleEnd
from reliable_mq.runtime.links import Dial
from reliable_mq.runtime.registrar import asking_links
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode

log = limited_log(__name__)

LOOK_SECONDS = 2.0
"""Between two looks of a master at the name servers."""


class Fence:
    """The fence of one master.

    Args:
        core: the broker.
        role: its epoch; it ends the broker.
        tls: see `Links`.
        dial: see `asking_links`.
    """

    def __init__(
        self,
        core: BrokerCore,
        role: BrokerRole,
        tls: Callable[[], ssl.SSLContext] | None = None,
        dial: Dial | None = None,
    ) -> None:
        self._core = core
        self._role = role
        self._links = asking_links(core.state.config, TIMEOUT, tls, dial)

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
        config = self._core.state.config
        found = [each.get(MASTER, "") for each in await all_members(self._links, config) if each]
        others = dict.fromkeys(each for each in found if each not in ("", config.address))
        return [each for each in await asyncio.gather(*map(self._epoch_of, others)) if each]

    async def _epoch_of(self, address: str) -> tuple[str, int, int] | None:
        """Return the epoch of a master and where its log ends; None: it does not answer."""
        try:
            answer = await asked(self._links, address, RequestCode.GET_BROKER_RUNTIME_INFO)
            return address, epoch_of(answer.body), log_bounds(answer.body)[1]
        except ASKING_FAULTS:
            return None

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
