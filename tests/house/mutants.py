"""Makes small wrong changes to the source and counts how many the tests notice: `make mutants`.

`mutations` lists the changes, `mutant_parts` says which tests count for which modules. The tests of
a part run once under coverage; then each mutant is tried in a fork by the tests that execute its
line (`mutant_session`), or in a new import where it runs at import (`mutant_fresh`).
Run as a program from the root of the checkout: `python -m tests.house.mutants --count 1000`.
"""

import argparse
import hashlib
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
from bench import raw_results
from tests.house.mutant_jobs import Job, Map, Trial
from tests.house.mutant_parts import (
    EQUIVALENT,
    PARTS,
    ROOT,
    SOURCE,
    TUNED,
    Equivalent,
    Part,
)
from tests.house.mutations import Mutation, mutations

PACKAGE = SOURCE / "reliable_mq"
CACHE = ROOT / ".mutants"
_EXCUSED = {each.file for each in EQUIVALENT} | {file for file, _ in TUNED}
Row = tuple[str, str, float]  # the key of a mutant, its outcome, seconds
_KILLED = ("killed", "timed out")


class Mutant(NamedTuple):
    """A change of a file below the package."""

    file: str
    change: Mutation

    @property
    def key(self) -> str:
        """What `MUTANT=` takes."""
        return f"{self.file}:{self.change.line}:{self.change.number}"

    def is_equivalent(self) -> bool:
        """Tell whether it is known that nobody can notice."""
        name = "" if self.change.owner else self.change.texts[0].partition(" = ")[0]
        return self.equivalence() in EQUIVALENT or (self.file, name) in TUNED

    def equivalence(self) -> Equivalent:
        """Return what stands in the table of equivalent mutants, if it is one."""
        function = self.change.owner.name if self.change.owner else ""
        return Equivalent(self.file, function, *self.change.texts)


def mutants_of(part: str) -> list[Mutant]:
    """Return all mutants of a part that are not known to be equivalent."""
    found = (each for path in PARTS[part].files() for each in mutants_in(path))
    return [each for each in found if each.file not in _EXCUSED or not each.is_equivalent()]


def mutants_in(path: Path) -> list[Mutant]:
    """Return all mutants of a file."""
    file = str(path.relative_to(PACKAGE))
    return [Mutant(file, change) for change in mutations(path.read_text())]


def sampled(count: int, seed: int, parts: list[str]) -> dict[str, list[Mutant]]:
    """Choose by the seed, from each part as many as it has a share in all mutants."""
    known = {part: mutants_of(part) for part in parts}
    everything = [(part, each) for part in parts for each in known[part]]
    chosen = random.Random(seed).sample(everything, min(count, len(everything)))
    return {part: [each for name, each in chosen if name == part] for part in parts}


def _digest(part: Part) -> str:
    """Name the state of a part: its source and its tests."""
    paths = [*part.files(), *part.test_files(), *(ROOT / "tests").glob("*.py")]
    paths.append(ROOT / "tests" / "house" / "mutant_session.py")
    texts = (path.read_bytes() for path in sorted(paths))
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


class PartRun:
    """The mutants of one part, and the processes that try them."""

    def __init__(self, name: str, part: Part, folder: Path, cache: Path = CACHE) -> None:
        self._name, self._part, self._folder, self._cache = name, part, folder, cache
        self._outcomes = folder / "outcomes"
        self._map_path = cache / f"{name}-{_digest(part)}.json"

    def run(self, mutants: list[Mutant]) -> list[Row]:
        """Return the key, the outcome and the seconds of each mutant."""
        known = self._map()
        self._outcomes.touch()
        trials = [
            Trial(each.key, each.file, each.change.number, each.change.lines, each.change.owner)
            for each in mutants
        ]
        warm = [each for each in trials if not self._runs_at_import(each, known)]
        if warm:
            self._session("run", warm)
        refused = {key for key, outcome, _ in self._rows() if outcome == "afresh"}
        fresh = [each for each in trials if each not in warm or each.key in refused]
        if fresh:
            self._process([sys.executable, "-m", "tests.house.mutant_fresh"], "fresh", fresh)
        rows = [row for row in self._rows() if row[1] != "afresh"]
        if len(rows) != len(trials):
            raise SystemExit(
                f"error: {len(trials) - len(rows)} mutants of {self._name} were not tried; see "
                f"{self._cache / self._name}-*.log"
            )
        return rows

    def _rows(self) -> list[Row]:
        lines = self._outcomes.read_bytes().splitlines()
        return [msgspec.json.decode(line, type=Row) for line in lines]

    def _map(self) -> Map:
        self._cache.mkdir(exist_ok=True)
        if not self._map_path.exists():
            for old in self._cache.glob(f"{self._name}-*"):
                old.unlink()
            self._session("map", [])
        return msgspec.json.decode(self._map_path.read_bytes(), type=Map)

    @staticmethod
    def _runs_at_import(trial: Trial, known: Map) -> bool:
        first, last = trial.lines
        early = known.at_import.get(trial.file, [])
        return trial.owner is None or any(first <= line <= last for line in early)

    def _session(self, do: str, trials: list[Trial]) -> None:
        tests = [str(path) for path in self._part.test_files() if path.stem[:5] == "test_"]
        options = ("-q", "-s", "-p", "no:cacheprovider", "-p", "tests.house.mutant_session")
        basetemp = ("--basetemp", str(self._folder / "base"))
        pytest = (sys.executable, "-m", "pytest")
        self._process([*pytest, *options, *basetemp, *tests], do, trials)

    def _process(self, command: list[str], do: str, trials: list[Trial]) -> None:
        path = self._folder / f"{do}.json"
        base = str(self._folder / "base")
        sources = [str(each) for each in self._part.files()]
        job = Job(do, sources, str(self._map_path), str(self._outcomes), base, trials)
        path.write_bytes(msgspec.json.encode(job))
        environment = os.environ | {"MUTANTS_JOB": str(path), "PYTHONHASHSEED": "0"}
        log = self._cache / f"{self._name}-{do}.log"
        with log.open("w", encoding="utf-8") as said:
            subprocess.run(
                command, cwd=ROOT, env=environment, stdout=said, stderr=said, check=False
            )
        if do == "map" and not self._map_path.exists():
            raise SystemExit(f"error: the tests of {self._name} cannot be mapped; see {log}")


