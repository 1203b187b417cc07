"""Explore further than the tests do: `python -m tests.model --depth 24 --misfortunes 2`."""

import argparse
import sys
import time

from tests.model.explore import SENT, START, Explorer
from tests.model.protocol import Consuming
from tests.model.sending import Sending
from tests.model.world import World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--depth", type=int, default=18)
    parser.add_argument("--misfortunes", type=int, default=1)
    given = parser.parse_args()
    print("| from | protocol | misfortunes | depth | states | moves | violations |")
    print("|---|---|--:|--:|--:|--:|--:|")
    broken = 0
    for name, first in (("the start", START), ("the send on", SENT)):
        for log_receipt in (False, True):
            began = time.monotonic()
            world = World(Consuming(log_receipt=log_receipt), Sending())
            came = Explorer(world, given.depth).explore(
                first._replace(misfortunes=given.misfortunes)
            )
            broken += came.violation is not None
            protocol = "receipt first" if log_receipt else "one commit"
            depth = f"{came.depth} (all)" if came.is_complete else came.depth
            print(
                f"| {name} | {protocol} | {given.misfortunes} | {depth} | {came.states:,} "
                f"| {came.moves:,} | {came.violation or 0} |",
                flush=True,
            )
            print(*came.story, sep="\n", end="\n" if came.story else "", file=sys.stderr)
            print(f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
