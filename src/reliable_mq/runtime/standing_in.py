"""A slave that stands in for its master: it looks whether a master is there, and acts if not.

It asks the name servers each second, as Apache's brokers do. The connection to the master counts
for more than what they say: while the master sends its log, it is there. Before it acts, the slave
takes over what another slave has delivered meanwhile.
Source: Apache RocketMQ `BrokerController.syncBrokerMemberGroup`, `onMinBrokerChange`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.delivery import schedule
from reliable_mq.broker_core.progress_of_slaves import questions, take_progress
from reliable_mq.line_limit import limited_log
from reliable_mq.replication.standing_in import MASTER, Members, StandInDecision, is_first
from reliable_mq.runtime.broker_members import ASKING_FAULTS, all_members, asked
from reliable_mq.runtime.links import Links
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.runtime.registrar import Registrar
from reliable_mq.runtime.sends_elsewhere import SendsElsewhere
from reliable_mq.runtime.server_connection import now_ms
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode

log = limited_log(__name__)

GIVE_WAY_SECONDS = 10.0
"""So long a slave waits for a master that has told it that it comes back."""
LEARN_SECONDS = 5.0
"""Between two looks at the progress of the slave that stands in."""
_DELIVER_SECONDS = 0.05
_LEAST_SECONDS = 0.1  # between two looks
_SAVE_SECONDS = 1.0


class StandingIn:
    """The looking and acting of one slave.

    Args:
        core: of the slave.
        links: to name servers, other masters and other slaves.
        registrar: knows the master.
        writer: saves the progress of timed messages.
        is_copying: whether the master sends its log now.
        wake: has the slave connect to its master now.
    """

    def __init__(
        self,
        core: BrokerCore,
        links: Links,
        registrar: Registrar,
        writer: LogWriter,
        is_copying: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        self._core = core
        self._state = core.state
        self._links = links
        self._registrar = registrar
        self._writer = writer
        self._is_copying = is_copying
        self._wake = wake
        self._standing = StandInDecision()
        self._learned = 0.0
        self._saved = 0.0
        self._sends = SendsElsewhere(core.state.config, links, core.state.stand_in.settle)
        self._notice = asyncio.Event()
        core.state.stand_in.on_master = self._master_told
        core.state.stand_in.on_notice = self._notice.set

    def _master_told(self, ha_address: str, address: str) -> None:
        """A master says that it comes back: give way, and follow it at once.

        While a master sends its log, nobody else is believed.
        """
        if self._is_copying():
            return
        self._standing.give_way(time.monotonic() + GIVE_WAY_SECONDS)
        self._end("the master comes back")
        if not self._registrar.is_controlled:  # else the controller says who the master is
            self._registrar.master_ha = ha_address
            self._registrar.master = address or self._registrar.master
        self._wake()

    async def watch_forever(self) -> None:
        """Look who is there, and begin or end to stand in."""
        config = self._state.config
        while True:
            answers = await all_members(self._links, config)
            first = is_first(config.broker_id, answers)
            await self._learn(answers)
            may_act = self._state.stand_in.knows_progress and not self._state.is_unverified
            must_not = self._is_copying() or not may_act
            acts = self._standing.look(time.monotonic(), first=first, is_copying=must_not)
            if acts != self._state.stand_in.is_acting:
                if acts:
                    self._begin()
                else:
                    self._end("another broker is first, or no name server answers")
            if acts:
                await self._save()
            await self._rest(config.heartbeat_ms / 1000)

    async def _rest(self, seconds: float) -> None:
        """Wait until the next look; a notice makes it come sooner, but not again and again."""
        pause = min(_LEAST_SECONDS, seconds)
        await asyncio.sleep(pause)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - pause):
                await self._notice.wait()
        self._notice.clear()

    def _begin(self) -> None:
        config = self._state.config
        self._core.deliver_elsewhere(now_ms())
        what = "delivers to other masters" if config.delivers_elsewhere else "delivers nothing"
        broker_events.STANDS_IN.log(
            log, who=config.shared_names, what=what, log_end=self._state.store.log.end
        )

    def _end(self, reason: str) -> None:
        if not self._state.stand_in.is_acting:
            return
        deliveries = self._state.stand_in.deliveries
        count = deliveries.accepted if deliveries is not None else 0
        self._core.give_way()
        self._state.files.change(schedule.PATH, self._state.schedule.dump)
        broker_events.STANDS_IN_NO_LONGER.log(log, reason=reason, messages=count)

    async def _learn(self, answers: list[Members | None]) -> None:
        """Take over what the slave that stands in has done, in case that it is lost, too."""
        now = time.monotonic()
        known = {number: at for each in answers if each for number, at in each.items()}
        if MASTER in known or self._state.stand_in.is_acting or self._is_copying():
            self._learned = 0.0
            return
        known.pop(self._state.config.broker_id, None)
        if now - self._learned < LEARN_SECONDS:
            return
        self._learned = now
        for address in known.values():
            await self._learn_from(address)

    async def _learn_from(self, address: str) -> None:
        try:
            for question in questions():
                code = RequestCode(question.code)
                answer = await asked(self._links, address, code, question.ext_fields)
                if not self._state.stand_in.is_acting:
                    take_progress(self._state, code, answer, now_ms())
        except ASKING_FAULTS as error:
            broker_events.SLAVE_PROGRESS_UNKNOWN.log(log, slave=address, error=error)

    async def _save(self) -> None:
        """Note the progress on the disk, so that a restart repeats little."""
        state = self._state
        if state.schedule.is_dirty:
            state.files.change(schedule.PATH, state.schedule.dump)
        await self._writer.run(state.timers.followed.save)

    async def deliver_forever(self) -> None:
        """Send what is due, again and again."""
        while True:
            await asyncio.sleep(_DELIVER_SECONDS)
            if (deliveries := self._state.stand_in.deliveries) is not None:
                self._sends.begin(deliveries)

    async def close(self) -> None:
        """Stop to send."""
        await self._sends.close()
