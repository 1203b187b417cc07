"""The broker's machine: the real core over a disk in memory, started, killed and started again.

Does what `runtime.broker_server.BrokerServer` does, one event at a time.
"""

import itertools
from collections.abc import Callable

from tests.simulation.model import Model
from tests.simulation.network import Link, Network
from tests.simulation.plan import BODY_SIZE_MAX, DELAY_LEVELS
from tests.simulation.world import World
from tests.simulation.writer import Writer

from reliable_mq.broker_core.config import BrokerConfig, broker_config
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.testing.memory_disk import MemoryDisk, Stopped
from reliable_mq.wire.command import decode_command, decode_request

_CHECK_EVERY = 50  # turns between two looks at all invariants


def config_of(world: World) -> BrokerConfig:
    """Return the broker's settings."""
    plan = world.plan
    config, warnings = broker_config(
        {
            "brokerName": "broker",
            "mappedFileSizeCommitLog": str(plan.segment_size),
            "mappedFileSizeConsumeQueue": str(plan.queue_file_size),
            "maxHashSlotNum": "50",
            "maxIndexNum": "500",
            "maxMessageSize": str(BODY_SIZE_MAX * 2),
            "messageDelayLevel": DELAY_LEVELS,
            "flushDiskType": "SYNC_FLUSH" if plan.is_sync_flush else "ASYNC_FLUSH",
            "flushConsumerOffsetInterval": "300",
            "flushDelayOffsetInterval": "200",
            "transactionCheckInterval": "100000000",
            "mappedFileSizeTimerLog": "4096",
            "rocketmq.broker.rebalance.lockMaxLiveTime": "3000",
        }
    )
    assert not warnings
    return config


