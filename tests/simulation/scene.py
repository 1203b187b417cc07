"""One seed from its first event to its last: a time of faults, then calm, then the last look."""

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
from tests.simulation.client import Asker
from tests.simulation.facts import Violation, first_kept
from tests.simulation.flow_client import FlowProducer
from tests.simulation.in_world import in_world
from tests.simulation.invariants import check_invariants
from tests.simulation.kinds import ASKED, JUDGES
from tests.simulation.machine import Machine
from tests.simulation.model import Model
from tests.simulation.pair import Pair
from tests.simulation.plan import START_MS, plan_of
from tests.simulation.popper import Popper
from tests.simulation.rivalry import CALM_MS, COPY_MS, RIVALRY_MS, Rivalry
from tests.simulation.watched_disk import WatchedDisk
from tests.simulation.world import World

from reliable_mq.errors import ReliableMQError

_CALM_MS = 25_000.0  # enough for every delay level to come, and every long poll to end

_NO_BUGS = (
    "the disk is full",
    "no room for the log of master",
    "this broker takes no messages any more and stops",
)


class Outcome(NamedTuple):
    """What became of a seed. `violation` is empty when all promises were kept."""

    seed: int
    violation: str
    trace: list[str]
    event_count: int
    answered_count: int
    message_count: int
    lives: int


