"""Fuzz for some minutes, or replay a case: `python -m tests.fuzz --minutes 60`."""

import argparse
import gc
import os
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from random import Random

import msgspec
from tests.fuzz.attacks import ATTACKS
from tests.fuzz.cases import MEMORY_MAX, Unmeasured, play
from tests.fuzz.flaws import FLAWS
from tests.fuzz.played import Played
from tests.fuzz.served import SECURED, play_served
from tests.fuzz.targets import NO_CONNECTIONS, TARGETS

_ROUND_SECONDS = 10.0
_FINDINGS_MAX = 20
_FLAW_CASES_MAX = 12  # of the kind that is to find a flaw
_MIB = 1024 * 1024
_SECURED = [f"{SECURED}{name}" for name in ATTACKS]
_ALL = {*TARGETS, *ATTACKS, *_SECURED}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--start", type=int, default=int(time.time()), help="the first number")
    parser.add_argument("--case", help="replay this one, as in broker:17")
    parser.add_argument("--target", choices=sorted(_ALL), help="only this")
    parser.add_argument("--secured", action="store_true", help="only TLS and access control")
    parser.add_argument("--flaws", action="store_true", help="find what is planted instead")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    return parser.parse_args()


class Done(msgspec.Struct):
    """What was done with one target. The two costliest cases are known by their numbers."""

    cases: int = 0
    seconds: float = 0.0
    slowest: tuple[float, int] = (0.0, 0)
    largest: tuple[int, int] = (0, 0)

    def add(self, other: "Done") -> None:
        """Count what another process did."""
        self.cases += other.cases
        self.seconds += other.seconds
        self.slowest = max(self.slowest, other.slowest)
        self.largest = max(self.largest, other.largest)

    def line(self, name: str) -> str:
        """Return what to tell of a target."""
        seconds, slowest = self.slowest
        memory, largest = self.largest
        limit = "a broker's" if name in NO_CONNECTIONS else f"limit {MEMORY_MAX // _MIB}"
        limit = "delay and memory of real servers" if name not in TARGETS else limit
        return (
            f"{name:<21} {self.cases:>8} cases {self.seconds:>8.1f} s "
            f"{seconds:>7.3f} s at most (CASE={name}:{slowest}), "
            f"{memory / _MIB:>6.1f} MiB at most (CASE={name}:{largest}), {limit}"
        )


Round = tuple[dict[str, Done], list[str]]
"""What a round has done, and what it has found."""


def play_for(start: int, seconds: float, names: list[str]) -> Round:
    """Play cases from number `start` on, one at least; return what was done and what was found."""
    random = Random(start)
    weights = [_weight(name) for name in names]
    end = time.monotonic() + seconds
    done: dict[str, Done] = {}
    findings: list[str] = []
    count = 0
    while not count or time.monotonic() < end:
        (name,) = random.choices(names, weights)
        number = start * 100_000 + count
        played = _play(name, number)
        count += 1
        once = Done(1, played.seconds, (played.seconds, number), (played.memory, number))
        done.setdefault(name, Done()).add(once)
        if played.finding:
            findings.append(played.finding)
    return done, findings


def _weight(name: str) -> int:
    return TARGETS[name][0] if name in TARGETS else ATTACKS[name.removeprefix(SECURED)].weight


def _play(name: str, number: int) -> Played:
    if name in TARGETS:
        return play(name, number)
    attack = name.removeprefix(SECURED)
    return play_served(attack, number, is_secured=name != attack)


def _fuzz(arguments: argparse.Namespace) -> int:
    # Two of three rounds go through real servers: their cases take seconds and not milliseconds.
    parts = [[arguments.target]] if arguments.target else [list(ATTACKS), list(TARGETS), _SECURED]
    if arguments.secured:
        parts = [_SECURED, _SECURED, ["access"]]
    names = [name for part in parts for name in part]
    rounds = max(1, round(arguments.minutes * 60 * arguments.jobs / _ROUND_SECONDS))
    seconds = min(_ROUND_SECONDS, arguments.minutes * 60)
    began = time.monotonic()
    done: dict[str, Done] = {}
    found_count = 0
    # What is loaded stays: looking for garbage before each case need not look at it.
    with ProcessPoolExecutor(arguments.jobs, initializer=gc.freeze) as pool:
        numbers = iter(range(rounds))

        def begin(count: int) -> set[Future[Round]]:
            return {
                pool.submit(play_for, arguments.start + number, seconds, parts[number % len(parts)])
                for number in islice(numbers, count)
            }

        under_way = begin(arguments.jobs)
        while under_way:
            ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for future in ended:
                played, findings = future.result()
                for name, part in played.items():
                    done.setdefault(name, Done()).add(part)
                found_count += len(findings)
                for finding in findings:
                    case = finding.partition(" found:")[0]
                    print(finding, f"\nreplay it: make fuzz CASE='{case}'\n", flush=True)
            is_over = time.monotonic() - began > arguments.minutes * 60  # rounds take longer, too
            if not is_over and found_count <= _FINDINGS_MAX:
                under_way |= begin(len(ended))
    for name in dict.fromkeys(names):
        print(done.get(name, Done()).line(name))
    count = sum(part.cases for part in done.values())
    minutes = (time.monotonic() - began) / 60
    told = f"{found_count} FINDINGS" if found_count else "nothing found"
    print(f"{count} cases in {minutes:.1f} minutes: {told}")
    return 1 if found_count or not count else 0


def _find_flaws() -> int:
    """Plant each flaw, and play cases of the kind that finds it until one does."""
    missed = 0
    for name, flaw in FLAWS.items():
        for number in range(_FLAW_CASES_MAX):
            finding = play_served(flaw.found_by, number, name).finding
            if finding:
                words = [line for line in finding.splitlines() if line.startswith("tests.fuzz.")]
                print(f"{flaw.line} {name}: CASE={flaw.found_by}:{number} {words[-1:]}", flush=True)
                break
        else:
            missed += 1
            print(f"{flaw.line} {name}: NOT FOUND in {_FLAW_CASES_MAX} cases", flush=True)
    print(f"{len(FLAWS) - missed} of {len(FLAWS)} flaws were found")
    return 1 if missed else 0


def main() -> int:
    """Fuzz; return 1 when something was found."""
    arguments = _arguments()
    try:
        if arguments.case:
            target, _, number = arguments.case.partition(":")
            found = _play(target, int(number)).finding
            print(found or f"{arguments.case}: nothing found")
            return 1 if found else 0
        return _find_flaws() if arguments.flaws else _fuzz(arguments)
    except Unmeasured as error:
        print(f"error: the memory of a case cannot be measured here: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
