"""One run of chaos: load and faults for a while, then peace, then the questions."""

import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

import psycopg
from tests.chaos.faults import PAUSE_SECONDS, Fault, plan
from tests.chaos.judge import Verdict, judge, left_over, orders
from tests.chaos.reconciling import Reconciling, Report
from tests.chaos.stage import Stage
from tests.waiting import Budget

ORDERS_SECONDS_MAX = 60.0
STILL_SECONDS_MAX = 180.0
"""A system that has come no further for so long comes to no rest."""
TICK_SECONDS = 0.05
SUPPRESSED = "suppressed duplicate"
GRACE_SECONDS = 60.0
"""Within so long after the last fault everything that is under way has come to an end."""


class Outcome(NamedTuple):
    """What a run came to."""

    seed: int
    seconds: float
    verdict: Verdict
    faults: Counter[Fault]
    ended_by_themselves: Counter[str]
    is_drained: bool
    suppressed: int
    reconciled: Report | None = None

    @property
    def holds(self) -> bool:
        return self.is_drained and self.verdict.holds and not any(self._of_reconciling().values())

    def _of_reconciling(self) -> dict[str, int]:
        if self.reconciled is None:
            return {}
        return {
            "P8: findings that were none": len(self.reconciled.findings),
            "P8: reconciliations that failed by themselves": len(self.reconciled.failures),
            "P8: not clean when all is at rest": int(not self.reconciled.last_was_clean),
        }

    def table(self) -> str:
        """Return the run as a table of the docs."""
        lines = [f"| chaos, seed {self.seed} | {self.seconds / 60:.1f} minutes |", "|---|--:|"]
        counts = {
            **self.verdict.counts,
            "suppressed duplicates": self.suppressed,
            **{str(fault): times for fault, times in sorted(self.faults.items())},
            **{f"ended by itself: {who}": n for who, n in self.ended_by_themselves.items()},
        }
        if self.reconciled is not None:
            counts["reconciliations"] = self.reconciled.runs
            counts["reconciliations while a server was away"] = len(self.reconciled.unanswered)
        lines += [f"| {name} | {count:,} |" for name, count in counts.items()]
        broken = self.verdict.broken | self._of_reconciling()
        lines += [f"| **{claim}** | **{n:,}** |" for claim, n in broken.items()]
        if not self.is_drained:
            lines.append("| **did not come to rest** | |")
        return "\n".join(lines)


def run(
    seed: int,
    seconds: float,
    rate: float,
    tell: Callable[[str], None] = lambda _line: None,
    pause: tuple[float, float] = PAUSE_SECONDS,
    reconcile_every: float = 0.0,
    orders_min: int = 0,
) -> Outcome:
    """Let chaos reign for so many seconds and return what came of it.

    With `reconcile_every` seconds, reconciliations run all the while; in the end everything is
    reconciled without any grace. On a slow machine producers go on without faults until there are
    `orders_min` orders, at most for `ORDERS_SECONDS_MAX` of an idle machine.
    """
    with Stage(rate) as stage, ExitStack() as stack:
        reconciling = None
        if reconcile_every:
            reconciling = Reconciling(
                *(stage.postgres.url, stage.broker.store, stage.directory),
                every_seconds=reconcile_every,
                grace_seconds=GRACE_SECONDS,
            )
            stack.callback(reconciling.stop)
        began = time.monotonic()
        faults = plan(seed, pause)
        planned = next(faults)
        due = began + planned.pause
        while (now := time.monotonic()) < began + seconds:
            stage.tick()
            if reconciling is not None:
                reconciling.tick()
            if now >= due:
                tell(f"{now - began:7.1f} s  {planned.fault}, away {planned.away:.1f} s")
                stage.do(planned)
                planned = next(faults)
                due = now + planned.pause
            time.sleep(TICK_SECONDS)
        _wait_for_orders(stage, orders_min)
        stage.stop_producing()
        drained = _wait_until_drained(stage)
        reconciled = reconciling.finish() if reconciling is not None else None
        for each in reconciled.findings if reconciled is not None else ():
            tell(f"found: {each}")
        for line in reconciled.unanswered if reconciled is not None else ():
            tell(f"no answer: {line}")
        return Outcome(
            seed,
            seconds,
            judge(stage.url),
            stage.done,
            stage.ended_by_themselves,
            drained,
            stage.log_counts(SUPPRESSED),
            reconciled,
        )


def _wait_for_orders(stage: Stage, count: int) -> None:
    budget = Budget(ORDERS_SECONDS_MAX)
    while _orders(stage) < count and budget.is_left():
        stage.tick()
        time.sleep(TICK_SECONDS)


def _orders(stage: Stage) -> int:
    try:
        return orders(stage.url)
    except psycopg.OperationalError:  # it is away, or just starting
        return 0


def _wait_until_drained(stage: Stage) -> bool:
    least, deadline = math.inf, time.monotonic() + STILL_SECONDS_MAX
    while time.monotonic() < deadline:
        stage.tick()
        try:
            left = left_over(stage.url)
        except psycopg.OperationalError:  # it is just starting
            left = None
        if left == 0:
            return True
        if left is not None and left < least:
            least, deadline = left, time.monotonic() + STILL_SECONDS_MAX
        time.sleep(10 * TICK_SECONDS)
    return False
