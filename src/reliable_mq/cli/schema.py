"""`reliable-mq schema`: records the payload schemas of an application, and checks changes."""

from pathlib import Path
from typing import Annotated

import typer

from reliable_mq.cli import database_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.commands import VerbCommands
from reliable_mq.cli.saying import say, say_json
from reliable_mq.cli.shared_options import Application, needed_application
from reliable_mq.contract.file_schemas import read_schemas, write_schemas
from reliable_mq.contract.payloads import PayloadSchemas
from reliable_mq.contract.schema_check import check_schemas

app = VerbCommands("Record payload schemas; check changes of them in CI.")

Folder = Annotated[Path, typer.Option(help="The folder of the records.")]
RECORDS = Path("schemas")


@app.command("write")
def write(
    application: Application = "",
    folder: Folder = RECORDS,
    as_json: printing.AsJson = False,
) -> None:
    """Record the JSON Schema of each payload in a folder; commit the folder with your code."""
    written = write_schemas(folder, _payloads(application))
    if as_json:
        say_json(written)
        return
    for name in written:
        say(f"{folder / name} written")
    if not written:
        say("every payload is recorded already")


@app.command("check")
def check(
    application: Application = "",
    folder: Folder = RECORDS,
    exact: Annotated[
        bool, typer.Option("--exact", help="Fail, too, if a payload differs from its record.")
    ] = False,
    as_json: printing.AsJson = False,
) -> None:
    """Compare the payloads with the records: one line for each incompatible change, then code 1.

    Backward: today's code reads what was written before. Forward: earlier code reads what is
    written today. A payload with a schema needs both, within one version. A payload that is only
    read needs the first, one that is only sent needs the second.
    """
    found = check_schemas(_payloads(application), read_schemas(folder))
    has_failed = bool(found.incompatible or (exact and found.unrecorded))
    if as_json:
        incompatible = [each._asdict() for each in found.incompatible]
        say_json({"incompatible": incompatible, "unrecorded": found.unrecorded})
    else:
        for each in found.incompatible:
            say(each)
        for name in found.unrecorded:
            say(f"{name}: differs from its record, or has none: reliable-mq schema write")
        if not (found.incompatible or found.unrecorded):
            say("every payload is as recorded")
    if has_failed:
        raise typer.Exit(1)


def _payloads(application: str) -> list[PayloadSchemas]:
    mq = options.loaded(needed_application("", application))
    try:
        return mq.payload_schemas()
    finally:
        mq.close()
