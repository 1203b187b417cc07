"""Style that can be counted is counted: sizes, names, dead modules, traces of a machine."""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from reliable_mq.cli.main import VERBS

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"

# Migrations are a record, as long as what they record.
HISTORY = SOURCE / "reliable_mq" / "migrations" / "versions"
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
# A module of the package that may be longer, because it is one thing, and which.
ONE_THING = {
    "broker_core/core.py": "one class, the broker's turn",
    "telemetry/metrics.py": "one table: every metric that there is",
    "consume/asyncio_delivery.py": "one way of a delivery, from the gate to its outcome",
    "database/sql_handler_session.py": "one promise: how the end of its transaction is found out",
    "outbox/relay.py": "one relay: its lanes, a send of stubs, and what is recorded of it",
    "outbox/sql_stubs.py": "one table's statements: new stubs, what to send, what was sent",
}
COLUMNS_MAX = 100

# A banned word in the name of a module or class, and what to write instead.
BANNED = {
    "abstract": "the noun it is: a Protocol needs no prefix",
    "base": "what the children have in common",
    "common": "the noun both sides share",
    "default": "what it does when nothing is said",
    "helpers": "the noun the functions work on",
    "impl": "what sets this one apart from the others",
    "manager": "the thing it manages, in the plural",
    "misc": "one module for each subject",
    "processor": "the verb of the wire it answers",
    "service": "the duty: relay, scheduler, retention",
    "utils": "the noun the functions work on",
}
# A public class name that may stand in two modules, and the reason.
TWINS: dict[str, str] = {
    "Command": "Django wants a management command to have this name",
    "Migration": "Django wants each migration to have this name",
}
# What only applications import, or the reference.
FACES = {"reliable_mq.client.thread_client", "reliable_mq.telemetry.log_events"}
# Where tests may sleep, how often, and why: all else waits for a condition, by `tests.waiting`.
SLEEPS = {
    "app/jumping_loop.py": (1, "lets a made clock go on, which takes no time"),
    "chaos/application.py": (1, "a handler that takes longer than its lease"),
    "client/pop_broker.py": (1, "a long poll that finds nothing takes a moment"),
    "client/cluster.py": (1, "a handler that takes a while: two of one key would be seen at once"),
    "client/test_closing_servers.py": (1, "the client's seconds, which are quick"),
    "conformance/test_half_messages.py": (1, "an answer that takes longer than the broker waits"),
    "conformance/test_lost_master.py": (1, "the pace of the load"),
    "conformance/test_shared_group.py": (2, "the pace of the load, and a handler that takes time"),
    "crash_matrix/roles.py": (1, "the broker asks for halves by a clock of its own"),
    "interop/sdk/stories.py": (2, "an application of its own, which imports no tests"),
    "waiting.py": (4, "the pauses between two looks at a condition"),
}
# Written in two halves so that this file passes its own test.
UNFINISHED = re.compile("|".join(("TO" + "DO", "FIX" + "ME")))
# A word to a checker stands where the checker wants it, however wide the line gets.
PRAGMA = re.compile(r"  # (noqa|type: ignore).*$")
MACHINE_PATH = re.compile("|".join(("/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/", "/Us" + "ers/")))


def python_files() -> list[Path]:
    folders = ("src", "tests", "bench", "examples")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def text_files() -> Iterator[Path]:
    yield from python_files()
    for pattern in ("*.md", "*.toml", "Makefile", ".ci/run", "docs/**/*.md", "src/**/*.lua"):
        yield from ROOT.glob(pattern)


class Definition(NamedTuple):
    """A function or class, and how many lines it has."""

    name: str
    lines: int
    is_class: bool


class Read(NamedTuple):
    """What a source has, read once for all tests here: to parse it takes longer than to look."""

    definitions: list[Definition]
    mentions: set[str]
    """Every dotted name that could be a module which this source imports or starts."""
    is_said: bool
    """Whether the module says what it is."""
    sleeps: list[int]
    """The lines that let time pass: `sleep` of anything but 0, an event that nobody sets."""
    spins: list[int]
    """The lines of loops that do nothing but let the event loop go on: `eventually` ends."""