class Machine:
    """One broker over its lives."""

    def __init__(self, world: World, model: Model) -> None:
        self._world = world
        self._model = model
        self._config = config_of(world)
        self._life = itertools.count(1)
        self._turn_is_due = False
        self._turn_count = 0
        self._writer: Writer
        self.lives = 0
        self.disk = MemoryDisk()
        self.core: BrokerCore | None = None
        self.network = Network(world, self)

    def start(self) -> None:
        """Start the broker over what the disk has."""
        world = self._world
        if self.core is not None:
            return
        self.lives = next(self._life)
        world.note("start", self.lives)
        if not world.is_calm and world.chance(world.plan.crash_in_recovery):
            self.disk.stop_before = len(self.disk.operations) + world.random.randint(0, 30)
        core = BrokerCore(self._config, self.disk)
        try:
            core.open(world.now_ms)
        except Stopped:
            world.note("crash while starting")
            self._fall()
            return
        self.disk.stop_before = None
        self.core = core
        self._model.opened(core, self.disk)
        self._writer = Writer(
            world, self.disk, self._model.reached_disk, self._stored, self._guard_of(self.lives)
        )
        self._turn_is_due = False
        self._run_turn()
        self._every(world.plan.tick_ms, self._tick)
        self._every(world.plan.checkpoint_ms, self._checkpoint)
        self._every(self._config.timer_interval_ms, self._checkpoint_timers)

    def _guard_of(self, life: int) -> Callable[[Callable[[], None]], None]:
        """Return what runs a step only in this life, and lets the machine fall when it stops."""

        def guard(act: Callable[[], None]) -> None:
            if self.core is not None and self.lives == life:
                try:
                    act()
                except Stopped as stop:
                    self._world.note("stopped at", *stop.args)
                    self._fall()

        return guard

    def _every(self, interval_ms: float, act: Callable[[], None]) -> None:
        guard = self._guard_of(self.lives)

        def again() -> None:
            act()
            self._world.later(interval_ms, lambda: guard(again))

        self._world.later(interval_ms, lambda: guard(again))

    # what happens to it

    def crash_soon(self) -> None:
        """Stop the machine at one of its next operations on the disk, a write perhaps half done."""
        random = self._world.random
        if self.core is not None:
            self.disk.stop_before = len(self.disk.operations) + random.randint(0, 6)
            self.disk.torn = random.choice((0, random.randint(1, 2_000)))

    def stop_cleanly(self) -> None:
        """Stop as on SIGTERM, and start again."""
        if self.core is None:
            return
        self._world.note("stop cleanly")
        self._guard_of(self.lives)(self._close)

    def _close(self) -> None:
        core = self._alive()
        self._run_turn()
        self._writer.drain()
        self._model.closing()
        core.close(self._world.now_ms)
        self.core = None
        self._model.down(is_power_loss=False)
        self.network.cut_all()
        self._world.later(self._world.plan.restart_after_ms, self.start)

    def _fall(self) -> None:
        world = self._world
        is_power_loss = world.chance(world.plan.power_loss)
        world.note("power loss" if is_power_loss else "kill")
        self.core = None
        if is_power_loss:
            self.disk.lose_power(world.random)
        else:
            self.disk.kill()
        self._model.down(is_power_loss=is_power_loss)
        self.network.cut_all()
        world.later(world.around(world.plan.restart_after_ms), self.start)

    def came(self, link: Link, data: bytes) -> None:
        """Take bytes that a client sent."""
        self._guard_of(self.lives)(lambda: self._receive(link, data))

    def _receive(self, link: Link, data: bytes) -> None:
        core, now_ms = self._alive(), self._world.now_ms
        for frame in link.reader.feed(data):
            command = decode_command(frame)
            self._world.note("request", link.connection.id, command.code, command.opaque)
            self._model.received(link.connection.id, command, now_ms)
            core.receive(link.connection, decode_request(frame), now_ms)
        if not self._turn_is_due:
            self._turn_is_due = True
            guard = self._guard_of(self.lives)
            self._world.later(self._world.random.choice((0, 0, 1)), lambda: guard(self._due_turn))

    def lost(self, link: Link) -> None:
        """Note that a link is gone."""
        if self.core is not None:
            self.core.disconnected(link.connection.id)
            self._model.disconnected(link.connection.id)

    def _due_turn(self) -> None:
        if self._turn_is_due:
            self._run_turn()

    def _run_turn(self) -> None:
        self._turn_is_due = False
        core = self._alive()
        turn = core.take_turn()
        self._model.turn(turn, self._world.now_ms)
        by_connection: dict[int, list[bytes]] = {}
        for connection, frame in turn.replies:
            by_connection.setdefault(connection, []).append(frame)
        for connection, frames in by_connection.items():
            self.network.answer(connection, frames)
        self._writer.take(turn)
        self._turn_count += 1
        if self._turn_count % _CHECK_EVERY == 0:
            check_invariants(core)

    def _stored(self, end: int, is_durable: bool) -> None:
        core = self._alive()
        self._world.note("stored", end, "durable" if is_durable else "written")
        core.stored(end, durable=is_durable)
        self._model.stored(end, self._world.now_ms)
        self._run_turn()

    def _tick(self) -> None:
        core, now_ms = self._alive(), self._world.now_ms
        core.tick(now_ms)
        self._model.ticked(now_ms)
        self._run_turn()
        self._model.nothing_is_late(now_ms)

    def _checkpoint(self) -> None:
        self._writer.run(self._alive().state.store.begin_checkpoint())

    def _checkpoint_timers(self) -> None:
        work = self._alive().begin_timer_checkpoint(self._world.now_ms)
        if work:
            self._writer.run(work)

    def _alive(self) -> BrokerCore:
        assert self.core is not None
        return self.core


def check_invariants(core: BrokerCore) -> None:
    """Ask every table of a broker for its invariants."""
    state = core.state
    tables = (state.store, state.store.log, state.topics, state.groups, state.offsets)
    for table in (*tables, state.clients, state.locks, state.pulls, state.schedule):
        table.invariants()
