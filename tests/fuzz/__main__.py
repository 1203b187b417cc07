"""Fuzz for some minutes, or replay a case: `python -m tests.fuzz --minutes 60`."""

import argparse
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from random import Random

from tests.fuzz.cases import play
from tests.fuzz.targets import TARGETS

_ROUND_SECONDS = 10.0
_FINDINGS_MAX = 20


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--start", type=int, default=int(time.time()), help="the first number")
    parser.add_argument("--case", help="replay this one, as in broker:17")
    parser.add_argument("--target", choices=sorted(TARGETS), help="only this target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    return parser.parse_args()


def play_for(start: int, seconds: float, names: list[str]) -> tuple[int, list[str]]:
    """Play cases from number `start` on; return how many, and what was found."""
    random = Random(start)
    weights = [TARGETS[name][0] for name in names]
    end = time.monotonic() + seconds
    count = 0
    findings: list[str] = []
    while time.monotonic() < end:
        (name,) = random.choices(names, weights)
        found = play(name, start * 100_000 + count)
        count += 1
        if found:
            findings.append(found)
    return count, findings


def main() -> int:
    """Fuzz; return 1 when something was found."""
    arguments = _arguments()
    if arguments.case:
        target, _, number = arguments.case.partition(":")
        found = play(target, int(number))
        print(found or f"{arguments.case}: nothing found")
        return 1 if found else 0
    names = [arguments.target] if arguments.target else list(TARGETS)
    rounds = max(1, round(arguments.minutes * 60 * arguments.jobs / _ROUND_SECONDS))
    seconds = min(_ROUND_SECONDS, arguments.minutes * 60)
    count = found_count = 0
    with ProcessPoolExecutor(arguments.jobs) as pool:
        futures = [
            pool.submit(play_for, arguments.start + number, seconds, names)
            for number in range(rounds)
        ]
        for future in as_completed(futures):
            played, findings = future.result()
            count += played
            found_count += len(findings)
            for finding in findings:
                print(finding, f"\nreplay it: make fuzz CASE={finding.split()[0]}\n", flush=True)
            if found_count > _FINDINGS_MAX:
                pool.shutdown(cancel_futures=True)
                break
    print(f"{count} cases: " + (f"{found_count} FINDINGS" if found_count else "nothing found"))
    return 1 if found_count else 0


if __name__ == "__main__":
    sys.exit(main())
