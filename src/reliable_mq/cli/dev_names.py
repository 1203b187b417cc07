"""What a command of `reliable-mq dev` is called in the log. Pure."""

from collections.abc import Sequence
from pathlib import Path

from reliable_mq.cli.dev_log import NAME_WIDTH

_RUNNERS = ("uv", "poetry", "pipenv", "pdm", "hatch", "rye")
"""Commands that run another one: `uv run uvicorn web:app`."""
_OUR_COMMANDS = ("reliable-mq", "reliable_mq", "django")
"""Programs of many commands: the command says more than the program."""


def name_of(words: Sequence[str]) -> str:
    """Return the name of a command: its program, without an interpreter before it.

    Of a program with many commands, such as manage.py, it is the command: "runserver".

    Args:
        words: the command; at least one word.
    """
    left = [Path(word).name for word in words if not word.startswith("-")]
    while len(left) > 1 and _passes_on(left[0]):
        passed = left.pop(0)
        if passed in _RUNNERS and left[0] == "run" and len(left) > 1:
            left.pop(0)
    name = left[0] if left else Path(words[0]).name
    return name[:NAME_WIDTH]


def _passes_on(word: str) -> bool:
    is_interpreter = word.rstrip("0123456789.") in ("python", "pypy")
    has_commands = word in ("manage.py", "django-admin", *_OUR_COMMANDS)
    return is_interpreter or has_commands or word in (*_RUNNERS, "env") or "=" in word
