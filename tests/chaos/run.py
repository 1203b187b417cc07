"""One run of chaos: load and faults for a while, then peace, then the questions."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import psycopg
from bench.replica_logs import Copied, compare, log_end
from tests.chaos.application import mq
from tests.chaos.faults import PAUSE_SECONDS, plan
from tests.chaos.judge import Verdict, judge, left_over, order_count, rows_of, unsent
from tests.chaos.reconciling import Reconciling, Report
from tests.chaos.stage import Scene, Stage
from tests.waiting import Budget, looks

ORDERS_SECONDS_MAX = 60.0
STILL_SECONDS_MAX = 180.0
"""A system that has come no further for so long comes to no rest."""
TICK_SECONDS = 0.05
OUTAGE_SECONDS = 20.0
PROBE_SECONDS_MAX = 15.0
"""Within so long a probe opens a closed topic; see docs/reference/resend.md."""
COPIED_SECONDS_MAX = 30.0
"""Within so long after everything is drained the slave has the master's log."""
GRACE_SECONDS = 60.0
"""Within so long after the last fault everything that is under way has come to an end."""


class Outcome(NamedTuple):
    """What a run came to.

    `waited`: stubs that waited at the end of the broker's last outage. `sent_after`: seconds from
    the moment when all was back until every stub was sent; None: not within the bound.
    """

    seed: int
    scene: Scene
    seconds: float
    verdict: Verdict
    faults: Counter[str]
    ended_by_themselves: Counter[str]
    waited: int
    sent_after: float | None
    is_drained: bool
    suppressed: int
    reconciled: Report | None = None
    copied: Copied | None = None

    @property
    def holds(self) -> bool:
        return self.is_drained and not any(self._broken().values())

    def _broken(self) -> dict[str, int]:
        bound = sent_within_seconds()
        late = {
            f"P2: not everything is sent {bound:g} s after the last fault": int(
                self.sent_after is None
            )
        }
        return self.verdict.broken | late | self._of_reconciling() | self._of_slave()

    def _of_slave(self) -> dict[str, int]:
        if self.copied is None:
            return {}
        return {
            "P3: bytes of the master's log that the slave lacks": self.copied.lacking,
            "P3: bytes of the slave's log that are not the master's": self.copied.different,
        }

    def _of_reconciling(self) -> dict[str, int]:
        if self.reconciled is None:
            return {}
        return {
            "P8: findings that are wrong": len(self.reconciled.findings),
            "P8: reconciliations that failed while no server was away": len(
                self.reconciled.failures
            ),
            "P8: not clean after everything was drained": int(not self.reconciled.last_was_clean),
        }

    def table(self) -> str:
        """Return the run as a table of the docs."""
        scene = f"broker {self.scene.broker}, databases {self.scene.databases}"
        if self.scene.slaves:
            scene += ", with a slave"
        lines = [
            f"| chaos, {scene}, seed {self.seed} | {self.seconds / 60:.1f} minutes |",
            "|---|--:|",
        ]
        counts = {
            **self.verdict.counts,
            "suppressed duplicates": self.suppressed,
            "stubs that waited at the end of the last outage": self.waited,
            **dict(sorted(self.faults.items())),
            **{
                f"ended without being killed: {who}": n
                for who, n in self.ended_by_themselves.items()
            },
        }
        if self.reconciled is not None:
            counts["reconciliations"] = self.reconciled.runs
            counts["reconciliations while a server was away"] = len(self.reconciled.unanswered)
        if self.copied is not None:
            counts["bytes of the slave's log that were compared"] = self.copied.compared
        lines += [f"| {name} | {count:,} |" for name, count in counts.items()]
        if self.sent_after is not None:
            lines.append(
                f"| seconds from the last fault until everything is sent | {self.sent_after:.1f} |"
            )
        lines += [f"| **{claim}** | **{n:,}** |" for claim, n in self._broken().items()]
        if not self.is_drained:
            lines.append("| **did not come to rest** | |")
        return "\n".join(lines)


def sent_within_seconds() -> float:
    """Return how long after the last fault every stub is sent, by docs/reference/resend.md.

    The bounds of all that may hold a stub up, one after another: its topic is closed, a process
    died with it, or with an earlier one of its key, in hand, a send of it failed.
    """
    settings = mq.settings
    waits = (
        settings.resend_lease_seconds,
        settings.resend_backlog_wait_seconds,
        max(settings.resend_waits_seconds),
    )
    return PROBE_SECONDS_MAX + sum(waits)


