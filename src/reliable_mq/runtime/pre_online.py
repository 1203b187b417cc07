"""A master that comes back takes over what its slaves have done, before it serves anybody.

It asks the name servers who its slaves are, until one answers. It tells each where it is (request
906), waits until the slave follows, and asks for its progress. Only then it is known that the
slave's log is the beginning of its own: a slave of ours reports the end of its log when it has
compared it.
Source: Apache RocketMQ `BrokerPreOnlineService`.
"""

import asyncio
import time

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.master_tables import log_bounds
from reliable_mq.broker_core.progress_of_slaves import questions, take_progress
from reliable_mq.host_and_port import host_and_port_of
from reliable_mq.line_limit import limited_log
from reliable_mq.replication.standing_in import MASTER
from reliable_mq.runtime.broker_members import ASKING_FAULTS, all_members, asked
from reliable_mq.runtime.ha_master import HaMaster
from reliable_mq.runtime.links import Links
from reliable_mq.runtime.server_connection import now_ms
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode

log = limited_log(__name__)

GIVE_UP_SECONDS = 30.0
"""So long a master waits for its slaves, and for a name server that knows them. A slave that is
lost leaves the name servers sooner."""
FOLLOW_SECONDS = 10.0
"""So long a slave may take to follow."""
ANSWER_SECONDS = 10.0
"""So long a slave may take until its last delivery is known."""
_RETRY_SECONDS = 0.5
_LOOK_SECONDS = 0.02
_UNKNOWN_SLAVES = "its slaves"


class PreOnline:
    """The way of one master until it serves.

    Args:
        core: of the master; it serves only slaves.
        master: knows the slaves that follow.
        links: to name servers and slaves.
    """

    def __init__(self, core: BrokerCore, master: HaMaster, links: Links) -> None:
        self._core = core
        self._master = master
        self._links = links

    async def run(self) -> None:
        """Return when the progress of every slave is known, or is not waited for any longer."""
        until = time.monotonic() + GIVE_UP_SECONDS
        done: set[str] = set()
        while True:
            slaves = await self._slaves()
            waiting = [address for address in slaves or () if address not in done]
            if slaves is not None and not waiting:
                return
            reasons = {address: await self._take(address) for address in waiting}
            done |= {address for address, reason in reasons.items() if not reason}
            left = {address: reason for address, reason in reasons.items() if reason}
            if slaves is None:
                left = {_UNKNOWN_SLAVES: "no name server answers"}
            if left and time.monotonic() > until:
                broker_events.PRE_ONLINE_GIVEN_UP.log(
                    log,
                    slaves=", ".join(left),
                    reason="; ".join(left.values()),
                    seconds=GIVE_UP_SECONDS,
                )
                return
            if left:
                await asyncio.sleep(_RETRY_SECONDS)

    async def _slaves(self) -> list[str] | None:
        """Return the addresses of the slaves; None: no name server answers.

        A name server may know this broker's own address as that of a slave, from before.
        """
        known: dict[int, str] = {}
        config = self._core.state.config
        answers = await all_members(self._links, config)
        if config.name_servers and all(members is None for members in answers):
            return None
        for members in answers:
            known.update(members or {})
        slaves = [known[number] for number in sorted(known) if number != MASTER]
        return [each for each in slaves if each != config.address]

    async def _take(self, address: str) -> str:
        """Take the progress of a slave over; return why that was not possible."""
        state = self._core.state
        try:
            info = await asked(self._links, address, RequestCode.GET_BROKER_RUNTIME_INFO)
            end = log_bounds(info.body)[1]
            if end > state.store.log.end:
                broker_events.SLAVE_AHEAD.log(
                    log, slave=address, end=end, own_end=state.store.log.end
                )
                return ""
            await asked(
                self._links,
                address,
                RequestCode.EXCHANGE_BROKER_HA_INFO,
                {
                    "masterHaAddress": state.config.ha_address,
                    "masterFlushOffset": str(state.store.log.durable),
                    "masterAddress": state.config.address,
                },
                ANSWER_SECONDS,
            )
            if not await self._follows(address, end):
                return f"slave {address} does not follow this master"
            for question in questions():
                code = RequestCode(question.code)
                answer = await asked(self._links, address, code, question.ext_fields)
                take_progress(state, code, answer, now_ms())
        except ASKING_FAULTS as error:
            return f"slave {address}: {error}"
        broker_events.PROGRESS_TAKEN_BACK.log(log, slave=address)
        return ""

    async def _follows(self, address: str, end: int) -> bool:
        """Wait until a slave at this host has reported the end of its log."""
        host = host_and_port_of(address).host
        until = time.monotonic() + FOLLOW_SECONDS
        while time.monotonic() < until:
            for slave in self._master.slaves:
                if slave.acknowledged >= end and host_and_port_of(slave.address).host == host:
                    return True
            await asyncio.sleep(_LOOK_SECONDS)
        return False
