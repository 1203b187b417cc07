"""`reliable-mq`: one verb, one sibling file, imported only when it is the verb that was asked for.

Receives the command line; hands it to the verb's module. A broker must not wait for Spark or
SQLAlchemy to be imported, so this file knows of a verb only its name, module and line of help.

A verb's module offers either `command`, a function in typer's manner, or `app`, a `typer.Typer`
whose commands become `reliable-mq VERB COMMAND` (with a single command, the verb itself). Beside
`command` it may name a `command_class`.

Exit codes: 0 done, 1 failed, 2 bad usage. What is not a bug is told in one line on stderr.
"""

import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Annotated, Any, NamedTuple

import typer

from reliable_mq.errors import ApplicationBroken, ReliableMQError, UsageError
from reliable_mq.extras import how_to_install
from reliable_mq.plain_text import printable, printable_lines

DONE, FAILED, BAD_USAGE = 0, 1, 2


class Verb(NamedTuple):
    """One word after `reliable-mq`: the sibling module that does it and its line in `--help`."""

    module: str
    summary: str


VERBS = {
    "broker": Verb("broker", "Run the bundled broker, with a name server unless one is named."),
    "namesrv": Verb("namesrv", "Run a name server."),
    "run": Verb("run", "Run the consumers of an application."),
    "resend": Verb("resend", "Send again what nobody confirmed; escalate what went out too often."),
    "pause": Verb("pause", "Pause the resending of a topic, end its pause, or list."),
    "create-tables": Verb("create_tables", "Create the tables in an application's database."),
    "migrate": Verb("migrate", "Bring the tables of an application's database to this release."),
    "doctor": Verb("doctor", "Look for what would break a promise, and say what to do."),
    "stub": Verb("stub", "List, show, retry or void message stubs."),
    "dlq": Verb("dlq", "List, show or retry the dead letters of consumer groups."),
    "topic": Verb("topic", "List, show, create, change or delete topics."),
    "group": Verb("group", "Consumer groups: members, progress, offsets set, settings."),
    "message": Verb("message", "Find and show stored messages."),
    "notifiers": Verb("notifiers", "List who tells people and what waits; let them tell a test."),
    "reconcile": Verb("reconcile", "Give every message one verdict from three ledgers; repair."),
    "demo": Verb("demo", "Replay real orders through faults; prove that nothing was lost."),
    "walk": Verb("walk", "Print the path of one message through all stations."),
}


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 - costs a verb nothing

        typer.echo(f"reliable-mq {version('reliable-mq')}")
        raise typer.Exit


def _root(
    _version_asked: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Reliable messaging: a RocketMQ-compatible broker, outbox, idempotency, reconciliation."""


def _attach(root: typer.Typer, name: str, module: ModuleType) -> None:
    """Register what a verb's module offers under the verb's name."""
    command: Callable[..., Any] | None = getattr(module, "command", None)
    if command is None:
        app: typer.Typer = module.app
        if app.registered_callback is not None or len(app.registered_commands) != 1:
            root.add_typer(app, name=name, help=VERBS[name].summary)
            return
        command = app.registered_commands[0].callback
        assert command is not None
    root.command(name, cls=getattr(module, "command_class", None))(command)


def _not_loaded() -> None:
    raise AssertionError("a verb is loaded before it is called")


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Return the application in which only the verb named by `arguments` has been imported."""
    root = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # an error is a line, not a box
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    root.callback()(_root)
    wanted = next((word for word in arguments if not word.startswith("-")), None)
    for name, verb in VERBS.items():
        if name == wanted:
            _attach(root, name, importlib.import_module(f"reliable_mq.cli.{verb.module}"))
        else:
            root.command(name, help=verb.summary)(_not_loaded)
    return root


def explain(error: Exception) -> tuple[str, int] | None:
    """Return the line and the exit code for an error that is no bug, None for one that is."""
    text = " ".join(str(error).split())
    if hasattr(error, "format_message"):  # typer's, of whichever click it brings along
        return _unusable(error), getattr(error, "exit_code", BAD_USAGE)
    match error:
        case UsageError():
            return text, BAD_USAGE
        case ReliableMQError() | OSError():
            return text or type(error).__name__, FAILED
        case ModuleNotFoundError() if error.name and (line := how_to_install(error.name)):
            return line, FAILED
        case _ if type(error).__module__ == "sqlalchemy.exc":
            # `orig` is the driver's own sentence, without the statement and its parameters
            cause = " ".join(str(getattr(error, "orig", None) or error).split())
            return f"database: {cause}", FAILED
        case _ if type(error).__module__ == "redis.exceptions":
            return f"redis: {text}", FAILED
    return None


def _unusable(error: Any) -> str:
    """Return what is wrong with a command line, and where to read how it should be."""
    text = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    where = f"; see {context.command_path} --help" if context is not None else ""
    return text.removesuffix(".") + where


def run(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says and exit with its code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        # `standalone_mode` would write the usage, a hint and an error, on four lines.
        code = build_app(words)(args=words, prog_name="reliable-mq", standalone_mode=False)
    except typer.Abort:
        print("Aborted!", file=sys.stderr)
        sys.exit(FAILED)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # who says nothing wants to know
            print(printable_lines(str(error)), file=sys.stderr)
            sys.exit(BAD_USAGE)
        if isinstance(error, ApplicationBroken):
            print(printable_lines("".join(traceback.format_exception(error.own))), file=sys.stderr)
        explained = explain(error)
        if explained is None:
            raise
        line, code = explained
        print(f"error: {printable(line)}", file=sys.stderr)
        sys.exit(code)
    sys.exit(code if isinstance(code, int) else DONE)  # an int: that of `typer.Exit`


if __name__ == "__main__":
    run()
