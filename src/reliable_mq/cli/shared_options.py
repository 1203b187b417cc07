"""Options that several commands share, and that become one value.

Every command that needs an application has `--app MODULE:OBJECT`. A command without another
argument takes it as its argument, too. The variable `RELIABLE_MQ_APP` names it for all commands.
"""

import inspect
import os
import re
import shlex
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from reliable_mq.command_words import DJANGO_APPLICATION, with_place
from reliable_mq.errors import UsageError

APPLICATION_VARIABLE = "RELIABLE_MQ_APP"
BROKER_VARIABLE = "RELIABLE_MQ_BROKER"
DATABASE_VARIABLE = "RELIABLE_MQ_DATABASE"

Application = Annotated[
    str,
    typer.Option(
        "--app",
        metavar="MODULE:OBJECT",
        help=f"The application, such as shop:mq; default: {APPLICATION_VARIABLE}.",
        show_default=False,
    ),
]
Named = Annotated[
    str,
    typer.Argument(
        metavar="[MODULE:OBJECT]", help="The application, the same as --app.", show_default=False
    ),
]

_place: list[str] = []
"""The options that name the application or the database of the last command, if they are known."""


def note_place(found_by: str | None = None) -> None:
    """Remember the options that name this command's application or database, for `pasteable`.

    None: it has neither.
    """
    _place[:] = [] if found_by is None else [found_by]


def pasteable(text: str) -> str:
    """Return a text whose commands find the application or the database of this command."""
    if not _place and os.environ.get(APPLICATION_VARIABLE) == DJANGO_APPLICATION:
        return re.sub("(?<=[Ss]ee )reliable-mq (?=.*--help)", "python manage.py reliable_mq ", text)
    if not _place or not ("reliable-mq " in text or "RELIABLE_MQ_" in text):
        return text
    return with_place(text, _place[0])


def if_it_is_a_key(word: str) -> str:
    """Return what to do if a word that should be a message id is a key of messages."""
    return pasteable(
        f"if it is a key: reliable-mq stub show {shlex.quote(word)} --app MODULE:OBJECT"
    )


def one_application(argument: str, option: str) -> str:
    """Return the application that a command line names, as an argument or by `--app`; "": none.

    Raises:
        UsageError: it names two.
    """
    if argument and option and argument != option:
        raise UsageError(f"two applications are named: {argument} and --app {option}; give one")
    return argument or option


def needed_application(argument: str, option: str) -> str:
    """Return the application of a command that cannot do without one.

    Raises:
        UsageError: neither the command line nor the environment names one, or it names two.
    """
    found = one_application(argument, option) or os.environ.get(APPLICATION_VARIABLE, "")
    if not found:
        from reliable_mq.app.loading import in_django_project  # noqa: PLC0415 - imports much

        how = f"give MODULE:OBJECT, such as shop:mq, or set {APPLICATION_VARIABLE}"
        raise UsageError(f"no application is named: {in_django_project() or how}")
    note_place(f"--app {shlex.quote(found)}")
    return found


def takes_options_of(
    read: Callable[..., object], into: str = "wanted", *, first: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of `read` to a command; the result of `read` is its parameter `into`.

    Args:
        read: a function of options by name, such as `filter_options.stub_filter`.
        into: the name of the command's parameter.
        first: its options come before the command's own ones in the help; default: after them.
    """
    of_read = inspect.signature(read).parameters

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters

        @wraps(command)
        def called(**given: Any) -> None:
            result = read(**{name: given.pop(name) for name in of_read})
            command(**{into: result}, **given)

        both = (of_read, own) if first else (own, of_read)
        named = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for some in both
            for each in some.values()
            if each.name != into
        ]
        # typer reads both attributes.
        called.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in named}
        return called

    return decorated
