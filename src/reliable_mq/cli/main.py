"""`reliable-mq`: one verb, one sibling file. Only the module of the requested verb is imported.

Receives the command line; passes it to the verb's module. A broker must not wait for the import of
Spark or SQLAlchemy. So this file knows only a verb's name, module and help line.

A verb's module has either `command`, a function for typer, or `app`, a `typer.Typer`. The commands
of an `app` become `reliable-mq VERB COMMAND`; a single command becomes the verb itself. Beside
`command`, the module may have a `command_class`.

Exit codes: 0 done, 1 failed, 2 bad usage. An error that is not a bug is one line on stderr.
"""

import importlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Annotated, Any, NamedTuple

import typer

from reliable_mq.cli.commands import SETTINGS, VerbCommand, unusable
from reliable_mq.cli.log_options import hush_outages, json_error, note_shape
from reliable_mq.cli.misspelt_variables import tell_unknown_variables
from reliable_mq.cli.remote_words import name_server_hint, words_of
from reliable_mq.cli.saying import say_trouble
from reliable_mq.cli.shared_options import note_place, pasteable
from reliable_mq.configuration.unknown_variables import TOLD_VARIABLE
from reliable_mq.errors import ApplicationBroken, ReliableMQError, Unavailable, UsageError
from reliable_mq.extras import how_to_install
from reliable_mq.plain_text import printable_lines

DONE, FAILED, BAD_USAGE = 0, 1, 2

_COMPLETION = "_RELIABLE_MQ_COMPLETE"
_COMPLETED_WORDS = "_TYPER_COMPLETE_ARGS"
"""Variables by which typer's completion asks: a mode, and the command line so far."""


class Verb(NamedTuple):
    """One word after `reliable-mq`: the sibling module that runs it, and its line in `--help`."""

    module: str
    summary: str


