"""`reliable-mq init`: writes a small project whose tests pass and which `reliable-mq dev` runs."""

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from reliable_mq.cli.saying import say
from reliable_mq.errors import ConfigurationError, UsageError

_HERE = Path(__file__).parent / "init_project"
FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "shop.py": "shop.py.txt",
    "tests/conftest.py": "conftest.py.txt",
    "tests/test_shop.py": "test_shop.py.txt",
    ".gitignore": "gitignore.txt",
}
"""File of the new project -> its text in the folder `init_project`."""


def command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="[FOLDER]",
            help="The project's folder, created if missing; default: this one.",
            show_default=False,
        ),
    ] = Path(),
) -> None:
    """Write a small project: an application with one consumer, its test, pyproject and README.

    Existing files are never overwritten.
    """
    written = write_project(folder)
    for path in written:
        say(f"written: {path}")
    if folder.resolve() != Path.cwd():
        say(f"next: cd {shlex.quote(str(folder))}")
    say("next: pip install -e '.[test]' && pytest")
    say("next: reliable-mq dev shop:mq")


def write_project(folder: Path) -> list[Path]:
    """Write the files of the project; return their paths.

    Raises:
        UsageError: one of them exists; then nothing is written.
        ConfigurationError: the folder cannot be written.
    """
    paths = {folder / name: _HERE / source for name, source in FILES.items()}
    if there := [str(path) for path in paths if path.exists()]:
        raise UsageError(f"{there[0]} exists: give a new folder, such as reliable-mq init shop")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: give a new folder, such as reliable-mq init shop")
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "shop"
    try:
        for path, source in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source.read_text("utf-8").replace("PROJECT_NAME", name), "utf-8")
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written: {error.strerror}") from error
    return list(paths)