def run(
    seed: int,
    seconds: float,
    scene: Scene,
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
    with Stage(scene) as stage, ExitStack() as stack:
        reconciling = None
        if reconcile_every:
            reconciling = Reconciling(
                [database.url for database in stage.databases],
                *(stage.broker.store, stage.directory),
                every_seconds=reconcile_every,
                grace_seconds=GRACE_SECONDS,
            )
            stack.callback(reconciling.stop)
        began = time.monotonic()
        faults = plan(seed, pause, has_slave=bool(scene.slaves))
        planned = next(faults)
        due = began + planned.pause
        for _ in looks(lambda: time.monotonic() < began + seconds, TICK_SECONDS):
            now = time.monotonic()
            stage.tick()
            if reconciling is not None:
                reconciling.tick()
            if now >= due:
                tell(f"{now - began:7.1f} s  {planned.fault}, away {planned.away:.1f} s")
                stage.do(planned)
                planned = next(faults)
                due = now + planned.pause
        _wait_for_orders(stage, orders_min)
        _take_orders_without_a_broker(stage, min(OUTAGE_SECONDS, seconds / 6))
        waited = _asked(unsent, stage) or 0
        stage.make_peace()
        sent_after = _seconds_until_sent(stage)
        drained = _wait_until_drained(stage)
        reconciled = reconciling.finish() if reconciling is not None else None
        for each in reconciled.findings if reconciled is not None else ():
            tell(f"found: {each}")
        for line in reconciled.unanswered if reconciled is not None else ():
            tell(f"no answer: {line}")
        return Outcome(
            seed,
            scene,
            seconds,
            judge(rows_of(stage.urls)),
            stage.done,
            stage.ended_by_themselves,
            waited,
            sent_after,
            drained,
            stage.suppressed(),
            reconciled,
            _copied(stage) if drained else None,
        )


def _copied(stage: Stage) -> Copied | None:
    """Compare the slave's log with its master's, when nothing happens any more."""
    if not stage.slaves:
        return None
    (slave,) = stage.slaves
    addresses = (stage.broker.address, slave.address)
    still = Budget(COPIED_SECONDS_MAX)
    ends = [log_end(each) for each in addresses]
    for _ in looks(still.is_left, 10 * TICK_SECONDS):
        stage.tick()
        ends = [log_end(each) for each in addresses]
        if ends[0] == ends[1] >= 0:
            break
    return compare(stage.broker.store, slave.store, *ends)


def _take_orders_without_a_broker(stage: Stage, seconds: float) -> None:
    """Let the last fault be an outage of the broker: what is ordered meanwhile waits for it."""
    stage.take_broker_away()
    end = time.monotonic() + seconds
    for _ in looks(lambda: time.monotonic() < end, TICK_SECONDS):
        stage.tick()


def _wait_for_orders(stage: Stage, count: int) -> None:
    budget = Budget(ORDERS_SECONDS_MAX)

    def is_to_wait() -> bool:
        return (_asked(order_count, stage) or 0) < count and budget.is_left()

    for _ in looks(is_to_wait, TICK_SECONDS):
        stage.tick()


def _seconds_until_sent(stage: Stage) -> float | None:
    """Return when no stub was left unsent; None: never within the bound, on an idle machine."""
    began, bound = time.monotonic(), Budget(sent_within_seconds())
    for _ in looks(bound.is_left, 10 * TICK_SECONDS):
        stage.tick()
        if _asked(unsent, stage) == 0:
            return time.monotonic() - began
    return None


def _wait_until_drained(stage: Stage) -> bool:
    least, since = math.inf, [time.monotonic()]
    for _ in looks(lambda: time.monotonic() < since[-1] + STILL_SECONDS_MAX, 10 * TICK_SECONDS):
        stage.tick()
        left = _asked(left_over, stage)
        if left == 0:
            return True
        if left is not None and left < least:
            least = left
            since.append(time.monotonic())
    return False


def _asked(question: Callable[[Sequence[str]], int], stage: Stage) -> int | None:
    try:
        return question(stage.urls)
    except psycopg.OperationalError:  # a server is away, or just starting
        return None
