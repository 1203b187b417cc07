"""What `make` says before anything else."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import run_process

ROOT = Path(__file__).parents[1]
TOOLS = ("ruff", "mypy", "pytest", "reliable-mq")
NAMED = f"Python {platform.python_version()} of {sys.base_prefix} on "


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `make` as a person does who has set nothing."""
    ours = ("MAKE", "MFLAGS", "VENV", "PYTHON", "PYTEST")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    command = ["make", "--no-print-directory", *words]
    return run_process(command, cwd=ROOT, env=environment, capture_output=True, timeout=60)


def program(path: Path, line: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Give an environment that is ready: our interpreter, and tools that only say their names.

    Modules are not run: to compile all of them, and to read all pages, takes seconds.
    """
    folder = tmp_path / "venv"
    program(folder / "bin" / "python", f'test "$1" = -m || exec "{sys.executable}" "$@"')
    for tool in TOOLS:
        program(folder / "bin" / tool, f"echo {tool}")
    (folder / ".ready").touch()
    (folder / "spark.jsa").touch()
    os.utime(folder / "spark.jsa", (2**31, 2**31))  # no other one is to be made
    return folder


def test_the_interpreter_is_named_by_version_place_and_system(environment: Path) -> None:
    said = make("interpreter", f"VENV={environment}")
    assert said.stdout.startswith(NAMED), said.stderr
    assert said.stdout.count("\n") == 1


@pytest.mark.parametrize("folder", ["plain", "with spaces"])
def test_the_interpreter_that_an_environment_will_be_made_with_is_named_as_well(
    tmp_path: Path, folder: str
) -> None:
    python = program(tmp_path / folder / "python3", f'exec "{sys.executable}" "$@"')
    said = make("interpreter", f"VENV={tmp_path / 'none'}", f"PYTHON={python}")
    assert said.stdout.startswith(NAMED), said.stderr


@pytest.mark.parametrize("jobs", ["-j1", "-j4"])
@pytest.mark.parametrize(
    ("target", "tools"), [("test", ["ruff", "ruff", "mypy", "pytest"]), ("demo", ["reliable-mq"])]
)
def test_the_interpreter_comes_first_however_many_jobs_run(
    environment: Path, jobs: str, target: str, tools: list[str]
) -> None:
    first, *others = make("--silent", jobs, target, f"VENV={environment}").stdout.splitlines()
    assert first.startswith(NAMED)
    assert others == tools


@pytest.mark.parametrize("target", ["test", "demo", "check"])
@pytest.mark.parametrize("path", ["no/such", "no such/python3", "old/python2.7"])
def test_an_interpreter_that_is_too_old_or_absent_is_refused_in_one_line(
    tmp_path: Path, target: str, path: str
) -> None:
    program(tmp_path / "old" / "python2.7", "echo SyntaxError >&2; exit 1")
    python = tmp_path / path
    said = make(target, f"VENV={tmp_path / 'none'}", f"PYTHON={python}")
    error, *rest = said.stderr.splitlines()
    assert error == (
        f"error: {python} is older than 3.11 or does not run; say make PYTHON=/path/to/python"
    )
    assert len(rest) == 1, "make itself names the target"
    assert (said.returncode, said.stdout) == (2, "")


@pytest.mark.parametrize("target", ["test", "demo", "check"])
def test_an_environment_of_another_interpreter_than_the_one_that_is_named_is_refused(
    tmp_path: Path, environment: Path, target: str
) -> None:
    other = program(tmp_path / "other", "echo 3.99")
    said = make(target, f"VENV={environment}", f"PYTHON={other}")
    assert said.stderr.startswith(f"error: {environment} was made with another Python than {other}")
    assert (said.returncode, said.stdout) == (2, "")
    assert make("interpreter", f"VENV={environment}", f"PYTHON={sys.executable}").returncode == 0


@pytest.mark.parametrize("was_ready", [False, True])
def test_an_environment_is_made_anew_unless_it_was_ready(tmp_path: Path, was_ready: bool) -> None:
    """One whose installation was interrupted may be of another interpreter, named or not."""
    folder, made = tmp_path / "venv", tmp_path / "made"
    program(folder / "bin" / "python", f'test "$1" = -m || exec "{sys.executable}" "$@"')
    makes = f'if test "$2" = venv; then echo "$@" >"{made}"'
    python = program(tmp_path / "python", f'{makes}; else exec "{sys.executable}" "$@"; fi')
    if was_ready:
        (folder / ".ready").touch()
        os.utime(folder / ".ready", (0, 0))  # before pyproject.toml changed
    said = make(f"{folder}/.ready", f"VENV={folder}", f"PYTHON={python}")
    assert said.returncode == 0, said.stderr
    assert made.exists() != was_ready
    if not was_ready:
        assert made.read_text() == f"-m venv --clear {folder}\n"


def test_without_any_interpreter_make_says_how_to_name_one(tmp_path: Path) -> None:
    said = make("test", f"VENV={tmp_path / 'none'}", "PYTHON=")
    assert said.stderr.startswith("error: no Python 3.11 or newer on the PATH; ")


@pytest.mark.parametrize("target", ["test", "demo", "check"])
def test_an_environment_whose_interpreter_is_gone_is_to_be_cleaned(
    environment: Path, target: str
) -> None:
    (environment / "bin" / "python").unlink()
    (environment / "bin" / "python").symlink_to(environment / "gone")
    said = make(target, f"VENV={environment}")
    assert said.stderr.startswith(f"error: {environment}/bin/python does not run; say make clean")
    assert (said.returncode, said.stdout) == (2, "")
