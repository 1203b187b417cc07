"""The supervisor does each fault once, brings everything back, and lets no death go unexplained."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from examples.demo.faults import FaultAction, FaultTarget, PlannedFault
from examples.demo.processes import DemoFailed
from examples.demo.stage import DemoStage
from examples.demo.supervisor import Supervisor


class ToldProcess:
    """A process that does nothing but remember what it was told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.told: list[str] = []
        self.exit_code: int | None = None

    def start(self) -> None:
        self.told.append("start")
        self.exit_code = None

    def kill(self) -> None:
        self.told.append("kill")

    def collect(self) -> int | None:
        code, self.exit_code = self.exit_code, None
        return code

    def log_tail(self) -> str:
        return f"{self.name}.log: its last words"


class ToldValkey:
    def __init__(self) -> None:
        self.told: list[str] = []

    def stop(self) -> None:
        self.told.append("stop")

    def start(self) -> None:
        self.told.append("start")

    def flush(self) -> None:
        self.told.append("flush")


class Theatre:
    """A stage of told processes, and the story so far."""

    def __init__(self, *faults: PlannedFault) -> None:
        targets = [target for target in FaultTarget if target is not FaultTarget.REDIS]
        self.processes: dict[FaultTarget, ToldProcess] = {
            target: ToldProcess(target) for target in targets
        }
        self.valkey = ToldValkey()
        self.story: list[str] = []
        stage = SimpleNamespace(processes=self.processes, valkey=self.valkey, output=Path())
        self.supervisor = Supervisor(cast("DemoStage", stage), faults, self.story.append)


KILL_BROKER = PlannedFault(10, FaultTarget.BROKER, FaultAction.KILL, 1.0)


def test_a_fault_waits_for_its_order_and_is_done_once() -> None:
    theatre = Theatre(KILL_BROKER)
    broker = theatre.processes[FaultTarget.BROKER]

    theatre.supervisor.tick(placed=9, now=0.0)
    assert broker.told == []

    theatre.supervisor.tick(placed=10, now=1.0)
    theatre.supervisor.tick(placed=11, now=1.5)
    assert broker.told == ["kill"]

    theatre.supervisor.tick(placed=12, now=2.0)
    theatre.supervisor.tick(placed=99, now=9.0)
    assert broker.told == ["kill", "start"]
    assert theatre.supervisor.done == {("broker", FaultAction.KILL): 1}


def test_a_target_that_is_down_is_not_killed_before_it_is_back() -> None:
    theatre = Theatre(KILL_BROKER, PlannedFault(10, FaultTarget.BROKER, FaultAction.KILL, 1.0))
    broker = theatre.processes[FaultTarget.BROKER]

    theatre.supervisor.tick(placed=10, now=0.0)
    assert broker.told == ["kill"]

    theatre.supervisor.tick(placed=10, now=1.0)
    assert broker.told == ["kill", "start", "kill"]


def test_redis_is_stopped_and_flushed() -> None:
    theatre = Theatre(
        PlannedFault(1, FaultTarget.REDIS, FaultAction.FLUSH, 1.0),
        PlannedFault(2, FaultTarget.REDIS, FaultAction.STOP, 1.0),
    )

    theatre.supervisor.tick(placed=1, now=0.0)
    theatre.supervisor.tick(placed=2, now=0.1)
    theatre.supervisor.tick(placed=3, now=2.0)

    assert theatre.valkey.told == ["flush", "stop", "start"]


def test_a_producer_that_died_as_planned_is_started_again() -> None:
    theatre = Theatre(PlannedFault(5, FaultTarget.PRODUCER, FaultAction.KILL_AFTER_COMMIT, 1.0))
    producer = theatre.processes[FaultTarget.PRODUCER]

    producer.exit_code = -signal.SIGKILL
    theatre.supervisor.tick(placed=5, now=0.0)
    theatre.supervisor.tick(placed=5, now=1.0)
    assert producer.told == ["start"]
    assert not theatre.supervisor.is_finished

    producer.exit_code = 0
    theatre.supervisor.tick(placed=9, now=2.0)
    assert theatre.supervisor.is_finished


@pytest.mark.parametrize(
    ("target", "code"),
    [
        (FaultTarget.WORKER_1, 1),
        (FaultTarget.BROKER, 0),
        (FaultTarget.PRODUCER, 1),
        (FaultTarget.PRODUCER, -9),
    ],
)
def test_a_process_that_ends_unplanned_fails_the_demo_with_its_last_words(
    target: FaultTarget, code: int
) -> None:
    theatre = Theatre(KILL_BROKER)
    theatre.processes[target].exit_code = code

    with pytest.raises(DemoFailed, match=f"{target}.log: its last words"):
        theatre.supervisor.tick(placed=1, now=0.0)


def test_it_is_finished_only_when_every_fault_is_done_and_everything_is_up() -> None:
    theatre = Theatre(KILL_BROKER)
    theatre.processes[FaultTarget.PRODUCER].exit_code = 0

    theatre.supervisor.tick(placed=9, now=0.0)
    assert not theatre.supervisor.is_finished
    theatre.supervisor.tick(placed=10, now=1.0)
    assert not theatre.supervisor.is_finished
    theatre.supervisor.tick(placed=10, now=3.0)
    assert theatre.supervisor.is_finished
