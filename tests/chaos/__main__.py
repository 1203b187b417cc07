"""Kill everything at random under load, then count: `python -m tests.chaos --minutes 120`."""

import argparse
import random
import sys

from tests.chaos.brokers import BROKERS
from tests.chaos.faults import PAUSE_SECONDS
from tests.chaos.run import run
from tests.chaos.stage import Scene


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=None, help="repeats the faults of a run")
    parser.add_argument("--rate", type=float, default=25.0, help="orders/s of each producer")
    parser.add_argument("--broker", choices=sorted(BROKERS), default="ours")
    parser.add_argument(
        "--databases", type=int, choices=(1, 2), default=1, help="2: on two servers"
    )
    parser.add_argument(
        "--slaves", type=int, choices=(0, 1), default=0, help="1: our broker has a slave"
    )
    parser.add_argument(
        "--life",
        type=float,
        default=Scene(0.0).life_seconds,
        metavar="SECONDS",
        help="after so long on the mean a process dies at an SQL statement; 0: never",
    )
    parser.add_argument(
        "--pause",
        type=float,
        nargs=2,
        default=PAUSE_SECONDS,
        metavar=("LEAST", "MOST"),
        help="seconds between two faults",
    )
    parser.add_argument(
        "--reconcile",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="reconcile all the while, at most so often; whatever is found is wrong",
    )
    parser.add_argument("--quiet", action="store_true", help="print the table only")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    if given.slaves and given.broker != "ours":
        parser.error("--slaves 1 needs --broker ours")
    scene = Scene(given.rate, given.broker, given.databases, given.life, given.slaves)
    where = f"BROKER={scene.broker} DATABASES={scene.databases}"
    where += f" SLAVES={scene.slaves}" if scene.slaves else ""
    print(f"make chaos MINUTES={given.minutes:g} SEED={seed} {where}", flush=True)

    def tell(line: str) -> None:
        if not given.quiet:
            print(line, flush=True)

    every = given.reconcile
    outcome = run(seed, given.minutes * 60, scene, tell, tuple(given.pause), every)
    print(f"\n{outcome.table()}")
    return 0 if outcome.holds else 1


if __name__ == "__main__":
    sys.exit(main())
