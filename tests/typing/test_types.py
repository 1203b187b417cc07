"""What mypy and pyright, both strict, say of a user's code: of a project that uses everything
public, and of lines that must be refused.

A line that must be refused ends with the rules that report it: `# refused: RULE RULE`.
Those of pyright begin with "report".
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.waiting import run_process

import reliable_mq

HERE = Path(__file__).parent
MARK = re.compile(r"# refused: (?P<rules>.+)$")
MYPY_LINE = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): error: .*\[(?P<rule>[\w-]+)\]")
CHECKERS = ("mypy", "pyright")
FOLLOWS = {"untyped-decorator", "reportUntypedFunctionDecorator"}
"""Rules that report nothing new: a decorator whose call is refused has no type."""


class Complaint(NamedTuple):
    """One rule that a checker reports at one line."""

    place: str
    rule: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a copy of the user's code: no configuration of ours lies above it."""
    copy = tmp_path_factory.mktemp("user")
    for name in ("shop", "refused"):
        shutil.copytree(HERE / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def mypy(folder: Path) -> set[Complaint]:
    words = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--no-error-summary"]
    cache = ["--cache-dir", str(HERE.parents[1] / ".mypy_cache" / "user")]
    said = run_process([*words, *cache, "."], cwd=folder, capture_output=True, timeout=600)
    assert said.returncode in (0, 1), said.stdout + said.stderr
    found = [MYPY_LINE.match(line) for line in said.stdout.splitlines() if ": error:" in line]
    assert all(found), said.stdout
    return {Complaint(f"{each['file']}:{each['line']}", each["rule"]) for each in found if each}


def pyright(folder: Path) -> set[Complaint]:
    settings = {"typeCheckingMode": "strict", "include": ["shop", "refused"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    words = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    said = run_process(words, cwd=folder, capture_output=True, timeout=600)
    assert said.returncode in (0, 1), said.stdout + said.stderr
    return {
        Complaint(
            f"{Path(each['file']).relative_to(folder.resolve())}:"
            f"{each['range']['start']['line'] + 1}",
            each.get("rule", each["message"]),
        )
        for each in json.loads(said.stdout)["generalDiagnostics"]
    }


CHECKS: dict[str, Callable[[Path], set[Complaint]]] = {"mypy": mypy, "pyright": pyright}


@pytest.fixture(scope="module", params=CHECKERS)
def checker(request: pytest.FixtureRequest) -> str:
    """Give the name of a type checker that is installed and runs."""
    name: str = request.param
    words = [sys.executable, "-m", name, "--version"]
    said = subprocess.run(words, capture_output=True, text=True, check=False)  # loads its parts
    if said.returncode:
        pytest.skip(f"{name} does not run here: {(said.stderr or said.stdout).strip()[-200:]}")
    return name


@pytest.fixture(scope="module")
def complaints(checker: str, folder: Path) -> set[Complaint]:
    """Give everything that the checker reports."""
    return {each for each in CHECKS[checker](folder) if each.rule not in FOLLOWS}


def expected(folder: Path, checker: str) -> set[Complaint]:
    """Return what the marks of the refused lines announce."""
    return {
        Complaint(f"{path.relative_to(folder)}:{number}", rule)
        for path in sorted((folder / "refused").glob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (mark := MARK.search(line))
        for rule in mark["rules"].split()
        if rule.startswith("report") == (checker == "pyright")
    }


def test_a_project_that_uses_everything_public_has_no_type_error(
    complaints: set[Complaint],
) -> None:
    assert {each for each in complaints if each.place.startswith("shop/")} == set()


def test_each_marked_line_is_refused_by_the_named_rules_and_no_other_line_is(
    complaints: set[Complaint], checker: str, folder: Path
) -> None:
    found = {each for each in complaints if each.place.startswith("refused/")}

    assert found == expected(folder, checker)


INTEGRATIONS = ("asgi", "django", "fastapi", "flask", "health", "litestar", "starlette")


def test_the_project_uses_every_public_name() -> None:
    text = "".join(path.read_text() for path in (HERE / "shop").glob("*.py"))
    names = set(reliable_mq.__all__)
    for each in INTEGRATIONS:
        names |= set(import_module(f"reliable_mq.contrib.{each}").__all__)

    unused = [name for name in names if not re.search(rf"\b{name}\b", text)]
    assert unused == []


def test_each_integration_is_a_part_of_the_project() -> None:
    folder = Path(reliable_mq.__file__).parent / "contrib"
    found = {each.name.removesuffix(".py") for each in folder.iterdir() if each.name[0] != "_"}

    assert found - {"endpoint_checks", "request_transaction"} == set(INTEGRATIONS)
