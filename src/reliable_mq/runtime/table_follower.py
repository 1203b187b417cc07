"""The tables of a slave: it asks its master for them, again and again.

It asks every few seconds, and at once when the master says that they have changed, or when the log
has a topic that this slave does not know.
It receives the address of the master. It takes topics, groups and progress over, tells the master
what consumers have committed here, and learns where the master's log begins and ends.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.master_tables import MasterTables, epoch_of, log_bounds
from reliable_mq.host_and_port import host_and_port_of
from reliable_mq.line_limit import limited_log
from reliable_mq.replication.ha_status import MasterState
from reliable_mq.runtime.broker_members import ASKING_FAULTS, asked
from reliable_mq.runtime.broker_role import BrokerRole
from reliable_mq.runtime.links import Links
from reliable_mq.runtime.registrar import Registrar
from reliable_mq.runtime.server_connection import now_ms
from reliable_mq.telemetry import broker_events
from reliable_mq.telemetry.outages import FaultRate
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.java_properties import parse_properties
from reliable_mq.wire.record import address_of

log = limited_log(__name__)

TABLES_SECONDS = 5.0
"""Between two looks at the master's tables. Apache's slaves look each minute."""
_TIMEOUT = 5.0
_CUT_SECONDS = 0.02  # between two looks whether tables and log fit together
_PAUSE_SECONDS = 0.02  # the least between two rounds
_PAUSE_SHARE = 4  # so many times as long as a round took is the next pause, at least


class TableFollower:
    """Asks a slave's master for its tables."""

    def __init__(
        self, core: BrokerCore, links: Links, registrar: Registrar, role: BrokerRole
    ) -> None:
        self._role = role
        self._config = core.state.config
        self._known = core.state.master_tables
        self._stand_in = core.state.stand_in
        self._tables = MasterTables(core.state)
        self._links = links
        self._registrar = registrar
        self.master = MasterState()  # learns where the master's log ends
        self._address = ""  # of the master of the last round
        self._faults = FaultRate()
        self._hint = asyncio.Event()

    def hint(self) -> None:
        """Ask for the tables soon: they have changed."""
        self._hint.set()

    async def log_range(self) -> tuple[int, int]:
        """Return where the master's log begins and ends.

        Raises:
            ConnectionError: when the master does not say it.
        """
        await self._refuse_other()
        if not self._registrar.master:
            raise ConnectionError("no name server knows a master of this slave's brokerName")
        try:
            code, master = RequestCode.GET_BROKER_RUNTIME_INFO, self._registrar.master
            answer = await asked(self._links, master, code, timeout=_TIMEOUT)
            self._role.learn_epoch(epoch_of(answer.body))
            return log_bounds(answer.body)
        except ASKING_FAULTS as error:
            raise ConnectionError(
                f"the master does not say where its log begins and ends: {error}"
            ) from error

    async def _refuse_other(self) -> None:
        """Ask the master for its names and its segment size, before anything is copied.

        The broker behind `haMasterAddress` may be another one than the name servers know. It is
        asked at the port before, where a broker is by default.

        Raises:
            ConnectionError: when it cannot be the master of this slave.
        """
        config = self._config
        places = {self._registrar.master: ""}
        if config.ha_master and config.ha_master != self._registrar.master_ha:
            host, port = host_and_port_of(config.ha_master)
            places[address_of(host, (port or 1) - 1)] = str(port)
        for address, ha_port in places.items():
            if not address:
                continue
            try:
                answer = await asked(self._links, address, RequestCode.GET_BROKER_CONFIG)
                theirs = parse_properties(answer.body.decode())
            except ASKING_FAULTS:
                continue
            if not ha_port or theirs.get("haListenPort") == ha_port:
                _refuse_differing(config, address, theirs)

    async def follow_forever(self) -> None:
        """Take the tables over, again and again, and learn where the master's log ends."""
        known = self._known
        while True:
            address, began = self._registrar.master, time.monotonic()
            self._hint.clear()
            if address != self._address:
                self._tables.lost()
                self._address = address
            if address and not self._stand_in.is_acting:
                try:
                    if await self._take(address):
                        known.taken(now_ms())
                        self._stand_in.knows_progress = True
                    self.master.end = max(self.master.end, self._tables.log_end)
                except ASKING_FAULTS as error:
                    known.failure = str(error)
                    self._tables.lost()
                    if self._faults.count_fault(address, time.monotonic()) is not None:
                        broker_events.MASTER_TABLES_MISSED.log(log, master=address, error=error)
            took = time.monotonic() - began
            await self._rest(TABLES_SECONDS if address else TABLES_SECONDS / 50, took)

    async def _rest(self, seconds: float, took: float) -> None:
        """Wait until the next round, or for a hint. Large tables are not asked for all the time."""
        pause = max(_PAUSE_SECONDS, _PAUSE_SHARE * took)
        await asyncio.sleep(min(pause, seconds))
        if pause < seconds:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds - pause):
                    await self._hint.wait()

    async def _take(self, address: str) -> bool:
        """Take the tables over, and then tell what consumers have committed here.

        Return whether they are taken over: not yet, while the log is not as far as they are.
        """
        tables = self._tables
        for question in tables.begin():
            tables.answered(question.code, await self._call(address, question), now_ms())
        until = time.monotonic() + TABLES_SECONDS
        while not tables.settle(now_ms()):
            # A copy of much may take hours; topics do not wait for it.
            if time.monotonic() > until or self._hint.is_set():
                return False
            await asyncio.sleep(_CUT_SECONDS)
        for place, offset, command in tables.commits():
            tables.committed(place, offset, await self._call(address, command), now_ms())
        return True

    async def _call(self, address: str, question: Command) -> Command:
        return await self._links.call(address, question, _TIMEOUT)


def _refuse_differing(config: BrokerConfig, address: str, theirs: Mapping[str, str]) -> None:
    own = {
        "brokerName": config.broker_name,
        "brokerClusterName": config.broker_cluster_name,
        "mappedFileSizeCommitLog": str(config.segment_size),
    }
    names = [name for name, value in own.items() if theirs.get(name, value) != value]
    if names:
        there, here = (
            ", ".join(f"{name}={values[name]}" for name in names) for values in (theirs, own)
        )
        raise ConnectionError(
            f"the broker at {address} has {there}, and this slave has {here}; both must be the same"
        )