VERBS = {
    "broker": Verb("broker", "Run the bundled broker, and a name server if none is given."),
    "namesrv": Verb("namesrv", "Run a name server."),
    "proxy": Verb("proxy", "Run a gRPC endpoint for RocketMQ's 5.x clients, before a cluster."),
    "init": Verb("init", "Write a small project: an application, a consumer, a test."),
    "dev": Verb("dev", "Run all that an application needs, in one log; reload on change."),
    "run": Verb("run", "Run the consumers of an application."),
    "resend": Verb("resend", "Send unconfirmed stubs again; escalate those sent too often."),
    "schema": Verb("schema", "Record payload schemas; check changes of them in CI."),
    "asyncapi": Verb("asyncapi", "Print the AsyncAPI 3 document of an application."),
    "periodic": Verb("periodic", "List periodic messages with their next and last ticks."),
    "pause": Verb("pause", "Pause the resending of a topic, end its pause, or list pauses."),
    "create-tables": Verb("create_tables", "Create the tables in an application's database."),
    "migrate": Verb("migrate", "Migrate the tables of an application's database to this release."),
    "doctor": Verb("doctor", "Look for what would break a promise, and say what to do."),
    "stub": Verb("stub", "List, show, retry, void or skip messages with a stub."),
    "dlq": Verb("dlq", "List, show or retry the dead letters of consumer groups."),
    "topic": Verb("topic", "List, show, create, change or delete topics."),
    "group": Verb("group", "Consumer groups: members, progress, offsets, settings."),
    "access": Verb("access", "Users and policies of brokers; import accounts of RocketMQ 4.x."),
    "message": Verb("message", "Find and show stored messages."),
    "audit": Verb("audit", "List who changed what, at a broker and in databases."),
    "notifiers": Verb("notifiers", "List notifiers and waiting escalations; send a test."),
    "reconcile": Verb("reconcile", "Give every message one verdict from three ledgers; repair."),
    "console": Verb("console", "Serve pages: is anything wrong, where is a message, what to do."),
    "demo": Verb("demo", "Replay real orders while processes are killed; check every effect."),
    "walk": Verb("walk", "Send a sample message, and print its path through all stations."),
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
    """Register the command or app of a verb's module under the verb's name."""
    command: Callable[..., Any] | None = getattr(module, "command", None)
    if command is None:
        app: typer.Typer = module.app
        if app.registered_callback is not None or len(app.registered_commands) != 1:
            root.add_typer(app, name=name, help=VERBS[name].summary)
            return
        command = app.registered_commands[0].callback
        assert command is not None  # noqa: S101 - for type checkers
    root.command(name, cls=getattr(module, "command_class", VerbCommand))(command)


def _not_loaded() -> None:
    raise AssertionError("a verb is loaded before it is called")


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Return the application; only the verb named by `arguments` has been imported.

    With `--install-completion`, it installs the completion of the words for the user's shell.
    """
    root = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # an error is a line, not a box
        context_settings=SETTINGS,
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
    """Return the line and the exit code for an error that is not a bug; None: it is a bug."""
    text = " ".join(str(error).split())
    if hasattr(error, "format_message"):  # an error of typer, or of the click that it uses
        return unusable(error), getattr(error, "exit_code", BAD_USAGE)
    match error:
        case UsageError():
            return f"{error.place}: {text}" if error.place else text, BAD_USAGE
        case Unavailable() if text.startswith("no name server answers"):
            return f"{text}; {name_server_hint(text)}", FAILED
        case ReliableMQError() | OSError():
            return words_of(error), FAILED
        case ModuleNotFoundError() if error.name and (line := how_to_install(error.name)):
            return line, BAD_USAGE
        case _ if type(error).__module__ == "sqlalchemy.exc":
            # `orig` is the driver's own message, without the statement and its parameters
            cause = " ".join(str(getattr(error, "orig", None) or error).split())
            away = type(error).__name__ == "OperationalError"
            hint = "; start the database, or correct its URL" if away else ""
            return f"database: {cause}{hint}", FAILED
        case _ if type(error).__module__ == "redis.exceptions":
            return f"redis: {text}; start Redis, or correct its URL", FAILED
    return None


def _show_warning(
    usual: Callable[..., None],
    message: Warning | str,
    category: type[Warning],
    *place: Any,
    **more: Any,
) -> None:
    """Print a warning for operators as one line, without a place in the source."""
    if category is FutureWarning:
        say_trouble("warning", str(message))
    else:
        usual(message, category, *place, **more)


def run(
    arguments: Sequence[str] | None = None, *, imported: Callable[[], object] = lambda: None
) -> None:
    """Run the command line, and exit with its code.

    Args:
        arguments: the words after `reliable-mq`. None: those of this process.
        imported: called when the verb is imported, before it runs.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    to_complete = os.environ.get(_COMPLETED_WORDS) or os.environ.get("COMP_WORDS", "")
    if _COMPLETION in os.environ:  # the shell asks for words: those so far name the verb
        words = to_complete.split()[1:]
    if arguments is None:
        warnings.showwarning = partial(_show_warning, warnings.showwarning)
    note_place()
    note_shape(None)
    # `standalone_mode` would write the usage, a hint and an error, on four lines.
    undo, told = hush_outages(), os.environ.get(TOLD_VARIABLE)
    try:
        code = run_plainly(lambda: _called(words, imported))
    finally:
        undo()
        os.environ.pop(TOLD_VARIABLE, None)
        os.environ.update({} if told is None else {TOLD_VARIABLE: told})
    sys.exit(code if isinstance(code, int) else DONE)  # an int: that of `typer.Exit`


def _called(words: list[str], imported: Callable[[], object]) -> object:
    app = build_app(words)
    if _COMPLETION not in os.environ:
        tell_unknown_variables(words)
    imported()
    return app(args=words, prog_name="reliable-mq", standalone_mode=False)


def run_plainly(call: Callable[[], object]) -> object:
    """Return the result of a call; after an error that is not a bug, print a line, and exit."""
    try:
        return call()
    except typer.Abort as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # Ctrl-C, not at a prompt
            raise error.__cause__ from None
        print("Aborted!", file=sys.stderr)
        sys.exit(FAILED)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # without arguments, print the help
            print(printable_lines(str(error)), file=sys.stderr)
            sys.exit(BAD_USAGE)
        if isinstance(error, ApplicationBroken):
            from reliable_mq.app.loading import own_traceback  # noqa: PLC0415 - loaded already

            print(printable_lines(own_traceback(error.own)), file=sys.stderr, end="")
        explained = explain(error)
        if explained is None:
            raise
        line, code = explained
        text = pasteable(line)
        if (as_json := json_error(text)) is not None:
            print(as_json, file=sys.stderr)
        else:
            say_trouble("error", text)
        sys.exit(code)


if __name__ == "__main__":
    run()