class _Bugs(logging.Handler):
    """Takes what the broker logs of its own bugs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if not record.getMessage().startswith(_NO_BUGS):
            self.lines.append(self.format(record))


class Scene:
    """The world of a seed, with everybody in it."""

    def __init__(
        self, seed: int, *, traces_all: bool = False, changes: Mapping[str, object] | None = None
    ) -> None:
        plan = msgspec.structs.replace(plan_of(seed, list(ASKED)), **(changes or {}))
        self.world = world = World(plan, traces_all=traces_all)
        self.disk = WatchedDisk(world.random, lambda: world.time_ms)
        self.model = Model(JUDGES, plan, self.disk)
        self.pair = Pair(world, self.model, self.disk) if plan.role else None
        self.rivalry: Rivalry | None = None
        self.machine = self.pair.master if self.pair else Machine(world, self.model, self.disk)
        kinds = {name: kind for name, (_, kind) in ASKED.items() if name not in plan.kinds_off}
        kinds = kinds or {name: kind for name, (_, kind) in ASKED.items()}
        weights = [ASKED[name][0] for name in kinds]
        self.askers = [
            Asker(world, self.machine, number, kinds, weights)
            for number in range(plan.client_count)
        ]
        self.producers = [
            FlowProducer(world, self.machine, self.model, number)
            for number in range(plan.flow_client_count)
        ]
        self.poppers = [Popper(world, self.machine, number) for number in range(plan.popper_count)]
        self._again_and_again(plan.crash_every_ms, self._hurt_machine)
        self._again_and_again(plan.disconnect_every_ms, self._cut_somebody)
        self._again_and_again(plan.set_clock_every_ms, self._set_clock)
        self._again_and_again(plan.full_every_ms, self.machine.fill_disk)
        for every_ms, act in self.pair.faults() if self.pair else ():
            self._again_and_again(every_ms, act)

    def _again_and_again(self, every_ms: float, act: Callable[[], None]) -> None:
        def again() -> None:
            if not self.world.is_calm:
                act()
                self.world.later(self.world.around(every_ms), again)

        if every_ms:
            self.world.later(self.world.around(every_ms), again)

    def _hurt_machine(self) -> None:
        if self.world.chance(self.world.plan.clean_stop):
            self.machine.stop_cleanly()
        else:
            self.machine.crash_soon()

    def _cut_somebody(self) -> None:
        callers = [asker.caller for asker in self.askers]
        callers += [producer.caller for producer in self.producers]
        callers += [popper.caller for popper in self.poppers]
        self.world.random.choice(callers).disconnect()

    def _set_clock(self) -> None:
        far_ms = self.world.plan.set_clock_ms
        self.machine.set_clock(self.world.random.uniform(-far_ms, far_ms))

    def play(self) -> None:
        """Let everything happen.

        Raises:
            Violation: at the first promise that is broken.
        """
        if self.pair is None:
            self.machine.start()
            self._play(None)
            return
        pair = self.pair
        with in_world(self.world, lambda: pair.links, pair.names):
            self.pair.start()
            self._play(self.pair)

    def _play(self, pair: Pair | None) -> None:
        world, plan = self.world, self.world.plan
        self._run(START_MS + plan.duration_ms)
        if pair is not None and plan.loses_master:
            pair.lose_master()
            return
        if pair is not None and plan.promotes and pair.has_copied:
            self._promote(Rivalry(pair))
            return
        self._make_peace(pair)
        self.machine.set_clock(max(0.0, world.highest_ms - world.time_ms - world.clock_ahead_ms))
        self._run(world.time_ms + _CALM_MS)
        core = self.machine.core
        if core is None:
            raise Violation("the broker does not come up again")
        check_invariants(core)
        if core.state.pressure.refusal:
            raise Violation(f"sends are refused for ever: {core.state.pressure.refusal}")
        if pair is not None:
            pair.both_are_the_same()
        self.model.delays.all_are_delivered()
        self.model.timers.all_are_delivered()
        self.model.halves.all_are_settled()
        self.model.popped.all_are_settled(core)
        self._everything_can_be_read()
        for producer in self.producers:
            producer.everything_is_where_it_was_said_to_be()
        lives = self.machine.lives
        self.machine.stop_cleanly()
        self._run(world.time_ms + 5_000)
        if self.machine.core is None or self.machine.lives == lives:
            raise Violation("the broker does not come up again")
        self._everything_can_be_read()

    def _promote(self, rivalry: Rivalry) -> None:
        self.rivalry = rivalry
        rivalry.begin()
        self._run(self.world.time_ms + RIVALRY_MS)
        self._make_peace(self.pair)
        self._run(self.world.time_ms + CALM_MS)
        rivalry.is_over()
        rivalry.demote()
        self._run(self.world.time_ms + CALM_MS)
        rivalry.note_end()
        self._run(self.world.time_ms + COPY_MS)
        rivalry.both_are_the_same()

    def _make_peace(self, pair: Pair | None) -> None:
        """End the faults."""
        self.world.note("calm")
        self.world.is_calm = True
        if pair is not None:
            pair.make_peace()
        self.disk.stop_before = None
        self.machine.give_room()

    def forget(self) -> None:
        """Let go of work that never began; nothing is played any more."""
        if self.pair is not None:
            self.pair.forget()
        if self.rivalry is not None:
            self.rivalry.forget()
        self.machine.forget()

    def _run(self, until_ms: float) -> None:
        while self.world.step(until_ms):
            pass

    def _everything_can_be_read(self) -> None:
        """Compare every queue with the model, to the end."""
        assert self.machine.core is not None
        store = self.machine.core.state.store
        for (topic, queue_id), queue in self.model.queues.items():
            theirs = store.queue(topic, queue_id)
            end = theirs.end if theirs else 0
            if not queue.visible == len(queue.entries) == end:
                raise Violation(f"{topic}/{queue_id} ends at {end}, {queue.visible} should show")
            for entry in queue.entries[first_kept(queue.entries, self.model.start) :]:
                assert theirs is not None
                record = store.read_record(theirs.unit(entry.queue_offset).commit_log_offset)
                if record is None or record.body != entry.body:
                    raise Violation(f"{entry} reads as {record}")


def play(
    seed: int, *, traces_all: bool = False, changes: Mapping[str, object] | None = None
) -> Outcome:
    """Play a seed and return what became of it.

    Args:
        seed: any number.
        traces_all: whether the trace holds every event, not only the last ones.
        changes: what of the seed's plan is to be otherwise.
    """
    bugs = _Bugs()
    logger = logging.getLogger("reliable_mq")
    logger.addHandler(bugs)
    propagates, logger.propagate = logger.propagate, False
    scene = Scene(seed, traces_all=traces_all, changes=changes)
    violation = ""
    try:
        scene.play()
        if bugs.lines:
            violation = "the broker logs a bug: " + bugs.lines[0]
    except (AssertionError, ReliableMQError, LookupError, ValueError, TypeError, OSError) as error:
        violation = f"{type(error).__name__}: {error}"
        scene.world.note(violation)
        if not isinstance(error, Violation):
            violation += _place_of(error)
    finally:
        scene.forget()
        logger.removeHandler(bugs)
        logger.propagate = propagates
    return Outcome(
        seed,
        violation,
        scene.world.trace(),
        scene.world.event_count,
        scene.model.answered_count,
        len(scene.model.log),
        scene.machine.lives,
    )


def _place_of(error: BaseException) -> str:
    """Return where an error was raised, innermost first."""
    places = []
    traceback = error.__traceback__
    while traceback:
        code = traceback.tb_frame.f_code
        places.append(f"{code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno} {code.co_name}")
        traceback = traceback.tb_next
    return " from " + ", ".join(reversed(places[-6:]))
