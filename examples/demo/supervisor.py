"""Does what the plan says, and brings back what is down.

Receives the number of orders placed and the time; hands on kills, restarts and lines of the story.
"""

import signal
from collections import Counter
from collections.abc import Callable, Sequence

from examples.demo.faults import FaultAction, FaultTarget, PlannedFault
from examples.demo.processes import DemoFailed, Process
from examples.demo.stage import DemoStage


class Supervisor:
    """Carries out a plan of faults, each once.

    Invariant: a target is running, or is down with a time to come back, or has done its work.
    """

    def __init__(
        self, stage: DemoStage, faults: Sequence[PlannedFault], tell: Callable[[str], None]
    ) -> None:
        self._stage = stage
        self._tell = tell
        self._pending = list(faults)
        self._back_at: dict[FaultTarget, float] = {}
        self.done: Counter[tuple[str, FaultAction]] = Counter()
        self.producer_finished = False

    @property
    def is_finished(self) -> bool:
        """Whether all orders are placed, all faults are done and everything is up again."""
        return self.producer_finished and not self._pending and not self._back_at

    def tick(self, placed: int, now: float) -> None:
        """Look at every process once; `now` is in seconds of any steady clock.

        Raises:
            DemoFailed: when a process ended that nobody killed.
        """
        for target in [target for target, at in self._back_at.items() if at <= now]:
            self._bring_back(target)
        self._look_after_processes(now)
        for fault in [fault for fault in self._pending if fault.at_order <= placed]:
            if (
                fault.action is not FaultAction.KILL_AFTER_COMMIT
                and fault.target not in self._back_at
            ):
                self._do(fault, now)

    def _do(self, fault: PlannedFault, now: float) -> None:
        match fault.action:
            case FaultAction.KILL:
                self._stage.processes[fault.target].kill()
            case FaultAction.STOP:
                self._stage.valkey.stop()
            case FaultAction.FLUSH:
                self._stage.valkey.flush()
        self._note(fault, now)

    def _note(self, fault: PlannedFault, now: float) -> None:
        self._pending.remove(fault)
        self.done[fault.target.partition("-")[0], fault.action] += 1
        if fault.action is not FaultAction.FLUSH:
            self._back_at[fault.target] = now + fault.down_seconds
        self._tell(str(fault))

    def _bring_back(self, target: FaultTarget) -> None:
        del self._back_at[target]
        if target is FaultTarget.REDIS:
            self._stage.valkey.start()
        else:
            self._stage.processes[target].start()
        self._tell(f"{target} is started again")

    def _look_after_processes(self, now: float) -> None:
        for target, process in self._stage.processes.items():
            if target not in self._back_at and process.exit_code is not None:
                self._explain_end(target, process, now)

    def _explain_end(self, target: FaultTarget, process: Process, now: float) -> None:
        code = process.collect()
        if target is FaultTarget.PRODUCER and code == 0:
            self.producer_finished = True
            return
        if target is FaultTarget.PRODUCER and code == -signal.SIGKILL:
            planned = (f for f in self._pending if f.action is FaultAction.KILL_AFTER_COMMIT)
            fault = next(planned, None)
            if fault is not None:
                self._note(fault, now)
                return
        raise DemoFailed(f"{target} ended by itself with {code}\n{process.log_tail()}")
