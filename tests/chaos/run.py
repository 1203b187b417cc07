"""One run of chaos: load and faults for a while, then peace, then the questions."""

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import psycopg
from tests.chaos.faults import PAUSE_SECONDS, Fault, plan
from tests.chaos.judge import Verdict, is_drained, judge
from tests.chaos.stage import Stage

DRAIN_SECONDS_MAX = 180.0
TICK_SECONDS = 0.05
SUPPRESSED = "suppressed duplicate"


class Outcome(NamedTuple):
    """What a run came to."""

    seed: int
    seconds: float
    verdict: Verdict
    faults: Counter[Fault]
    ended_by_themselves: Counter[str]
    is_drained: bool
    suppressed: int

    @property
    def holds(self) -> bool:
        return self.is_drained and self.verdict.holds

    def table(self) -> str:
        """Return the run as a table of the docs."""
        lines = [f"| chaos, seed {self.seed} | {self.seconds / 60:.1f} minutes |", "|---|--:|"]
        counts = {
            **self.verdict.counts,
            "suppressed duplicates": self.suppressed,
            **{str(fault): times for fault, times in sorted(self.faults.items())},
            **{f"ended by itself: {who}": n for who, n in self.ended_by_themselves.items()},
        }
        lines += [f"| {name} | {count:,} |" for name, count in counts.items()]
        lines += [f"| **{claim}** | **{n:,}** |" for claim, n in self.verdict.broken.items()]
        if not self.is_drained:
            lines.append("| **did not come to rest** | |")
        return "\n".join(lines)


def run(
    seed: int,
    seconds: float,
    rate: float,
    tell: Callable[[str], None] = lambda _line: None,
    pause: tuple[float, float] = PAUSE_SECONDS,
) -> Outcome:
    """Let chaos reign for so many seconds and return what came of it."""
    with Stage(rate) as stage:
        began = time.monotonic()
        faults = plan(seed, pause)
        planned = next(faults)
        due = began + planned.pause
        while (now := time.monotonic()) < began + seconds:
            stage.tick()
            if now >= due:
                tell(f"{now - began:7.1f} s  {planned.fault}, away {planned.away:.1f} s")
                stage.do(planned)
                planned = next(faults)
                due = now + planned.pause
            time.sleep(TICK_SECONDS)
        stage.stop_producing()
        drained = _wait_until_drained(stage)
        return Outcome(
            seed,
            seconds,
            judge(stage.url),
            stage.done,
            stage.ended_by_themselves,
            drained,
            stage.log_counts(SUPPRESSED),
        )


def _wait_until_drained(stage: Stage) -> bool:
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    while time.monotonic() < deadline:
        stage.tick()
        try:
            if is_drained(stage.url):
                return True
        except psycopg.OperationalError:  # it is just starting
            pass
        time.sleep(10 * TICK_SECONDS)
    return False
