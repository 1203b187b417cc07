"""The reference pages of commands, from the command line's own definitions."""

from collections.abc import Iterator
from typing import Any

import typer.main
from tests.documentation.declared import as_sentence, code, table

from reliable_mq.cli.main import BAD_USAGE, DONE, FAILED, VERBS, build_app

HEAD = """# Commands

`reliable-mq COMMAND --help` prints the same as these pages. They are made from the commands.

"""

EXIT_CODES = (
    (DONE, "done", "the command did what it says"),
    (FAILED, "failed", "something is away or in use, or see below"),
    (
        BAD_USAGE,
        "bad usage",
        "the command line, a setting or the application is wrong; an extra is not installed",
    ),
)
CODES_OF_COMMANDS = {
    "doctor": "1: a promise is in danger; with `--strict` also for a warning",
    "schema": "1, with `check`: a payload has changed in a way that breaks others",
    "migrate": "1, with `--check`: a migration is needed",
    "reconcile": "0: clean; 2: findings; 1: it failed, also by bad usage; 128 and the number of "
    "the signal that stopped it",
    "stub": "1: a stub was not changed; its line says why",
    "dlq": "1: a dead letter was not sent again; its line says why",
    "pause": "1: the topic was neither paused nor closed",
    "notifiers": "1, with `--test`: a notifier could not notify",
    "topic": "1: a broker did not answer, or the person at the terminal did not agree",
    "group": "1: a broker did not answer, or the person at the terminal did not agree",
    "message": "1: a broker did not answer",
    "access": "1: a broker did not answer, or `add` found that the user exists",
}
"""Commands whose code says more, and what."""

EXIT_HEAD = f"""# Exit codes

{table(("code", "name", "when"), [[code(each), name, when] for each, name, when in EXIT_CODES])}
An error that is not a bug is one line on standard error, after `error: `. It says what to do.
A bug ends with a traceback and code 1. Please report it.

{table(("command", "its code"), [[code(each), text] for each, text in CODES_OF_COMMANDS.items()])}
Commands that run for long (`broker`, `namesrv`, `run`, `resend`) end with 0 after SIGTERM or
SIGINT once they have started. Ctrl-C ends every other command, and these during their start, with
130 and without a traceback. SIGTERM during their start ends them by the signal itself: a shell and
Kubernetes show 143 (128 + 15), and 137 (128 + 9) after SIGKILL. There are no
other codes. The codes of a program beside us are its own: uvicorn ends with 3 if the start of the
application fails, Gunicorn too.
"""


def commands_of(verb: str) -> Iterator[tuple[str, Any]]:
    """Yield the full name and definition of each command of a verb."""
    root: Any = typer.main.get_command(build_app([verb]))
    yield from _below(verb, root.commands[verb])


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for word, each in command.commands.items():
            yield from _below(f"{name} {word}", each)
    else:
        yield name, command


def index_page() -> str:
    """Return the page that lists all commands."""
    rows = [[f"[`{verb}`]({verb}.md)", as_sentence(each.summary)] for verb, each in VERBS.items()]
    listed = table(("command", "what it does"), rows)
    return f"{HEAD}{listed}\nSee also [exit codes](../exit_codes.md).\n"


def exit_codes_page() -> str:
    """Return the page of exit codes."""
    return EXIT_HEAD


def verb_page(verb: str) -> str:
    """Return the page of one verb: each of its commands with all options."""
    parts = [f"# reliable-mq {verb}\n\n{as_sentence(VERBS[verb].summary)}\n"]
    found = list(commands_of(verb))
    for name, command in found:
        if len(found) > 1:
            parts.append(f"## {name}\n\n{_text(command)}\n")
        else:
            parts.append(f"{_text(command)}\n")
        parts.append(_command(name, command))
    return "\n".join(parts)


def _text(command: Any) -> str:
    return "\n\n".join(
        " ".join(each.split()) for each in (command.help or "").split("\f")[0].split("\n\n")
    )


def _command(name: str, command: Any) -> str:
    context = command.make_context(f"reliable-mq {name}", [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    records = [each.get_help_record(context) for each in command.get_params(context)]
    rows = [[code(names), _explained(text)] for names, text in filter(None, records)]
    shown = f"```text\nreliable-mq {name} {usage}\n```\n"
    return f"{shown}\n{table(('argument or option', 'what it does'), rows)}" if rows else shown


def _explained(text: str) -> str:
    """Return the help of an option as a sentence, with its default and bounds behind it."""
    words, bracket, more = text.partition("  [")
    return as_sentence(words.strip()) + (f" [{more}" if bracket else "")
