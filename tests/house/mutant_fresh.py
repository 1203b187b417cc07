"""Tries mutants of what runs at import: constants, tables, defaults, functions called by them.

This process imports the libraries that the tests use and nothing of ours. Each mutant has a fork of
it, in which the module is compiled from the changed tree when the tests import it. Run as a program
with a `Job`: `MUTANTS_JOB=… python -m tests.house.mutant_fresh`.
"""

import contextlib
import importlib
import json
import os
import re
import sys
import tempfile
import time
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType

import msgspec
import pytest
from tests.house.mutant_forks import tried
from tests.house.mutant_jobs import Map, Trial, the_job
from tests.house.mutant_parts import ROOT, SOURCE
from tests.house.mutations import mutated

LIBRARIES = (
    *("sqlalchemy", "sqlalchemy.ext.asyncio", "sqlalchemy.orm", "hypothesis", "pydantic"),
    *("pydantic_settings", "typer", "rich", "redis", "psycopg", "pymysql", "uvloop", "numpy"),
    *("pyarrow", "tenacity", "isal", "alembic", "hypothesis.strategies", "pyspark.sql", "lz4"),
    *("redis.asyncio", "aiosqlite", "pytest_timeout", "xdist", "hypothesis.stateful", "jinja2"),
)
FILES_MAX = 10
"""Of so many test modules the tests are asked: each must be imported anew."""


class _Loader(SourceFileLoader):
    """Loads a module from the changed tree."""

    def __init__(self, name: str, path: Path, number: int) -> None:
        super().__init__(name, str(path))
        self._number = number

    def get_code(self, fullname: str) -> CodeType:
        path = Path(self.path)
        return compile(mutated(path.read_text(), self._number), str(path), "exec")


class _Finder:
    """Finds the one module that is changed."""

    def __init__(self, path: Path, number: int) -> None:
        parts = path.relative_to(SOURCE).with_suffix("").parts
        self._name = ".".join(parts[: -1 if parts[-1] == "__init__" else None])
        self._path, self._number = path, number

    def find_spec(
        self, fullname: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        loader = _Loader(fullname, self._path, self._number)
        return spec_from_file_location(fullname, self._path, loader=loader)


def chosen(known: Map, trial: Trial) -> list[str]:
    """Return the tests that may notice: of modules named for the file, importing or running it.

    What runs at import is no test's line. So all tests of such a module are asked.
    """
    file = Path(trial.file)
    running = {name for names in known.lines.get(trial.file, {}).values() for name in names}
    seconds: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, took in known.tests.items():
        module = name.partition("::")[0]
        seconds[module] = seconds.get(module, 0.0) + took.cpu
        counts[module] = counts.get(module, 0) + (name in running)
    near = {module: _closeness(file, ROOT / module) for module in seconds}

    def rank(module: str) -> tuple[float, ...]:
        return -near[module], seconds[module] if near[module] else -counts[module]

    modules = sorted(seconds, key=rank)[:FILES_MAX]
    return known.within_budget({name for name in known.tests if name.partition("::")[0] in modules})


def _closeness(file: Path, test: Path) -> int:
    """Say how near a test module is to a file of the source: by its name, or by what it imports."""
    imports = f"{file.parent.name}(\\.{file.stem} import| import [^\\n]*\\b{file.stem}\\b)"
    return 2 * (file.stem in test.stem) + bool(re.search(imports, test.read_text()))


def passes(names: list[str], basetemp: str) -> bool:
    """Run tests to the first failure in a session of its own."""
    options = ("-x", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", basetemp)
    return pytest.main([*options, *names]) == pytest.ExitCode.OK


def main() -> None:
    """Try each trial of the job."""
    job = the_job()
    known = msgspec.json.decode(Path(job.map).read_bytes(), type=Map)
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    os.chdir(ROOT)
    with (
        Path(job.outcomes).open("a", encoding="utf-8") as outcomes,
        tempfile.TemporaryDirectory() as folder,
    ):
        for trial in job.trials:
            began = time.monotonic()
            names = chosen(known, trial)

            def survives(trial: Trial = trial, names: list[str] = names) -> bool:
                if trial.number >= 0:
                    finder = _Finder(SOURCE / "reliable_mq" / trial.file, trial.number)
                    sys.meta_path.insert(0, finder)
                return passes(names, f"{folder}/base")

            cpu, wall = known.limits(names)
            outcome = tried(survives, cpu + 10, wall + 60)
            row = (trial.key, outcome, round(time.monotonic() - began, 3))
            print(json.dumps(row), file=outcomes, flush=True)


if __name__ == "__main__":
    main()