@cache
def read(source: str) -> Read:
    tree = ast.parse(source)
    found = Read([], set(), bool(ast.get_docstring(tree)), [], [])
    may_sleep = "sleep" in source or "Event" in source
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            found.definitions.append(Definition(node.name, lines, type(node) is ast.ClassDef))
        elif isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                found.mentions.add(node.value)  # imported late by name, or run by `python -m`
        elif isinstance(node, ast.Import):
            found.mentions.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.mentions.add(node.module)
            found.mentions.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and may_sleep and is_sleep(node):
            found.sleeps.append(node.lineno)
        elif isinstance(node, ast.While) and may_sleep and is_spin(node):
            found.spins.append(node.lineno)
    return found


def is_sleep(node: ast.Call) -> bool:
    if called(node) == "sleep":
        return not is_zero(node.args)
    return called(node) == "wait" and bool(node.args) and called(receiver(node)) == "Event"


def is_spin(node: ast.While) -> bool:
    (first, *others) = node.body
    is_alone = not others and isinstance(first, ast.Expr)
    return is_alone and any(called(each) == "sleep" for each in ast.walk(first))


def long_functions(source: str) -> list[str]:
    return [
        f"{each.name}: {each.lines} lines"
        for each in read(source).definitions
        if not each.is_class and each.lines > FUNCTION_LINES_MAX
    ]


def words_of(name: str) -> set[str]:
    """Split `snake_case` and `CamelCase` into lower-case words."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def banned_names(stem: str, source: str) -> list[str]:
    names = [stem]
    names += [each.name for each in read(source).definitions if each.is_class]
    return [
        f"{name}: not {word!r}, say {BANNED[word]}"
        for name in names
        for word in sorted(words_of(name) & BANNED.keys())
    ]


def test_no_module_but_those_that_are_one_thing_is_longer_than_four_hundred_lines() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in python_files()}

    long = {path for path, size in sizes.items() if size > MODULE_LINES_MAX}
    found = {path for path in long if path.parent != HISTORY}
    assert found == {SOURCE / "reliable_mq" / name for name in ONE_THING}


def test_no_function_is_longer_than_seventy_lines() -> None:
    files = (path for path in python_files() if path.parent != HISTORY)
    found = {path: long_functions(path.read_text()) for path in files}

    assert {path: names for path, names in found.items() if names} == {}


def test_no_line_is_wider_than_a_hundred_columns() -> None:
    found = [
        f"{path}:{number}"
        for path in python_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(PRAGMA.sub("", line)) > COLUMNS_MAX
    ]

    assert found == []


def test_no_module_or_class_bears_a_name_that_says_nothing() -> None:
    found = [hit for path in python_files() for hit in banned_names(path.stem, path.read_text())]
    found += [
        f"{path}: not {path.name!r}, say {BANNED[path.name]}"
        for path in SOURCE.rglob("*")
        if path.is_dir() and path.name in BANNED
    ]

    assert found == []


def names_in_two_modules(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the public class names that more than one module defines, with these modules."""
    found: dict[str, list[str]] = {}
    for module, source in sources.items():
        names = {each.name for each in read(source).definitions if each.is_class}
        for name in sorted(names):
            if not name.startswith("_"):
                found.setdefault(name, []).append(module)
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_public_class_name_stands_in_two_modules() -> None:
    sources = {dotted(path): path.read_text() for path in (SOURCE / "reliable_mq").rglob("*.py")}

    found = names_in_two_modules(sources)
    assert {name: places for name, places in found.items() if name not in TWINS} == {}
    assert TWINS.keys() - found.keys() == set()


def test_a_planted_twin_is_found() -> None:
    sources = {
        "a": "class Row: ...",
        "b": "class Row: ...\nclass _Part: ...",
        "c": "class _Part: ...",
    }

    assert names_in_two_modules(sources) == {"Row": ["a", "b"]}


def test_nothing_is_left_for_later_in_the_code() -> None:
    found = [
        f"{path}:{number}"
        for path in text_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNFINISHED.search(line)
    ]

    assert found == []


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    found = [
        f"{path}:{number}"
        for path in text_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]

    assert found == []


def dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_module_is_dead() -> None:
    """Given every module but the package files, then another one imports it or a verb names it."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    roots = {target.split(":")[0] for target in scripts.values()}
    roots |= {f"reliable_mq.cli.{verb.module}" for verb in VERBS.values()}
    used = roots | FACES
    for path in python_files():
        if "tests" not in path.parts:
            used |= read(path.read_text()).mentions
    kits = {
        f"reliable_mq.testing.{path.stem}" for path in (SOURCE / "reliable_mq/testing").iterdir()
    }

    history = "reliable_mq/migrations"  # what Alembic runs, by where it lies
    run_by_alembic = {dotted(path) for path in (SOURCE / history / "versions").iterdir()}
    run_by_alembic.add(dotted(SOURCE / history / "env.py"))

    found_by_spark = {path.stem for path in SOURCE.glob("pyspark_*.py")}

    contrib = SOURCE / "reliable_mq" / "contrib"  # faces, or loaded by a framework
    faces = {dotted(path) for path in contrib.rglob("*.py")}

    modules = {dotted(path) for path in SOURCE.rglob("*.py") if path.name != "__init__.py"}

    assert modules - used - kits - faces - run_by_alembic - found_by_spark == set()


def test_every_module_of_the_package_and_of_the_demo_says_what_it_is() -> None:
    files = [*SOURCE.rglob("*.py"), *(ROOT / "examples" / "demo").rglob("*.py")]
    silent = [path for path in files if not read(path.read_text()).is_said]

    assert silent == []


def called(node: ast.AST | None) -> str:
    """Return the last name of what a call calls."""
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def receiver(node: ast.Call) -> ast.AST | None:
    return node.func.value if isinstance(node.func, ast.Attribute) else None


def is_zero(arguments: Sequence[ast.AST]) -> bool:
    return any(isinstance(each, ast.Constant) and each.value == 0 for each in arguments[:1])


def test_no_test_sleeps_to_wait() -> None:
    tests = ROOT / "tests"
    found = {
        path.relative_to(tests).as_posix(): read(path.read_text()).sleeps
        for path in tests.rglob("*.py")
    }

    counts = {path: len(lines) for path, lines in found.items() if lines}
    assert counts == {path: count for path, (count, _) in SLEEPS.items()}


def test_no_test_waits_in_a_loop_without_a_limit() -> None:
    files = (path for path in (ROOT / "tests").rglob("*.py") if path.name != "waiting.py")
    found = {path: read(path.read_text()).spins for path in files}

    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "time.sleep(0.1)",
        "sleep(seconds)",
        "await asyncio.sleep(PAUSE)",
        "threading.Event().wait(0.1)",
        "asyncio.sleep(delay=1)",
    ],
)
def test_a_planted_sleep_is_found(line: str) -> None:
    assert read(f"async def wait():\n    {line}").sleeps == [2]


@pytest.mark.parametrize(
    "line", ["await asyncio.sleep(0)", "is_over.wait(60)", "await asyncio.Event().wait()"]
)
def test_what_lets_others_go_on_or_hangs_is_no_sleep(line: str) -> None:
    assert read(f"async def wait():\n    {line}").sleeps == []


def test_a_planted_spin_is_found() -> None:
    spin = "async def wait():\n    while not seen:\n        await asyncio.sleep(0)"

    assert read(spin).spins == [2]
    assert read(f"{spin}\n        count += 1").spins == []


@pytest.mark.parametrize(
    ("name", "word"),
    [("DefaultMessageStore", "default"), ("QueueManager", "manager"), ("string_utils", "utils")],
)
def test_a_planted_name_is_found(name: str, word: str) -> None:
    assert banned_names(name, "")[0].startswith(f"{name}: not {word!r}")
    assert banned_names("fine", f"class {name}: ...")


def test_a_planted_giant_is_found() -> None:
    body = "\n".join("    pass" for _ in range(FUNCTION_LINES_MAX))

    assert long_functions(f"def giant() -> None:\n{body}") == ["giant: 71 lines"]
    assert long_functions("def small() -> None:\n    pass") == []
