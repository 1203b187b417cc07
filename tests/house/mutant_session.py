"""A pytest plugin that does other things with a part's tests than to run them once.

`map` runs them under coverage, and keeps which test executes which line. `run` forks for each
mutant, swaps the code of the function that is changed, and runs the tests that execute the line.
Both read a `Job` from the file that the variable `MUTANTS_JOB` names.
"""

import contextlib
import gc
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import hypothesis
import msgspec
import pytest
from _pytest.runner import runtestprotocol
from tests.house.mutant_forks import Outcome, tried
from tests.house.mutant_jobs import Map, Seconds, Trial, the_job
from tests.house.mutant_parts import SOURCE
from tests.house.mutations import Owner, mutated

_SLOW_FIXTURES = frozenset(
    {"postgres_server", "mysql_server", "postgres_url", "mysql_url", "spark"}
)
_SLOW_MARKS = frozenset({"interop", "packaging", "java", "spark", "processes"})
_SLOW_DATABASES = ("postgres", "mysql")
"""A parameter that begins so, or whose name does, is a server to start."""
_SERVERS = ("valkey_server",)
_TEST_SECONDS_MAX = 4.0
"""A slower test is not asked."""
_ALL_SECONDS_MAX = 3_600.0
_NO_SHRINKING = (hypothesis.Phase.explicit, hypothesis.Phase.generate)


JOB = the_job()
PACKAGE = SOURCE / "reliable_mq"
# Begun before anything of ours is imported: so what runs at import is seen.
_COVER = coverage.Coverage(
    data_file=None,
    config_file=False,
    include=JOB.sources,
    concurrency=["thread", "greenlet"],
)
if JOB.do == "map":
    _COVER.start()
    _COVER.switch_context("import")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs slow servers, and let Hypothesis tell only that a property fails."""
    config.hook.pytest_deselected(items=[item for item in items if _is_slow(item)])
    items[:] = [item for item in items if not _is_slow(item)]
    for item in items:
        function: Any = getattr(item, "obj", None)
        if known := getattr(function, "_hypothesis_internal_use_settings", None):
            function._hypothesis_internal_use_settings = hypothesis.settings(
                known,
                database=None,
                derandomize=True,
                deadline=None,
                phases=_NO_SHRINKING,
                suppress_health_check=list(hypothesis.HealthCheck),
            )


def _fixtures(item: pytest.Item) -> set[str]:
    return set(getattr(item, "fixturenames", ()))


def _is_slow(item: pytest.Item) -> bool:
    values = getattr(getattr(item, "callspec", None), "params", {}).values()
    marks = {mark.name for mark in item.iter_markers()}
    return bool(
        _SLOW_FIXTURES & _fixtures(item)
        or any(str(getattr(each, "name", each)).startswith(_SLOW_DATABASES) for each in values)
        or _SLOW_MARKS & marks
    )


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Do the job instead of the usual."""
    if session.testsfailed:
        raise session.Interrupted("tests cannot be collected")
    if JOB.do == "map":
        _write_map(session)
    else:
        Trials(session).run()
    return True


def _passes(item: pytest.Item, following: Any) -> bool:
    return not any(report.failed for report in runtestprotocol(item, False, following))


def _write_map(session: pytest.Session) -> None:
    known = Map()
    for item, following in zip(session.items, [*session.items[1:], None], strict=True):
        _COVER.switch_context(item.nodeid)
        cpu, wall = time.process_time(), time.monotonic()
        passes = _passes(item, following)
        took = Seconds(time.process_time() - cpu, time.monotonic() - wall)
        known.tests[item.nodeid] = took
        if not passes or took.cpu > _TEST_SECONDS_MAX or took.wall > 10 * _TEST_SECONDS_MAX:
            known.unfit.append(item.nodeid)
    _COVER.stop()
    data = _COVER.get_data()
    for path in data.measured_files():
        file = str(Path(path).relative_to(PACKAGE))
        contexts = data.contexts_by_lineno(path)
        known.lines[file] = {
            line: [name for name in names if name in known.tests]
            for line, names in contexts.items()
        }
        known.at_import[file] = [line for line, names in contexts.items() if "import" in names]
    Path(JOB.map).write_bytes(msgspec.json.encode(known))


class _Rest:
    """Stands for the item that follows: all is taken down but what the session keeps."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session

    def listchain(self) -> list[pytest.Session]:
        return [self._session]


class Trials:
    """All tests of a part are collected once; each mutant is tried in a fork."""

    def __init__(self, session: pytest.Session) -> None:
        self._map = msgspec.json.decode(Path(JOB.map).read_bytes(), type=Map)
        known = (item for item in session.items if item.nodeid in self._map.tests)
        self._items = {item.nodeid: item for item in known}
        self._rest = _Rest(session)
        self._functions = _functions_by_place()

    def run(self) -> None:
        """Try all mutants; write each outcome when it is known."""
        self._start_servers()
        if not Path(f"{JOB.map}.forked").exists():
            self._leave_out_what_fails_in_a_fork()
        with Path(JOB.outcomes).open("a", encoding="utf-8") as outcomes:
            for trial in JOB.trials:
                began = time.monotonic()
                outcome = self._outcome(trial)
                row = (trial.key, outcome, round(time.monotonic() - began, 3))
                print(json.dumps(row), file=outcomes, flush=True)

    def _start_servers(self) -> None:
        """Let the session own what forks use, or each would start its own."""
        for server in _SERVERS:
            users = [
                name
                for name in self._map.within_budget(set(self._map.tests))
                if name in self._items and server in _fixtures(self._items[name])
            ]
            if users:
                _passes(self._items[users[0]], self._rest)

    def _leave_out_what_fails_in_a_fork(self) -> None:
        failing = Path(f"{JOB.map}.forked")

        def run_all() -> bool:
            names = [name for name in self._items if name not in self._map.unfit]
            failing.write_text("\n".join(name for name in names if not self._pass([name])))
            return True

        tried(run_all, self._map.limits(list(self._items))[0], _ALL_SECONDS_MAX)
        self._map.unfit += failing.read_text().splitlines()
        Path(JOB.map).write_bytes(msgspec.json.encode(self._map))

    def _pass(self, names: list[str]) -> bool:
        items = [self._items[name] for name in names]
        following = [*items[1:], self._rest]
        return all(_passes(*each) for each in zip(items, following, strict=True))

    def _outcome(self, trial: Trial) -> Outcome | str:
        names = self._map.noticing(trial.file, trial.lines)
        names = [name for name in names if name in self._items]
        if not names:
            return "not covered"
        path = PACKAGE / trial.file
        owner = trial.owner
        assert owner is not None
        code = _code_of(compile(mutated(path.read_text(), trial.number), str(path), "exec"), owner)
        functions = self._functions.get((str(path), *owner), [])
        if not functions or any(
            each.__code__.co_freevars != code.co_freevars for each in functions
        ):
            return "afresh"

        def survives() -> bool:
            for function in functions:
                function.__code__ = code
            return self._pass(names)

        outcome = tried(survives, *self._map.limits(names))
        for left in Path(JOB.basetemp).glob("*"):
            with contextlib.suppress(OSError):
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
        return outcome


def _functions_by_place() -> dict[tuple[str, str, int], list[FunctionType]]:
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is FunctionType:
            code = each.__code__
            place = (code.co_filename, code.co_qualname, code.co_firstlineno)
            found.setdefault(place, []).append(each)
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _code_of(module: CodeType, owner: Owner) -> CodeType:
    for code in _codes(module):
        if (code.co_qualname, code.co_firstlineno) == owner:
            return code
    raise LookupError(f"no code of {owner}")
