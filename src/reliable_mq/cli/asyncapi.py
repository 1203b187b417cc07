"""`reliable-mq asyncapi`: prints the AsyncAPI 3 document of an application."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from reliable_mq.cli import database_options as options
from reliable_mq.cli.saying import say_lines
from reliable_mq.cli.shared_options import Application, Named, needed_application
from reliable_mq.contract.document_text import as_json, as_yaml
from reliable_mq.errors import ConfigurationError


class Format(StrEnum):
    """The form of a printed document."""

    YAML = "yaml"
    JSON = "json"


def command(
    argument: Named = "",
    application: Application = "",
    form: Annotated[
        Format,
        typer.Option("--format", case_sensitive=False, help="The form of the document."),
    ] = Format.YAML,
    version: Annotated[
        str, typer.Option("--api-version", help="The version of your messages, as 1.4.0.")
    ] = "0.0.0",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file.")
    ] = None,
) -> None:
    """Print the AsyncAPI 3 document: topics as channels, consumers and sends as operations."""
    mq = options.loaded(needed_application(argument, application))
    try:
        document = mq.asyncapi(version=version)
    finally:
        mq.close()
    text = as_json(document) if form is Format.JSON else as_yaml(document)
    if output is None:
        say_lines(text.rstrip("\n"))
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{output}: cannot be written: {error.strerror}") from error
