"""Credentials of a command: from a file, the environment or a prompt, so that no list shows them.

The arguments of a process can be read by all users of a machine. So each option whose value may
have a password takes two more forms: `@FILE` reads it from a file, `-` asks for it (without a
terminal: reads a line of standard input). The variables of settings have files, too: those in the
folder that `RELIABLE_MQ_SECRETS_DIR` names.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import typer
from pydantic import SecretStr

from reliable_mq.errors import UsageError
from reliable_mq.settings import SECRETS_DIR_VARIABLE, Settings

FORMS = "@FILE reads it from a file, - asks for it."
"""The sentence in the help of each such option."""

_SIZE_MAX = 65_536  # characters; a file that is longer is not a credential


def credential(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """Return the value of an option that may be in a file or typed at a prompt.

    Raises:
        UsageError: the file cannot be read, or nothing was typed.
    """
    if context.resilient_parsing or not value:
        return value
    return credential_of(value, str(parameter.opts[0]))


def new_secret(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """Return the value of an option that is nothing but a new secret: a prompt asks for it twice.

    Raises:
        UsageError: it is written on the command line, the file cannot be read, or nothing was
            typed.
    """
    if context.resilient_parsing or not value:
        return value
    what = str(parameter.opts[0])
    if value != "-" and not value.startswith("@"):
        raise UsageError(f"{what}: a list of processes shows the command; write @FILE or -")
    return _typed(what, is_new=True) if value == "-" else credential_of(value, what)


def credentials(
    context: typer.Context, parameter: typer.CallbackParam, values: list[str] | None
) -> list[str] | None:
    """Return the values of an option that can be repeated; see `credential`."""
    return values and [credential(context, parameter, each) for each in values]


def credential_of(text: str, what: str) -> str:
    """Return a credential: `text` itself, a file's content for `@FILE`, or what is typed for `-`.

    Args:
        text: the value of the option.
        what: the option's name, for the prompt and for errors.

    Raises:
        UsageError: the file cannot be read, or nothing was typed.
    """
    if text == "-":
        return _typed(what)
    return _content(Path(text[1:]), what) if text.startswith("@") else text


def variable(name: str) -> str:
    """Return a variable of the environment, or the file of that name in the secrets folder; "".

    Raises:
        UsageError: the file cannot be read.
    """
    value = os.environ.get(name, "")
    folder = os.environ.get(SECRETS_DIR_VARIABLE, "")
    if value or not folder:
        return value
    try:
        found = [each for each in Path(folder).iterdir() if each.name.upper() == name]
    except OSError as error:
        raise UsageError(f"{SECRETS_DIR_VARIABLE}: {folder}: {error.strerror}") from None
    return _content(found[0], name) if found else ""


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without our settings that may have a secret, for other programs."""
    return {name: value for name, value in environment.items() if name not in _SECRET_VARIABLES}


def _secret_variables() -> frozenset[str]:
    fields = Settings.model_fields
    secret = {
        name for name, each in fields.items() if not each.repr or each.annotation is SecretStr
    }
    secret |= {old for old, new in Settings.renamed.items() if new in secret}
    return frozenset(f"RELIABLE_MQ_{name.upper()}" for name in secret)


_SECRET_VARIABLES = _secret_variables()


def _content(file: Path, what: str) -> str:
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_SIZE_MAX).strip()
    except OSError as error:
        raise UsageError(f"{what}: {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{what}: {file} is not a text in UTF-8") from None
    if not text:
        raise UsageError(f"{what}: {file} is empty")
    return text


def _typed(what: str, *, is_new: bool = False) -> str:
    if sys.stdin.isatty():
        text = str(
            typer.prompt(
                what,
                hide_input=True,
                err=True,
                default="",
                show_default=False,
                confirmation_prompt=is_new,
            )
        )
    else:
        text = sys.stdin.readline()
    if not text.strip():
        raise UsageError(f"{what} -: nothing was typed")
    return text.strip()
