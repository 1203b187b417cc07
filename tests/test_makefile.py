"""What `make` says before anything else."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import allowed_seconds

ROOT = Path(__file__).parents[1]


def make(*words: str) -> str:
    """Return what `make` prints, with the environment of this test's own interpreter."""
    command = ["make", "--no-print-directory", f"VENV={sys.prefix}", *words]
    reply = subprocess.run(
        command,
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=allowed_seconds(60),
    )
    return reply.stdout


def test_the_interpreter_is_named_by_version_place_and_system() -> None:
    said = make("interpreter")
    assert said.startswith(f"Python {platform.python_version()} of {sys.base_prefix} on ")
    assert said.count("\n") == 1


def test_the_interpreter_that_an_environment_will_be_made_with_is_named_as_well(
    tmp_path: Path,
) -> None:
    said = make("interpreter", f"VENV={tmp_path}", f"PYTHON={sys.executable}")
    assert said.startswith(f"Python {platform.python_version()} of {sys.base_prefix} on ")


@pytest.mark.parametrize("target", ["test", "demo"])
def test_the_interpreter_comes_first(target: str) -> None:
    first, _, _ = make("--dry-run", target).partition("\n")
    assert first == make("--dry-run", "interpreter").partition("\n")[0]