def tried_parts(chosen: dict[str, list[Mutant]], jobs: int) -> dict[str, list[Row]]:
    """Try the mutants of all parts, some parts at a time."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        runs = {}
        for part, mutants in chosen.items():
            place = Path(folder) / part
            place.mkdir()
            runs[part] = pool.submit(PartRun(part, PARTS[part], place).run, mutants)
        return {part: run.result() for part, run in runs.items()}


def _told(part: str, rows: list[Row]) -> str:
    counts = Counter(outcome for _, outcome, _ in rows)
    killed = sum(counts[each] for each in _KILLED)
    share = f"{100 * killed / len(rows):5.1f} %" if rows else "     –"
    pace = sum(seconds for *_, seconds in rows) / len(rows) if rows else 0
    numbers = "".join(
        f"{counts[each]:>13}" for each in ("killed", "timed out", "survived", "not covered")
    )
    return f"{part:15}{len(rows):>8}{numbers}  {share}  {pace:6.2f} s"


def keep(
    chosen: dict[str, list[Mutant]], outcomes: dict[str, list[Row]], settings: dict[str, int]
) -> Path:
    """Write a run over all parts to `bench/results`."""
    rounds = []
    for part, rows in outcomes.items():
        texts = {each.key: "  →  ".join(each.change.texts) for each in chosen[part]}
        lives = {key: texts[key] for key, outcome, _ in sorted(rows) if outcome not in _KILLED}
        counts = Counter(outcome for _, outcome, _ in rows)
        rounds.append({"part": part, "mutants": len(rows), **counts, "lives": lives})
    return raw_results.write(raw_results.of_now("mutants", settings, rounds))


def report(chosen: dict[str, list[Mutant]], outcomes: dict[str, list[Row]]) -> str:
    """Return the table of all parts, and every mutant that lives."""
    lines, everything = [], []
    for part, rows in outcomes.items():
        by_key = {each.key: each for each in chosen[part]}
        everything += rows
        for key, outcome, _ in sorted(rows):
            if outcome not in _KILLED:
                before, after = by_key[key].change.texts
                lines.append(f"{key}  {outcome}: {before}  →  {after}")
    titles = ("killed", "timed out", "survived", "not covered")
    head = f"{'part':15}{'mutants':>8}{''.join(f'{each:>13}' for each in titles)}"
    table = [_told(part, rows) for part, rows in outcomes.items()]
    return "\n".join([*lines, "", head, *table, _told("all", everything)])


def main() -> None:
    """Choose, try and tell."""
    parser = argparse.ArgumentParser(
        prog="make mutants", description="count mutants that tests kill"
    )
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--mutant", help="a key of the report, or its file:line, or its file")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    parts = [asked.part] if asked.part else list(PARTS)
    if asked.mutant:
        known = {part: mutants_of(part) for part in parts}
        chosen = {
            part: [each for each in known[part] if f"{each.key}:".startswith(f"{asked.mutant}:")]
            for part in parts
        }
        chosen = {part: found for part, found in chosen.items() if found}
        if not chosen:
            raise SystemExit(f"error: there is no mutant {asked.mutant}; its lines may have moved")
    else:
        chosen = sampled(asked.count, asked.seed, parts)
    outcomes = tried_parts(chosen, asked.jobs)
    print(report(chosen, outcomes))
    if not asked.part and not asked.mutant:
        print(f"kept: {keep(chosen, outcomes, {'count': asked.count, 'seed': asked.seed})}")


if __name__ == "__main__":
    main()
