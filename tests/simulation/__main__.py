"""Run seeds in processes, or replay one: `python -m tests.simulation --seeds 1000`.

Each seed plays many clients against one broker through faults; see `tests/simulation/scene.py`.
"""

import argparse
import itertools
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.canaries import CANARIES, planted
from tests.simulation.kinds import ASKED
from tests.simulation.plan import plan_of
from tests.simulation.scene import Outcome, play

_TRACE_LINES = 40
_TELL_EVERY = 50  # seeds


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to play")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="replay this one, with its trace")
    parser.add_argument("--canary", choices=sorted(CANARIES), help="plant a bug while replaying")
    parser.add_argument(
        "--slaves", choices=("all", "none"), help="play only seeds with a slave, or without one"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    return parser.parse_args()


def _replay(seed: int, canary: str | None) -> int:
    if canary:
        with planted(canary):
            outcome = play(seed, traces_all=True)
    else:
        outcome = play(seed, traces_all=True)
    print(plan_of(seed, list(ASKED)))
    print(*outcome.trace, sep="\n")
    print(_line(outcome))
    return 1 if outcome.violation else 0


def _line(outcome: Outcome) -> str:
    if outcome.violation:
        return f"seed {outcome.seed}: {outcome.violation}"
    return (
        f"seed {outcome.seed}: {outcome.event_count} events, {outcome.message_count} messages, "
        f"{outcome.answered_count} answers, {outcome.lives} lives, every promise kept"
    )


def _seeds(start: int, count: int, slaves: str | None) -> list[int]:
    """Return so many seeds from the first on, as far as they are wanted."""
    wanted = (
        seed
        for seed in itertools.count(start)
        if not slaves or bool(plan_of(seed, list(ASKED)).role) == (slaves == "all")
    )
    return list(itertools.islice(wanted, count))


def _play_many(seeds: list[int], jobs: int) -> int:
    began = time.monotonic()
    events = messages = lives = 0
    count = len(seeds)
    failed: list[Outcome] = []
    with ProcessPoolExecutor(jobs) as pool:
        for number, outcome in enumerate(pool.map(play, seeds)):
            if number and number % _TELL_EVERY == 0:
                seconds = time.monotonic() - began
                print(
                    f"{number} of {count} seeds in {seconds:.0f} s, {len(failed)} failed",
                    flush=True,
                )
            events += outcome.event_count
            messages += outcome.message_count
            lives += outcome.lives
            if outcome.violation:
                failed.append(outcome)
                print(f"\nseed {outcome.seed}: {outcome.violation}", flush=True)
                print(*outcome.trace[-_TRACE_LINES:], sep="\n", flush=True)
                print(f"\nreplay it: make sim SEED={outcome.seed}\n", flush=True)
    seconds = time.monotonic() - began
    print(
        f"{count} seeds from {seeds[0]} to {seeds[-1]}, {events} events, {messages} messages, "
        f"{lives} lives in {seconds:.0f} s ({events / seconds:.0f} events/s): "
        + (f"{len(failed)} FAILED" if failed else "every promise kept")
    )
    return 1 if failed else 0


def main() -> int:
    """Play; return 1 when a promise was broken."""
    arguments = _arguments()
    if arguments.seed is not None:
        return _replay(arguments.seed, arguments.canary)
    seeds = _seeds(arguments.start, max(1, arguments.seeds), arguments.slaves)
    return _play_many(seeds, arguments.jobs)


if __name__ == "__main__":
    sys.exit(main())
